"""JSON files of a model, whose values are checked when they are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .errors import ConversionError

_MOST = 2**31 - 1
_HALF: Final = re.compile("[\ud800-\udfff]")
_LARGEST_F32: Final = 3.4028234e38
CONFIG_BYTES: Final = 4 << 20
TOKENIZER_BYTES: Final = 256 << 20


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Raises:
    ConversionError: it cannot be read, or is larger than that.
    """
    try:
        size = path.stat().st_size
        if size > most_bytes:
            raise ConversionError(f"{path.name}: {size:,} bytes, and no more than {most_bytes:,} are read")
        return path.read_bytes()
    except OSError as error:
        raise ConversionError(f"{path.name}: {error.strerror or error}") from None


def parse_json(data: bytes, said: str) -> Any:
    """Raises:
    ConversionError: it is not JSON, nested too deeply, or has a key twice; `said` names it.
    """
    try:
        return json.loads(data, object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"{said}: it is not JSON: {error}") from None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it has a key twice")
    return found


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a JSON file. Every getter raises ConversionError, which names the field.

    Attributes:
        said: which object of which file it is, for errors.
    """

    values: Mapping[str, Any]
    said: str

    def __contains__(self, name: str) -> bool:
        """True if the field is there and not null."""
        return self.values.get(name) is not None

    def error(self, name: str, why: str) -> ConversionError:
        return ConversionError(f"{self.said}: {name}: {why}")

    def integer(
        self, name: str, default: int | None = None, *, at_least: int = 1, at_most: int = _MOST
    ) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
            raise self.error(name, f"{_short(value)} is not a whole number from {at_least:,} to {at_most:,}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0 that 32-bit floats have."""
        value = self._value(name, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value <= _LARGEST_F32:
            raise self.error(name, f"{_short(value)} is not a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"{_short(value)} is neither true nor false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"{_short(value)} is no text")
        if not is_text(value):
            raise self.error(name, "it has half a character of UTF-16")
        return value

    def inner(self, name: str) -> Fields | None:
        """An object in this one; None if it is not there."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "it is no object")
        return Fields(value, f"{self.said}: {name}")

    def items(self, name: str) -> list[Any]:
        """A list; empty if it is not there."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(name, "it is no list")
        return value

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise self.error(name, "it is missing")
        return default


def read_fields(path: Path, most_bytes: int = CONFIG_BYTES) -> Fields:
    """The object that a file holds.

    Raises:
        ConversionError: it holds none.
    """
    value = parse_json(read_bounded(path, most_bytes), path.name)
    if not isinstance(value, dict):
        raise ConversionError(f"{path.name}: it holds no object")
    return Fields(value, path.name)


def read_fields_if_there(path: Path, most_bytes: int = CONFIG_BYTES) -> Fields:
    """The same; an empty object where there is no such file."""
    return read_fields(path, most_bytes) if path.is_file() else Fields({}, path.name)


def is_text(value: object) -> bool:
    """True if it is a text that UTF-8 can encode: JSON can hold halves of characters."""
    return isinstance(value, str) and not _HALF.search(value)


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."
