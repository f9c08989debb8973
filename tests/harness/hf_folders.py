"""Folders as Hugging Face's libraries save models, of random weights, and the same models in numpy."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .tokenizers import byte_characters

Array = npt.NDArray[np.float64]

DIM, LAYERS, HEADS, KV_HEADS, FF, CONTEXT = 64, 2, 4, 2, 96, 256
BYTE_TOKENS = [*byte_characters(), "he", "ll", "hell", "hello", "<|begin|>", "<|end|>"]
BYTE_MERGES = ["h e", "l l", "he ll", "hell o"]
TEMPLATE = "{{ messages[0].content }}"
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace("{1,3}", "")


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]], *, bf16: bool = False) -> Path:
    """A file as the library writes it. In BF16 the lower half of each number is cut off."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blocks, at = [], 0
    for name, values in tensors.items():
        data = values.astype("<f4")
        block = (data.view(np.uint32) >> 16).astype("<u2").tobytes() if bf16 else data.tobytes()
        kind = "BF16" if bf16 else "F32"
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [at, at + len(block)]}
        blocks.append(block)
        at += len(block)
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(blocks))
    return path


def write_shards(folder: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """The same in two files with an index."""
    names = sorted(tensors)
    placed: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        write_safetensors(folder / file, {name: tensors[name] for name in part})
        placed |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


def byte_level_tokenizer(split: str = LLAMA3_SPLIT) -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE whose texts begin with `<|begin|>`."""
    begin, end = len(BYTE_TOKENS) - 2, len(BYTE_TOKENS) - 1
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": begin, "content": "<|begin|>", "special": True},
            {"id": end, "content": "<|end|>", "special": True},
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|begin|>"}}, {"Sequence": {"id": "A"}}],
            "pair": [],
        },
        "model": {
            "type": "BPE",
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(BYTE_TOKENS[:-2])},
            "merges": [pair.split() for pair in BYTE_MERGES],
        },
    }


@dataclass(frozen=True)
class Decoder:
    """A small decoder: `kind` is llama, qwen2, qwen3 or gemma; `config` is added to config.json."""

    kind: str
    weights: Mapping[str, Array]
    config: Mapping[str, Any]

    @property
    def head_dim(self) -> int:
        return int(self.config.get("head_dim", DIM // HEADS))

    def write(self, folder: Path, *, bf16: bool = False, shards: bool = False) -> Path:
        """A folder with all that a conversion needs."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(dict(self.config)))
        (folder / "tokenizer.json").write_text(
            json.dumps(byte_level_tokenizer(QWEN2_SPLIT if "qwen" in self.kind else LLAMA3_SPLIT))
        )
        said = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": TEMPLATE}
        (folder / "tokenizer_config.json").write_text(json.dumps(said))
        if shards:
            write_shards(folder, self.weights)
        else:
            write_safetensors(folder / "model.safetensors", self.weights, bf16=bf16)
        return folder

    def logits(self, ids: Sequence[int]) -> Array:
        """Of every position, as transformers computes them: (tokens, vocabulary)."""
        w = self.weights
        x: Array = w["model.embed_tokens.weight"][list(ids)]
        if self.kind == "gemma":
            x = x * np.sqrt(DIM)
        for i in range(LAYERS):
            of = f"model.layers.{i}."
            x = x + self._attend(self._norm(x, f"{of}input_layernorm.weight"), f"{of}self_attn.")
            h = self._norm(x, f"{of}post_attention_layernorm.weight")
            gate, up = (h @ w[f"{of}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            act = gelu_tanh(gate) if self.kind == "gemma" else gate / (1 + np.exp(-gate))
            x = x + (act * up) @ w[f"{of}mlp.down_proj.weight"].T
        output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
        made: Array = self._norm(x, "model.norm.weight") @ output.T
        return made

    def _norm(self, x: Array, name: str) -> Array:
        scale = self.weights[name] + (1 if self.kind == "gemma" else 0)
        made: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * scale
        return made

    def _attend(self, h: Array, of: str) -> Array:
        n = len(h)
        heads = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}

        def project(name: str) -> Array:
            made = h @ self.weights[f"{of}{name}_proj.weight"].T
            made = made + self.weights.get(f"{of}{name}_proj.bias", np.zeros(1))
            shaped: Array = made.reshape(n, heads[name], self.head_dim)
            if f"{of}{name}_norm.weight" in self.weights:
                shaped = self._norm(shaped, f"{of}{name}_norm.weight")
            return shaped.swapaxes(0, 1)

        q, k, v = self._turn(project("q")), self._turn(project("k")), project("v")
        k, v = (np.repeat(each, HEADS // KV_HEADS, axis=0) for each in (k, v))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(self.head_dim)
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        made = (scores @ v).swapaxes(0, 1).reshape(n, -1) @ self.weights[f"{of}o_proj.weight"].T
        biased: Array = made + self.weights.get(f"{of}o_proj.bias", np.zeros(1))
        return biased

    def _turn(self, x: Array) -> Array:
        """Rotary embedding: transformers turns (i, i + half) of a head."""
        half = self.head_dim // 2
        frequencies = self.config["rope_theta"] ** (-np.arange(half) / half)
        angles = np.outer(np.arange(x.shape[1]), frequencies / self._stretch(frequencies))
        a, b = x[..., :half], x[..., half:]
        scaling = self.config.get("rope_scaling") or {}
        grown = 0.1 * np.log(scaling["factor"]) + 1 if scaling.get("rope_type") == "yarn" else 1.0
        cos, sin = grown * np.cos(angles), grown * np.sin(angles)
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)

    def _stretch(self, frequencies: Array) -> Array | float:
        """What frequencies are divided by: transformers' modeling_rope_utils."""
        scaling = self.config.get("rope_scaling")
        if scaling is None:
            return 1.0
        if scaling["rope_type"] == "linear":
            return float(scaling["factor"])
        made = []
        old = scaling["original_max_position_embeddings"]
        if scaling["rope_type"] == "yarn":

            def turning(times: float) -> float:
                """Which frequency turns so often within the context that the model was trained on."""
                base = float(self.config["rope_theta"])
                return float(self.head_dim * np.log(old / (times * 2 * np.pi)) / (2 * np.log(base)))

            first, last = max(np.floor(turning(32)), 0), min(np.ceil(turning(1)), self.head_dim - 1)
            ramp = np.clip((np.arange(len(frequencies)) - first) / (last - first), 0, 1)
            return np.asarray(1 / (ramp / scaling["factor"] + 1 - ramp))
        for frequency in frequencies:
            wavelength = 2 * np.pi / frequency
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            if wavelength > old / low:
                made.append(scaling["factor"])
            elif wavelength < old / high:
                made.append(1.0)
            else:
                smooth = (old / wavelength - low) / (high - low)
                made.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
        return np.array(made)


_NAMES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma": "Gemma", "mistral": "Mistral"}


def decoder(kind: str, *, tied: bool = False, **config: Any) -> Decoder:
    """Random weights. `attention_bias` gives all four projections one; qwen2 always has three."""
    draw = np.random.default_rng(3)
    vocab = config.get("vocab_size", len(BYTE_TOKENS) + 2)
    said: dict[str, Any] = {
        "architectures": [f"{_NAMES[kind]}ForCausalLM"],
        "hidden_size": DIM,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": FF,
        "max_position_embeddings": CONTEXT,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": tied,
        "hidden_act": "gelu" if kind == "gemma" else "silu",
        **config,
    }
    head_dim = said.get("head_dim", DIM // HEADS)

    def weights(*shape: int, around: float = 0.0) -> Array:
        # BF16 holds them as they are.
        drawn = (around + draw.normal(0, shape[-1] ** -0.5, shape)).astype(np.float32)
        return (drawn.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)

    made = {"model.embed_tokens.weight": weights(vocab, DIM), "model.norm.weight": weights(DIM, around=1)}
    if not tied:
        made["lm_head.weight"] = weights(vocab, DIM)
    for i in range(LAYERS):
        of = f"model.layers.{i}."
        for name, n in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            made[f"{of}self_attn.{name}_proj.weight"] = weights(n * head_dim, DIM)
            if kind == "qwen2" or said.get("attention_bias"):
                made[f"{of}self_attn.{name}_proj.bias"] = weights(n * head_dim)
        made[f"{of}self_attn.o_proj.weight"] = weights(DIM, HEADS * head_dim)
        if said.get("attention_bias"):
            made[f"{of}self_attn.o_proj.bias"] = weights(DIM)
        if kind == "qwen3":
            made |= {f"{of}self_attn.{name}_norm.weight": weights(head_dim, around=1) for name in "qk"}
        for name in ("gate", "up"):
            made[f"{of}mlp.{name}_proj.weight"] = weights(FF, DIM)
        made[f"{of}mlp.down_proj.weight"] = weights(DIM, FF)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            made[f"{of}{norm}.weight"] = weights(DIM, around=1)
    return Decoder(kind, made, said)


def gelu_tanh(x: Array) -> Array:
    made: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return made


def write_sentencepiece(folder: Path, file: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary of SentencePiece's BPE over a, b, c and blanks, in place of the folder's own.

    Args:
        file: tokenizer.json, or SentencePiece's own tokenizer.model.

    Returns:
        Its tokens with their ids, and its merges in their order.
    """
    (folder / "tokenizer.json").unlink()
    made = [
        ("a", "b"),
        ("b", "c"),
        ("\u2581", "a"),
        ("ab", "c"),
        ("a", "bc"),
        ("c", "\u2581"),
        ("abc", "\u2581a"),
    ]
    pieces = ["<unk>", "<|begin|>", "<|end|>", *(f"<0x{i:02X}>" for i in range(256)), *"\u2581abc"]
    # A token that two merges make has the rank of the first.
    merged = list(dict.fromkeys(left + right for left, right in made))
    tokens = [*pieces, *merged]
    merges = sorted(made, key=lambda pair: merged.index("".join(pair)))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if file == "tokenizer.json":
        said = {
            "added_tokens": [{"id": i, "content": tokens[i], "special": True} for i in range(3)],
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Prepend", "prepend": "\u2581"},
                    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                ],
            },
            "pre_tokenizer": None,
            "model": {
                "type": "BPE",
                "unk_token": "<unk>",
                "byte_fallback": True,
                "vocab": vocabulary,
                "merges": [" ".join(pair) for pair in merges],
            },
        }
        (folder / file).write_text(json.dumps(said))
    else:
        types = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
        scores = [*[0.0] * len(pieces), *(-float(i) for i in range(len(merged)))]
        model = b"".join(
            _message(
                1, _message(1, token.encode()) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind])
            )
            for token, score, kind in zip(tokens, scores, types, strict=True)
        )
        # trainer_spec.model_type is BPE.
        (folder / file).write_bytes(model + _message(2, bytes([0x18, 2])))
    return vocabulary, merges


def _message(number: int, data: bytes) -> bytes:
    """A field of a protobuf message that holds bytes."""
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def write_bert(folder: Path, architecture: str = "BertModel") -> Path:
    """A BERT of two layers with random weights; BertForSequenceClassification has a head of one class."""
    draw = np.random.default_rng(6)
    folder.mkdir(parents=True)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    config = {
        "architectures": [architecture],
        "hidden_size": DIM,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": FF,
        "max_position_embeddings": CONTEXT,
        "vocab_size": len(tokens),
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "id2label": {"0": "LABEL_0"},
    }
    sizes = {
        "embeddings.word_embeddings": (len(tokens), DIM),
        "embeddings.position_embeddings": (CONTEXT, DIM),
        "embeddings.token_type_embeddings": (2, DIM),
    }
    has_head = architecture == "BertForSequenceClassification"
    dense = {"pooler.dense": (DIM, DIM)} | ({"classifier": (1, DIM)} if has_head else {})
    norms = ["embeddings.LayerNorm"]
    for i in range(LAYERS):
        of = f"encoder.layer.{i}."
        for name in (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
        ):
            dense[f"{of}{name}"] = (DIM, DIM)
        dense |= {f"{of}intermediate.dense": (FF, DIM), f"{of}output.dense": (DIM, FF)}
        norms += [f"{of}attention.output.LayerNorm", f"{of}output.LayerNorm"]
    made = {f"{name}.weight": draw.normal(0, 0.3, size) for name, size in (sizes | dense).items()}
    made |= {f"{name}.bias": draw.normal(0, 0.3, size[0]) for name, size in dense.items()}
    for norm in norms:
        made |= {f"{norm}.weight": draw.normal(1, 0.1, DIM), f"{norm}.bias": draw.normal(0, 0.1, DIM)}
    prefixed = {name if name.startswith("classifier") else f"bert.{name}": w for name, w in made.items()}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(tokens))
    write_safetensors(folder / "model.safetensors", prefixed)
    return folder
