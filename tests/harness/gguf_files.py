"""GGUF files written byte by byte, so that a test can write what no library would."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .tokenizers import byte_characters

Field = bytes
"""A metadata value with its type in front, as it lies in the file."""

DIM = 32
LAYERS = 1
FF = 32
HEADS = 2
CONTEXT = 128
TOKENS = [*byte_characters(), "he", "<s>", "</s>", "lo"]
_ALIGNMENT = 32
_F32 = 0


def u32(value: int) -> Field:
    return struct.pack("<II", 4, value)


def u16(value: int) -> Field:
    return struct.pack("<IH", 2, value)


def i32(value: int) -> Field:
    return struct.pack("<Ii", 5, value)


def f32(value: float) -> Field:
    return struct.pack("<If", 6, value)


def boolean(value: int) -> Field:
    return struct.pack("<IB", 7, value)


def u64(value: int) -> Field:
    return struct.pack("<IQ", 10, value)


def text(value: str | bytes) -> Field:
    return struct.pack("<I", 8) + _string(value)


def texts(values: Iterable[str | bytes]) -> Field:
    listed = list(values)
    return array(8, len(listed), b"".join(map(_string, listed)))


def numbers(kind: int, values: npt.NDArray[np.generic]) -> Field:
    return array(kind, values.size, values.tobytes())


def array(kind: int, count: int, payload: bytes) -> Field:
    """`count` as stated, whatever `payload` holds."""
    return struct.pack("<IIQ", 9, kind, count) + payload


def nested(depth: int) -> Field:
    """Arrays in arrays, one element each."""
    return struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 4, 0)


def _string(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


@dataclass(frozen=True)
class Tensor:
    """Weights, and what the index says of them if that is to differ."""

    values: npt.NDArray[np.float32]
    shape: tuple[int, ...] | None = None
    kind: int = _F32
    offset: int | None = None


@dataclass(frozen=True)
class Gguf:
    """A file to be written. The counts are those of the parts, unless they are given."""

    metadata: Mapping[str, Field]
    tensors: Mapping[str, Tensor]
    version: int = 3
    n_metadata: int | None = None
    n_tensors: int | None = None
    extra: bytes = field(default=b"", repr=False)  # metadata as bytes, behind the rest

    def having(self, fields: Mapping[str, Field | None]) -> Gguf:
        """The same with other metadata; None leaves a field out."""
        merged = {**self.metadata, **fields}
        return replace(self, metadata={key: value for key, value in merged.items() if value is not None})

    def with_tensor(self, name: str, tensor: Tensor | None) -> Gguf:
        """The same with another tensor, or without it."""
        merged = {**self.tensors, name: tensor}
        return replace(self, tensors={key: value for key, value in merged.items() if value is not None})

    def in_files(self, n_files: int) -> list[Gguf]:
        """The same in several files, as llama.cpp's gguf-split makes them; the first has no tensors."""
        names = list(self.tensors)

        def about(number: int) -> dict[str, Field]:
            return {
                "split.no": u16(number),
                "split.count": u16(n_files),
                "split.tensors.count": i32(len(names)),
            }

        rest = n_files - 1
        others = [{name: self.tensors[name] for name in names[i::rest]} for i in range(rest)]
        return [
            Gguf({**about(0), **self.metadata}, {}),
            *(Gguf(about(number), tensors) for number, tensors in enumerate(others, 1)),
        ]

    def filled(self, value: float) -> Gguf:
        """The same with every weight being `value`."""
        full = {
            name: replace(tensor, values=np.full_like(tensor.values, value))
            for name, tensor in self.tensors.items()
        }
        return replace(self, tensors=full)

    def head(self) -> bytes:
        """All but the weights."""
        n_metadata = len(self.metadata) if self.n_metadata is None else self.n_metadata
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        parts = [struct.pack("<4sIQQ", b"GGUF", self.version, n_tensors, n_metadata)]
        parts += [_string(key) + value for key, value in self.metadata.items()]
        parts.append(self.extra)
        offset = 0
        for name, tensor in self.tensors.items():
            shape = tensor.values.shape if tensor.shape is None else tensor.shape
            parts.append(_string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)))
            at = offset if tensor.offset is None else tensor.offset
            parts.append(struct.pack("<IQ", tensor.kind, at))
            offset += _padded(tensor.values.nbytes)
        return b"".join(parts)

    def data(self) -> bytes:
        head = self.head()
        weights = (tensor.values.tobytes() for tensor in self.tensors.values())
        padded = [block + b"\0" * (_padded(len(block)) - len(block)) for block in weights]
        return head + b"\0" * (_padded(len(head)) - len(head)) + b"".join(padded)

    def tokenizer(self) -> bytes:
        """The file without its tensors, as a worker publishes it."""
        return replace(self, tensors={}).head()

    def write(self, path: Path) -> Path:
        path.write_bytes(self.data())
        return path


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


