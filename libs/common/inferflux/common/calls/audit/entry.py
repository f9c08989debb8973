"""Digests of texts, for audit lines."""

from __future__ import annotations

import hashlib
import hmac

# Of a raw text in a line, in characters.
_MOST_RAW_CHARACTERS = 1 << 16


class TextDigest:
    """The keyed hash of a text that comes in pieces.

    Args:
        key: of the texts' hashes.
        keeps_raw: whether the line is to have the text too, up to 65,536 characters of it.
    """

    def __init__(self, key: bytes, *, keeps_raw: bool = False) -> None:
        self._mac = hmac.new(key, digestmod=hashlib.sha256)
        self._keeps_raw = keeps_raw
        self._raw = ""
        self._is_empty = True

    def add(self, text: str) -> None:
        if not text:
            return
        self._is_empty = False
        self._mac.update(text.encode("utf-8", "surrogatepass"))
        if self._keeps_raw:
            self._raw += text[: _MOST_RAW_CHARACTERS - len(self._raw)]

    def fields(self, name: str) -> dict[str, object]:
        """`NAME_hmac`, and `NAME` where it is kept; none of an empty text."""
        if self._is_empty:
            return {}
        fields: dict[str, object] = {f"{name}_hmac": self._mac.hexdigest()}
        if self._keeps_raw:
            fields[name] = self._raw
        return fields
