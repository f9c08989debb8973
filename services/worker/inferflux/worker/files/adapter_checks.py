"""Checks that an adapter's file fits a model, by the heads of both (pure).

llama.cpp checks much of this itself. What it does not check ends the process in the middle of a step: shapes
beyond the second dimension, ranks that differ, weights that are not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .gguf_header import Array, Header, HeaderError, Tensor

# Bytes of a block, and numbers in it, by ggml_type: what adapters are kept in.
_BLOCKS = {0: (4, 1), 1: (2, 1), 30: (2, 1), 8: (34, 32)}
_TYPE_NAMES = "F32, F16, BF16 or Q8_0"
_MAX_TENSORS = 1 << 16
_MAX_RANK = 1 << 12
_ALIGNMENT = 32
_EMBEDDING = "token_embd.weight"


@dataclass(frozen=True, slots=True)
class Weights:
    """Place of one tensor's weights in the file."""

    name: str
    kind: int
    start: int
    n_bytes: int


def check_adapter(header: Header, size: int, model: Header) -> int:
    """See that a file of `size` bytes is a LoRA adapter of a model.

    Returns:
        Its largest rank.

    Raises:
        HeaderError: it is not; names the field.
    """
    metadata = header.metadata
    _check_text(metadata.get("general.type"), "adapter", "general.type")
    _check_text(metadata.get("adapter.type"), "lora", "adapter.type")
    architecture = str(model.metadata.get("general.architecture"))
    _check_text(metadata.get("general.architecture"), architecture, "general.architecture")
    alpha = metadata.get("adapter.lora.alpha", 0.0)
    if not isinstance(alpha, float) or not math.isfinite(alpha):
        raise HeaderError("adapter.lora.alpha must be a finite number")
    if "adapter.alora.invocation_tokens" in metadata:
        raise HeaderError("adapter.alora.invocation_tokens: adapters that begin at a token are not served")
    if not 0 < len(header.tensors) <= _MAX_TENSORS:
        raise HeaderError(f"the file holds {len(header.tensors)} tensors: 1 to {_MAX_TENSORS} can be")
    ranks = [_rank(name, *pair, model.tensors) for name, pair in _pairs(header.tensors).items()]
    for weights in weights_of(header):
        if weights.start + weights.n_bytes > size:
            raise HeaderError(f"tensor {weights.name} is cut off: the file has {size} bytes")
    return max(ranks)


def weights_of(header: Header) -> Iterator[Weights]:
    """Yield the place of each tensor's weights.

    Raises:
        HeaderError: they cannot lie there, or are of a type that adapters are not kept in.
    """
    alignment = header.metadata.get("general.alignment", _ALIGNMENT)
    if isinstance(alignment, bool | Array) or not isinstance(alignment, int) or not 0 < alignment <= 1 << 16:
        raise HeaderError("general.alignment must be 1 to 65536")
    begin = -(-header.end // alignment) * alignment
    for name, tensor in header.tensors.items():
        if tensor.kind not in _BLOCKS:
            raise HeaderError(f"tensor {name} is of type {tensor.kind}: it must be {_TYPE_NAMES}")
        block_bytes, block = _BLOCKS[tensor.kind]
        if tensor.shape[0] % block or tensor.offset % alignment:
            raise HeaderError(f"tensor {name} is not aligned")
        yield Weights(
            name, tensor.kind, begin + tensor.offset, math.prod(tensor.shape) // block * block_bytes
        )


def _check_text(found: object, wanted: str, field: str) -> None:
    if found != wanted:
        shown = repr(found)[:80] if isinstance(found, str) else "something else"
        raise HeaderError(f"{field} must be {wanted!r}, not {shown if found is not None else 'missing'}")


def _pairs(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """The two parts of each change, by the tensor that they change."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        changed, dot, part = name.rpartition(".")
        if not dot or part not in ("lora_a", "lora_b"):
            raise HeaderError(f"tensor {name} is no part of a LoRA adapter")
        found.setdefault(changed, {})[part] = tensor
    for changed, parts in found.items():
        if len(parts) < 2:
            lacking = "lora_b" if "lora_a" in parts else "lora_a"
            raise HeaderError(f"tensor {changed}.{lacking} is missing")
    return {changed: (parts["lora_a"], parts["lora_b"]) for changed, parts in found.items()}


def _rank(name: str, a: Tensor, b: Tensor, model: Mapping[str, Tensor]) -> int:
    """The rank of the change of one tensor, whose shape it has to fit."""
    changed = model.get(name)
    if changed is None:
        raise HeaderError(f"tensor {name}.lora_a: the model has no tensor {name}")
    shape = _padded(changed.shape)
    first, second = _padded(a.shape), _padded(b.shape)
    if name == _EMBEDDING:  # looked up by rows: the other way around
        rank = first[0]
        wanted = (rank, shape[1], *shape[2:]), (rank, shape[0], *shape[2:])
    else:
        rank = first[1]
        wanted = (shape[0], rank, *shape[2:]), (rank, shape[1], *shape[2:])
    if (first, second) != wanted:
        raise HeaderError(
            f"tensor {name}: lora_a is {_shown(first)} and lora_b {_shown(second)}: "
            f"that does not fit the model's {_shown(shape)}"
        )
    if rank > _MAX_RANK:
        raise HeaderError(f"tensor {name}: the rank is {rank}: at most {_MAX_RANK} can be")
    return rank


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape, *(1,) * (4 - len(shape)))


def _shown(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