_ALIGNMENT = 32
_HEADER = struct.Struct("<4sIQQ")


def changed(path: Path, values: Mapping[str, int]) -> bytes:
    """A file of any model with other numbers in its metadata, which are 32 bits wide. New ones come first."""
    data = bytearray(path.read_bytes())
    magic, version, n_tensors, n_metadata = _HEADER.unpack_from(data)
    added = b""
    for name, value in values.items():
        at = data.find(_string(name))
        if at < 0:
            added, n_metadata = added + _string(name) + u32(value), n_metadata + 1
        else:
            struct.pack_into("<I", data, at + len(_string(name)) + 4, value)
    if added:
        # A filler keeps the weights where they have to begin.
        empty = len(added + _string("filler") + text(""))
        added, n_metadata = added + _string("filler") + text("." * (-empty % _ALIGNMENT)), n_metadata + 1
    return _HEADER.pack(magic, version, n_tensors, n_metadata) + added + bytes(data[_HEADER.size :])


def tiny_model() -> Gguf:
    """A llama of one layer with a byte-level vocabulary, which llama.cpp serves."""
    draw = np.random.default_rng(7)

    def weights(*shape: int) -> Tensor:
        return Tensor(draw.normal(0, 0.05, shape).astype(np.float32))

    norm = Tensor(np.ones(DIM, np.float32))
    kinds = np.array([1] * (len(TOKENS) - 4) + [1, 3, 3, 1], np.int32)
    metadata: dict[str, Field] = {
        "general.architecture": text("llama"),
        "general.name": text("tiny"),
        "llama.context_length": u32(CONTEXT),
        "llama.embedding_length": u32(DIM),
        "llama.block_count": u32(LAYERS),
        "llama.feed_forward_length": u32(FF),
        "llama.attention.head_count": u32(HEADS),
        "llama.attention.head_count_kv": u32(HEADS),
        "llama.attention.layer_norm_rms_epsilon": f32(1e-5),
        "llama.rope.dimension_count": u32(DIM // HEADS),
        "llama.rope.freq_base": f32(10_000.0),
        "llama.vocab_size": u32(len(TOKENS)),
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.pre": text("gpt-2"),
        "tokenizer.ggml.tokens": texts(TOKENS),
        "tokenizer.ggml.token_type": numbers(5, kinds),
        "tokenizer.ggml.merges": texts(["h e"]),
        "tokenizer.ggml.bos_token_id": u32(257),
        "tokenizer.ggml.eos_token_id": u32(258),
        "tokenizer.ggml.add_bos_token": boolean(1),
        "tokenizer.chat_template": text("{{ messages[0].content }}"),
    }
    tensors = {
        "token_embd.weight": weights(len(TOKENS), DIM),
        "blk.0.attn_norm.weight": norm,
        "blk.0.attn_q.weight": weights(DIM, DIM),
        "blk.0.attn_k.weight": weights(DIM, DIM),
        "blk.0.attn_v.weight": weights(DIM, DIM),
        "blk.0.attn_output.weight": weights(DIM, DIM),
        "blk.0.ffn_norm.weight": norm,
        "blk.0.ffn_gate.weight": weights(FF, DIM),
        "blk.0.ffn_up.weight": weights(FF, DIM),
        "blk.0.ffn_down.weight": weights(DIM, FF),
        "output_norm.weight": norm,
    }
    return Gguf(metadata, tensors)


MIXTURE_EXPERTS = 4
MIXTURE_LAYERS = 2


def tiny_mixture() -> Gguf:
    """A llama of two layers with experts of random weights."""
    draw = np.random.default_rng(11)
    tiny = tiny_model()
    tensors = {name: tensor for name, tensor in tiny.tensors.items() if not name.startswith("blk.")}
    for i in range(MIXTURE_LAYERS):
        for name, tensor in tiny.tensors.items():
            if (name.startswith("blk.0.") and ".ffn_" not in name) or name == "blk.0.ffn_norm.weight":
                tensors[name.replace("blk.0.", f"blk.{i}.")] = tensor

        def weights(*shape: int) -> Tensor:
            return Tensor(draw.normal(0, 0.1, shape).astype(np.float32))

        tensors[f"blk.{i}.ffn_gate_inp.weight"] = weights(MIXTURE_EXPERTS, DIM)
        tensors[f"blk.{i}.ffn_gate_exps.weight"] = weights(MIXTURE_EXPERTS, FF, DIM)
        tensors[f"blk.{i}.ffn_up_exps.weight"] = weights(MIXTURE_EXPERTS, FF, DIM)
        tensors[f"blk.{i}.ffn_down_exps.weight"] = weights(MIXTURE_EXPERTS, DIM, FF)
    metadata = dict(tiny.metadata) | {
        "llama.block_count": u32(MIXTURE_LAYERS),
        "llama.expert_count": u32(MIXTURE_EXPERTS),
        "llama.expert_used_count": u32(2),
    }
    return Gguf(metadata, tensors)
