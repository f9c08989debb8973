"""Audit entry of a call: the fields that its front does not know."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

# Of a raw text in a line, in characters.
_MOST_RAW_CHARACTERS = 1 << 16


@dataclass(slots=True)
class CallRecord:
    """Record of a call for its audit line, filled while the call is served.

    Attributes:
        tenant: of the caller; "" before it is known whose credential it has, as is the next.
        key_id: of the caller.
        about: more fields of the line.
        is_change: whether it changes something of the whole, or would have.
        is_written: whether what serves the call writes its lines; otherwise its front does.
    """

    tenant: str = ""
    key_id: str = ""
    about: dict[str, object] = field(default_factory=dict)
    is_change: bool = False
    is_written: bool = False


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
