"""The hash chain over audit lines (pure).

A line is one JSON object. `seq` and `prev` come first, `hash` comes last. `hash` is the HMAC-SHA256 of all
bytes of the line before it; `prev` is the hash of the line before. A line that fits can only be made with the
key, so an edited, removed, added or moved line shows.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

GENESIS: Final = "0" * 64
"""`prev` of the first line of a chain."""

_BEFORE_HASH: Final = b',"hash":"'
_AFTER_HASH: Final = b'"}'
_HEX = re.compile(rb"[0-9a-f]{64}")
_TAIL_BYTES: Final = len(_BEFORE_HASH) + 64 + len(_AFTER_HASH)


class BadLine(ValueError):
    """A line that cannot be one of the chain; the message says why."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last line of a chain: the next one goes on from it.

    Attributes:
        seq: number of the line, from 1; 0 before the first.
        hash: of the line, 64 hex digits.
    """

    seq: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class Line:
    """A line that was read: its place in the chain, and all of its fields."""

    head: Head
    prev: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AuditKeys:
    """Keys derived from the audit key, one for each use."""

    chain: bytes
    texts: bytes

    @classmethod
    def of(cls, key: str) -> AuditKeys:
        """The keys that are derived from the one that is set."""
        return cls(*(_mac(key.encode(), f"inferflux audit {use}".encode()) for use in ("chain", "texts")))

    @property
    def key_id(self) -> str:
        """A name of the key that tells nothing of it."""
        return _mac(self.chain, b"key id").hex()[:16]


def seal(head: Head, fields: Mapping[str, object], key: bytes) -> tuple[bytes, Head]:
    """The line that follows `head`, with its newline, and the head after it.

    Args:
        key: of the chain.
    """
    record = {"seq": head.seq + 1, "prev": head.hash, **fields}
    body = json.dumps(record, separators=(",", ":"), default=str).encode()[:-1]
    digest = _mac(key, body).hex()
    return b"".join((body, _BEFORE_HASH, digest.encode(), _AFTER_HASH, b"\n")), Head(head.seq + 1, digest)


def read_line(line: bytes) -> Line:
    """Read a line, without its newline. Its hash is not checked.

    Raises:
        BadLine: it is incomplete, or no line of a chain.
    """
    body, digest = _split(line)
    try:
        fields = json.loads(body + b"}")
    except ValueError:
        raise BadLine("it is no JSON") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("seq"), int):
        raise BadLine("it has no number")
    return Line(Head(fields["seq"], digest.decode()), str(fields.get("prev")), fields)


def is_sealed(line: bytes, key: bytes) -> bool:
    """True if a line, without its newline, is as it was written."""
    try:
        body, digest = _split(line)
    except BadLine:
        return False
    return hmac.compare_digest(_mac(key, body).hex().encode(), digest)


def _split(line: bytes) -> tuple[bytes, bytes]:
    tail = line[-_TAIL_BYTES:]
    digest = tail[len(_BEFORE_HASH) : -len(_AFTER_HASH)]
    has_shape = tail.startswith(_BEFORE_HASH) and tail.endswith(_AFTER_HASH)
    if not has_shape or _HEX.fullmatch(digest) is None:
        raise BadLine("it is incomplete")
    return line[:-_TAIL_BYTES], digest


def head_bytes(head: Head, key: bytes) -> bytes:
    """The head as the chain's `head` file has it, always of the same length."""
    text = f"{head.seq:020d} {head.hash}"
    return f"{text} {_mac(key, b'head ' + text.encode()).hex()}\n".encode()


def read_head(data: bytes, key: bytes) -> Head:
    """Read what `head_bytes` made.

    Raises:
        BadLine: it is something else, or of another key.
    """
    text, _, mac = data.decode("ascii", "replace").strip().rpartition(" ")
    if not hmac.compare_digest(_mac(key, b"head " + text.encode()).hex().encode(), mac.encode()):
        raise BadLine("the head file was changed, or is of another key")
    seq, _, digest = text.partition(" ")
    return Head(int(seq), digest)


def torn_note(line: bytes) -> dict[str, object]:
    """Note on an incomplete line in the line after it, which proves that it is no edit."""
    return {"bytes": len(line), "sha256": hashlib.sha256(line).hexdigest()}


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
