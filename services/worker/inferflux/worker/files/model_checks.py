"""Checks that a model with a GGUF's metadata can be served (pure).

llama.cpp checks much itself. Here is what it accepts and cannot serve, what ends its process, and what it
refuses without the name of the field.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from .gguf_header import INTEGER_KINDS, Array, Buffer, Header, HeaderError, Value, integers_of

_LONGEST_NAME = 64
_MAX_I32 = (1 << 31) - 1
# Fields of the architecture, lowest and highest value. They may be arrays, with a value for each layer: those
# are checked one by one.
_INTEGERS = {
    "context_length": (2, _MAX_I32),
    "embedding_length": (1, 1 << 20),
    "block_count": (1, 1 << 12),
    "feed_forward_length": (0, 1 << 24),
    "attention.head_count": (0, 1 << 16),
    "attention.head_count_kv": (0, 1 << 16),
    "attention.key_length": (0, 1 << 16),
    "attention.value_length": (0, 1 << 16),
    "attention.sliding_window": (0, _MAX_I32),
    "rope.dimension_count": (0, 1 << 16),
    "expert_count": (0, 1 << 14),
    "expert_used_count": (0, 1 << 14),
    "vocab_size": (1, 1 << 24),
    "pooling_type": (0, 1 << 4),
}
_NEEDED = ("context_length", "embedding_length", "block_count")


def check_metadata(view: Buffer, header: Header) -> None:
    """Check the fields a model is built from. `view` begins with `header`.

    Raises:
        HeaderError: a field is missing, of the wrong type or out of bounds; names it.
    """
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not _is_name(architecture):
        raise HeaderError(f"general.architecture must be 1 to {_LONGEST_NAME} printable characters")
    if header.n_tensors == 0:
        raise HeaderError("the file holds no tensors: it is no model")
    for name in _NEEDED:
        if f"{architecture}.{name}" not in header.metadata:
            raise HeaderError(f"{architecture}.{name} is missing")
    for name, (least, most) in _INTEGERS.items():
        key = f"{architecture}.{name}"
        value = header.metadata.get(key, least)
        for each in _elements(key, view, value) if isinstance(value, Array) else (value,):
            _check_integer(key, each, least, most)
    for key, value in header.metadata.items():
        if key.startswith(f"{architecture}.") and isinstance(value, float) and not math.isfinite(value):
            raise HeaderError(f"{key} is {value}: it must be a finite number")


def check_tokens(tokens: Iterable[bytes]) -> None:
    """Check the spellings of a vocabulary; `tokens` in the order of their ids.

    Raises:
        HeaderError: two tokens are spelled alike, which ends llama.cpp.
    """
    seen: set[bytes] = set()
    for number, token in enumerate(tokens):
        if token in seen:
            raise HeaderError(f"tokenizer.ggml.tokens has {token[:40]!r} twice, again as id {number}")
        seen.add(token)


def _is_name(text: str) -> bool:
    """True if it can stand in a message."""
    return 0 < len(text) <= _LONGEST_NAME and text.isprintable()


def _elements(key: str, view: Buffer, array: Array) -> Iterator[int]:
    """Yield the elements of a field that has a value for each layer."""
    most = _INTEGERS["block_count"][1]
    if array.count > most:
        raise HeaderError(f"{key} has {array.count} elements: at most {most} can be")
    if array.kind not in INTEGER_KINDS:
        raise HeaderError(f"{key} has elements of type {array.kind.name}: they must be integers")
    return integers_of(view, array)


def _check_integer(key: str, value: Value, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        kind = {bool: "a truth value", float: "a fraction", str: "a string"}.get(type(value), "no number")
        raise HeaderError(f"{key} is {kind}: it must be an integer")
    if not least <= value <= most:
        raise HeaderError(f"{key} is {value}: it must be {least} to {most}")
