"""Models that embed and rank: a real one, whose vectors are known, and small ones of random weights."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from inferflux.convert.safetensors import read_file
from inferflux.convert.vocabulary import special_pieces, word_pieces
from tools.minilm import minilm_folder, write_minilm

Vector = npt.NDArray[np.float64]

_WORDS = ["berlin", "is", "the", "capital", "of", "germany", "paris", "france", "pizza", "##s", "a", "b"]
_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CONTEXT = 64
WIDTH = 32


def minilm_gguf(directory: Path) -> Path:
    """all-MiniLM-L6-v2 as a GGUF file."""
    written = write_minilm(directory / "minilm.gguf")
    assert written is not None
    return written


class Bert:
    """A BERT in numpy, as in Devlin et al., 2018, of a folder that transformers saved."""

    def __init__(self, folder: Path) -> None:
        self._config = json.loads((folder / "config.json").read_text())
        stored = read_file(folder / "model.safetensors")
        self._weights = {
            name.removeprefix("bert."): tensor.load().astype(np.float64)
            for name, tensor in stored.items()
            if tensor.kind == "F32"
        }
        self._ids = {token: i for i, token in enumerate((folder / "vocab.txt").read_text().splitlines())}

    def tokenize(self, text: str) -> list[int]:
        """WordPiece: the longest token first, words split at blanks and signs, accents dropped."""
        plain = "".join(
            c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn"
        )
        ids = [self._ids["[CLS]"]]
        for word in re.findall(r"\w+|[^\w\s]", plain):
            ids += self._pieces(word)
        return [*ids, self._ids["[SEP]"]]

    def _pieces(self, word: str) -> list[int]:
        ids: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            ends = (end for end in range(len(word), start, -1) if mark + word[start:end] in self._ids)
            end = next(ends, None)
            if end is None:
                return [self._ids["[UNK]"]]
            ids.append(self._ids[mark + word[start:end]])
            start = end
        return ids

    def embed(self, token_ids: Sequence[int]) -> Vector:
        """The mean of the last layer's tokens, of length 1."""
        mean: Vector = self.states(token_ids).mean(axis=0)
        return mean / np.linalg.norm(mean)

    def score(self, token_ids: Sequence[int]) -> Vector:
        """What a head for classification makes of the first token: a number for each class."""
        pooled = np.tanh(self._dense(self.states(token_ids)[0], "pooler.dense"))
        return self._dense(pooled, "classifier")

    def states(self, token_ids: Sequence[int]) -> Vector:
        """The last layer's: (tokens, width)."""
        w = self._weights
        n = len(token_ids)
        x = w["embeddings.word_embeddings.weight"][list(token_ids)]
        x = (
            x
            + w["embeddings.position_embeddings.weight"][:n]
            + w["embeddings.token_type_embeddings.weight"][0]
        )
        x = self._norm(x, "embeddings.LayerNorm")
        for i in range(self._config["num_hidden_layers"]):
            x = self._layer(x, f"encoder.layer.{i}.")
        return x

    def _layer(self, x: Vector, of: str) -> Vector:
        def heads(name: str) -> Vector:
            made = self._dense(x, f"{of}attention.self.{name}")
            return made.reshape(len(x), self._config["num_attention_heads"], -1).swapaxes(0, 1)

        queries, keys, values = heads("query"), heads("key"), heads("value")
        scores = queries @ keys.swapaxes(1, 2) / np.sqrt(queries.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        attended = (scores @ values).swapaxes(0, 1).reshape(len(x), -1)
        x = self._norm(
            x + self._dense(attended, f"{of}attention.output.dense"), f"{of}attention.output.LayerNorm"
        )
        inner = self._dense(x, f"{of}intermediate.dense")
        return self._norm(x + self._dense(_gelu(inner), f"{of}output.dense"), f"{of}output.LayerNorm")

    def _dense(self, x: Vector, name: str) -> Vector:
        made: Vector = x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return made

    def _norm(self, x: Vector, name: str) -> Vector:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt(x.var(axis=-1, keepdims=True) + self._config["layer_norm_eps"])
        made: Vector = scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return made


@cache
def minilm() -> Bert:
    """all-MiniLM-L6-v2 in numpy."""
    folder = minilm_folder()
    assert folder is not None
    return Bert(folder)


def _gelu(x: Vector) -> Vector:
    """By Abramowitz and Stegun 7.1.26, whose error is below 1.5e-7."""
    z = np.abs(x) / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    series = ((((1.061405429 * t - 1.453152027) * t) + 1.421413741) * t - 0.284496736) * t + 0.254829592
    erf = np.sign(x) * (1 - series * t * np.exp(-z * z))
    made: Vector = x * 0.5 * (1 + erf)
    return made


def tiny_bert(path: Path, *, pooling: gguf.PoolingType = gguf.PoolingType.MEAN, seed: int = 5) -> Path:
    """A BERT of one layer with random weights: `RANK` makes a reranker of it, with a score."""
    draw = np.random.default_rng(seed)

    def weights(*shape: int) -> npt.NDArray[np.float32]:
        return draw.normal(0, 0.3, shape).astype(np.float32)

    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    tokens = [*_SPECIALS, *_WORDS]
    word_pieces(tokens).write(writer)
    writer.add_token_type_count(2)
    for kind, i in special_pieces(tokens).items():
        getattr(writer, f"add_{kind}_token_id")(i)
    tensors: dict[str, Any] = {
        "token_embd.weight": weights(len(tokens), WIDTH),
        "position_embd.weight": weights(CONTEXT, WIDTH),
        "token_types.weight": weights(2, WIDTH),
    }
    for norm in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        tensors[f"{norm}.weight"] = np.ones(WIDTH, np.float32)
        tensors[f"{norm}.bias"] = np.zeros(WIDTH, np.float32)
    for dense in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"):
        tensors[f"blk.0.{dense}.weight"] = weights(WIDTH, WIDTH)
        tensors[f"blk.0.{dense}.bias"] = weights(WIDTH)
    if pooling == gguf.PoolingType.RANK:
        tensors |= {"cls.weight": weights(WIDTH, WIDTH), "cls.bias": weights(WIDTH)}
        tensors |= {"cls.output.weight": weights(1, WIDTH), "cls.output.bias": weights(1)}
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
