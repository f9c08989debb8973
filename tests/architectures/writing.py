"""Writes a tiny model of random weights. llama.cpp itself says which tensors an architecture has."""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import llama_cpp
import numpy as np
import numpy.typing as npt
from harness.gguf_files import Field, Gguf, Tensor, boolean, f32, numbers, text, u32

from inferflux.worker.files.gguf_header import HEADER, _Reader
from inferflux.worker.files.weight_parts import PartCounts

from .families import FAMILIES, Family

Weights = npt.NDArray[np.float32]
_DIMENSIONS: Final = 4
# Where numbers along each dimension lie in a ggml_tensor: behind its type and the pointer to its buffer.
_NE_OFFSET: Final = 16
# Of a large vocabulary, which would be most of the file.
_MANY_ROWS: Final = 10_000
_SMALL: Final = gguf.GGMLQuantizationType.Q8_0
_U32, _BOOL = 4, 7
# Of tensors that a model may have, those that quantized ones alone have.
_OF_QUANTIZED: Final = (".scale", ".input_scale")
_BLOCK: Final = gguf.GGML_QUANT_SIZES[_SMALL][0]


def shapes_of(metadata: Path) -> dict[str, tuple[int, ...]]:
    """Tensors that llama.cpp makes for a file of metadata alone, by name: numbers along each dimension, the
    one that lies closest together last.

    Raises:
        ValueError: it makes no model of it.
    """
    base = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
    base.gguf_init_from_file.restype, base.ggml_get_name.restype = ctypes.c_void_p, ctypes.c_char_p
    base.ggml_get_name.argtypes = [ctypes.c_void_p]

    class Params(ctypes.Structure):
        _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]

    base.gguf_init_from_file.argtypes = [ctypes.c_char_p, Params]
    found: dict[str, tuple[int, ...]] = {}

    def note(tensor: int, _data: int) -> None:
        sizes = (ctypes.c_int64 * _DIMENSIONS).from_address(tensor + _NE_OFFSET)
        shape = tuple(reversed(sizes))
        while len(shape) > 1 and shape[0] == 1:
            shape = shape[1:]
        found[base.ggml_get_name(tensor).decode()] = shape

    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(note)
    context = base.gguf_init_from_file(str(metadata).encode(), Params(no_alloc=True, ctx=None))
    raw: Any = llama_cpp.llama_cpp._lib.llama_model_init_from_user
    raw.restype = ctypes.c_void_p
    raw.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, llama_cpp.llama_model_params]
    model = raw(context, ctypes.cast(callback, ctypes.c_void_p), None, llama_cpp.llama_model_default_params())
    if not model:
        raise ValueError(f"llama.cpp makes no model of {metadata}")
    return found


def random_weights(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Weights:
    """Weights with which states neither vanish nor grow, and logits depend on the whole context."""
    drawn: Weights = rng.standard_normal(shape, dtype=np.float32)
    last = name.rpartition("blk.")[2]
    if "rope_f" in name:
        return np.ones(shape, np.float32)
    if "norm" in last and last.endswith(".weight"):
        # Some attend with unscaled scores: sharper ones would make every rounding another answer.
        near = 1 if "attn_q_norm" not in last else shape[-1] ** -0.5
        return np.asarray(near + near * drawn / 10, np.float32)
    if last.endswith("ssm_a"):  # the state decays
        return np.asarray(-np.abs(drawn) - 0.1, np.float32)
    if len(shape) == 1 or last.endswith(".bias") or 1 in shape:
        return np.asarray(drawn / 10, np.float32)
    return np.asarray(drawn * 2 * shape[-1] ** -0.5, np.float32)


def write(family: Family, out: Path, vocabulary: Mapping[str, Field], *, seed: int = 1) -> Path:
    """Write a model of random weights in F32; in Q8_0 those of a large vocabulary.

    Args:
        vocabulary: see `vocabulary_of`.

    Raises:
        ValueError: llama.cpp makes no model of the family's metadata.
    """
    metadata = {
        "general.architecture": text(family.architecture),
        "general.name": text(f"tiny {family.architecture}"),
        **{f"{family.architecture}.{name}": _field(value) for name, value in family.metadata.items()},
        **vocabulary,
    }
    with tempfile.TemporaryDirectory() as folder:
        shapes = shapes_of(Gguf(metadata, {}).write(Path(folder) / "metadata.gguf"))
    rng = np.random.default_rng(seed)
    tensors = {
        name: _tensor(random_weights(name, shape, rng))
        for name, shape in shapes.items()
        if not name.endswith(_OF_QUANTIZED)
    }
    return Gguf(metadata, tensors).write(out)


def vocabulary_of(path: Path) -> dict[str, Field]:
    """The metadata of the vocabulary of a GGUF file, of llama.cpp's models/ or of a model."""
    data = path.read_bytes()
    n_metadata = HEADER.unpack_from(data)[3]
    reader, found = _Reader(data, PartCounts()), {}
    for _ in range(n_metadata):
        key, start = reader._string(1 << 16), reader.at
        reader._value(reader._kind())
        if key.startswith("tokenizer."):
            found[key] = data[start : reader.at]
    return found


def _tensor(weights: Weights) -> Tensor:
    shape = weights.shape
    if len(shape) == 1 or shape[0] <= _MANY_ROWS or shape[-1] % _BLOCK:
        return Tensor(weights)
    return Tensor(gguf.quantize(weights, _SMALL), shape=shape, kind=int(_SMALL))


def _field(value: Any) -> Field:
    match value:
        case bool():
            return boolean(value)
        case int():
            return u32(value)
        case float():
            return f32(value)
        case [bool(), *_]:
            return numbers(_BOOL, np.array(value, np.uint8))
        case _:
            return numbers(_U32, np.array(value, np.uint32))


def main() -> int:
    """`python -m architectures.writing NAME VOCABULARY OUT`: llama.cpp may end the process."""
    name, path, out = sys.argv[1:]
    write(FAMILIES[name], Path(out), vocabulary_of(Path(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
