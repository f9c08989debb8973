"""Tensors written to a GGUF file one at a time, and files that are there whole or not at all."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import gguf
import numpy as np
import numpy.typing as npt

from inferflux.common.process import private_files

from .errors import ConversionError

Weights = npt.NDArray[np.float32]

_LARGEST_F16: Final = 65_504.0
# By the worker, which may be another user.
_READABLE = 0o644


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor of the file: `shape` is (rows, columns), the reverse of what GGUF has."""

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType

    @property
    def n_bytes(self) -> int:
        block, size = gguf.GGML_QUANT_SIZES[self.kind]
        return math.prod(self.shape) // int(block) * int(size)


def quant_type(out_type: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[out_type.upper()]


def file_type(out_type: str) -> gguf.LlamaFileType:
    name = out_type.upper()
    return gguf.LlamaFileType["ALL_F32" if name == "F32" else f"MOSTLY_{name}"]


def kind_of(shape: tuple[int, ...], wished: gguf.GGMLQuantizationType) -> gguf.GGMLQuantizationType:
    """Type that a tensor is stored in: F32 for vectors, F16 for rows that blocks do not divide."""
    if len(shape) < 2:
        return gguf.GGMLQuantizationType.F32
    block = gguf.GGML_QUANT_SIZES[wished][0]
    return wished if shape[-1] % block == 0 else gguf.GGMLQuantizationType.F16


def write_tensors(
    writer: gguf.GGUFWriter, targets: Sequence[Target], load: Callable[[Target], Weights]
) -> None:
    """Write all of a file whose metadata `writer` has, and close it.

    Args:
        load: gives one tensor's numbers, so that memory holds no more than one.

    Raises:
        ConversionError: numbers are too large for F16.
        ValueError: `load` gave another shape.
    """
    for target in targets:
        _announce(writer, target)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for target in targets:
            writer.write_tensor_data(gguf.quants.quantize(_checked(target, load(target)), target.kind))
    finally:
        writer.close()


def _announce(writer: gguf.GGUFWriter, target: Target) -> None:
    """Put a tensor into the index of the file."""
    plain = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}
    if target.kind in plain:
        writer.add_tensor_info(target.name, target.shape, np.dtype(plain[target.kind]), target.n_bytes)
        return
    stored = gguf.quant_shape_to_byte_shape(target.shape, target.kind)
    writer.add_tensor_info(target.name, stored, np.dtype(np.uint8), target.n_bytes, raw_dtype=target.kind)


def _checked(target: Target, values: Weights) -> Weights:
    values = np.ascontiguousarray(values, dtype=np.float32)
    if values.shape != target.shape:
        raise ValueError(f"{target.name} is {values.shape}, not {target.shape}")
    if target.kind == gguf.GGMLQuantizationType.F16 and np.abs(values).max(initial=0) > _LARGEST_F16:
        raise ConversionError(f"{target.name}: it has numbers that are too large for f16: bf16 holds them")
    return values


@contextmanager
def replacing(path: Path, needs_bytes: int = 0) -> Iterator[Path]:
    """A file to write that takes the place of `path` in the end, or is deleted where that fails.

    Raises:
        ConversionError: the disk has not that much room, or the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise ConversionError(f"{path.parent}: {error.strerror or error}") from None
    if needs_bytes > free:
        raise ConversionError(f"{path.parent}: {needs_bytes:,} bytes are needed, and {free:,} are free")
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with private_files.replacing(path, mode=_READABLE, beside=partial) as file:
            yield partial
            os.fsync(file.fileno())
    except OSError as error:
        raise ConversionError(f"{path}: {error.strerror or error}") from None
