"""Checks of a message's fields. Pure; every error names its field.

Any client of NATS may publish anything, so each receiver checks a message before it acts on it. A receiver's
rules are built from these.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Protocol, TypeVar

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import DecodeError, Message

from . import subjects
from .errors import InvalidArgument

# Tokens of a prompt, an answer or a context; also KV cells. llama.cpp counts them as int32.
MAX_TOKENS = 2**31 - 1
# llama.cpp's LLAMA_MAX_SEQ.
MAX_SEQUENCES = 256
MAX_MODEL_NAME_BYTES = 256
# Times in ms since the Unix epoch: a float still holds them exactly.
MAX_UNIX_MS = 2**53


_Message = TypeVar("_Message", bound=Message)


class Enum(Protocol):
    """A generated protobuf enum."""

    @property
    def DESCRIPTOR(self) -> EnumDescriptor: ...  # noqa: N802 - its name


def decode(kind: type[_Message], data: bytes, field: str = "") -> _Message:
    """The message that came over NATS as `data`; its fields may still hold anything.

    Raises:
        InvalidArgument: it is none of this kind.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        message = f"not a {kind.DESCRIPTOR.name}: {error}"
        raise InvalidArgument(message, field=field, reason="UNDECODABLE") from None


def check_range(value: float, low: float, high: float, field: str) -> None:
    """`value` is finite and in [low, high]. The message is written for integers where `low` is one.

    Raises:
        InvalidArgument: it is not.
    """
    # Written so that NaN fails.
    if not low <= value <= high or math.isinf(value):
        raise InvalidArgument(
            f"{field.rpartition('.')[2]} must be from {low:g} to {high:g}, not {value:g}"
            if isinstance(low, float)
            else f"{field.rpartition('.')[2]} must be from {low} to {high}, not {value}",
            field=field,
        )


def check_finite(value: float, field: str) -> None:
    """Raises InvalidArgument for NaN and the infinities."""
    if not math.isfinite(value):
        name = field.rpartition(".")[2]
        raise InvalidArgument(f"{name} must be a finite number, not {value:g}", field=field)


def check_token(text: str, field: str) -> None:
    """`text` can stand in a NATS subject as it is.

    Raises:
        InvalidArgument: it is empty, too long, or has other characters.
    """
    if not subjects.is_safe_token(text):
        raise InvalidArgument(f"{field} must be 1 to 64 of A-Z a-z 0-9 _ -", field=field)


def check_count(items: Collection[object], most: int, field: str) -> None:
    """Raises InvalidArgument when there are more than `most`."""
    if len(items) > most:
        raise InvalidArgument(f"{len(items)} {field}; at most {most} are taken", field=field)


def check_text(text: str, most_bytes: int, field: str) -> None:
    """Raises InvalidArgument when a text has more bytes than `most_bytes`."""
    if len(text) > most_bytes or len(text.encode()) > most_bytes:
        raise InvalidArgument(f"{field} has more than {most_bytes} bytes", field=field)


def check_known(value: int, enum: Enum, field: str) -> None:
    """`value` is one of the enum's, and not UNSPECIFIED.

    Raises:
        InvalidArgument: it is not.
    """
    if value == 0 or value not in enum.DESCRIPTOR.values_by_number:
        raise InvalidArgument(f"{field} has the unknown value {value}", field=field)


def check_model_name(name: str, *, field: str = "model") -> None:
    """Raises InvalidArgument when a model's name is empty, too long, or not of printable characters."""
    if not name:
        raise InvalidArgument("no model is named", field=field)
    if not name.isprintable():
        raise InvalidArgument("a model's name is of printable characters", field=field)
    if len(name.encode()) > MAX_MODEL_NAME_BYTES:
        raise InvalidArgument(f"a model's name has at most {MAX_MODEL_NAME_BYTES} bytes", field=field)
