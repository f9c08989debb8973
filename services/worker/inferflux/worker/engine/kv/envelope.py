"""KV state outside a context: llama.cpp's bytes of a sequence, behind a header that says what it is.

llama.cpp's own bytes name neither a model nor a build. An envelope does, so state of another model, or of
another layout, is refused and not decoded with. In memory and in a file the layout is the same, and all
numbers are little-endian:

    8 bytes   magic
    u32       version
    u32       bytes of the description
    u32       tokens
    u32       CRC-32 of the payload
    u64       bytes of the payload
    u32       CRC-32 of everything else before the payload
    ...       description: JSON; the identity, the cache scope, and the positions that the payload holds
    ...       token ids, i32 each
    ...       zeros, up to a multiple of 64 bytes
    ...       payload: what `llama_state_seq_get_data` wrote

A piece is an envelope whose payload begins at a later position than 0: it is of use to those that have the
state of the tokens before. Its version is another one, so builds that know no pieces refuse it.

CRC-32 finds every changed byte. State that never leaves the process is not summed: `Envelope` says by its
type that it was made or checked here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferflux.common.process.pieces import crc32

TokenArray = NDArray[np.int32]
StateBytes = NDArray[np.uint8]

MAGIC = b"\x89IFXKV\r\n"
VERSION = 1
PIECE_VERSION = 2
_PRELUDE = struct.Struct("<8sIIIIQI")
PRELUDE_BYTES = _PRELUDE.size
_CHECKSUM_AT = PRELUDE_BYTES - 4
_ALIGNMENT = 64
_TOKEN_BYTES = 4
# More than any header takes; a length beyond it is damage.
_MOST_HEADER_BYTES = 1 << 26


class Refusal(Enum):
    """Reason why an envelope is not opened."""

    UNKNOWN = "not an envelope"
    VERSION = "another version"
    TRUNCATED = "truncated"
    CORRUPT = "corrupt"
    FOREIGN = "foreign"


class Refused(Exception):
    """An envelope that cannot be used; `reason` says why, the message what exactly."""

    def __init__(self, reason: Refusal, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of model and context that has to be the same wherever a state is used.

    Attributes:
        model: digest of the model file.
        llama_cpp: version of the bindings, and of the library's state format.
        key_type, value_type: of the cache, as in enum ggml_type.
        flash_attention: decides how values are laid out.
        rope: rotary settings of the context.
        adapters: LoRA adapters in use.
        is_rotated: whether llama.cpp rotates what it quantizes.
    """

    model: str
    llama_cpp: str
    key_type: int
    value_type: int
    flash_attention: bool
    rope: str
    adapters: tuple[str, ...] = ()
    is_rotated: bool = False

    def difference(self, other: Identity) -> str:
        """The fields in which the other one differs, named; empty if it is the same."""
        names = [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]
        return ", ".join(names)


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """Description of its payload in an envelope.

    Attributes:
        scope: the cache scope of requests that may use it.
        tokens: ids of shape (n,).
        n_past: the positions in the payload end before it.
        payload_at: where the payload begins, in bytes.
        first: of the positions in the payload; 0 of a whole state.
    """

    identity: Identity
    scope: str
    tokens: TokenArray
    n_past: int
    payload_at: int
    payload_bytes: int
    payload_crc: int
    first: int = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole envelope."""
        return self.payload_at + self.payload_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """State of this model that was made or checked in this process.

    Attributes:
        buffer: header and payload, of shape (bytes,).
    """

    header: Header
    buffer: StateBytes

    @property
    def payload(self) -> StateBytes:
        """A view: what is written to it is in the envelope."""
        return self.buffer[self.header.payload_at :]

    @property
    def n_bytes(self) -> int:
        return self.header.n_bytes

    def seal(self) -> None:
        """Write the checksums, so that it can leave the process."""
        payload_crc = crc32(self.payload.data)
        _write_header(self.buffer, self.header, payload_crc)


def tokens_from(data: bytes) -> TokenArray:
    """Tokens as CachedPrefix has them."""
    return np.frombuffer(data[: len(data) // 4 * 4], "<i4").astype(np.int32)


def _fresh(n_bytes: int) -> StateBytes:
    return np.empty(n_bytes, np.uint8)


def blank(
    identity: Identity,
    scope: str,
    tokens: TokenArray,
    payload_bytes: int,
    *,
    n_past: int | None = None,
    first: int = 0,
    buffer: Callable[[int], StateBytes] = _fresh,
) -> Envelope:
    """An envelope whose payload is still to be written; `n_past` is all `tokens` if it is not given.

    Args:
        first: of the positions in the payload.
        buffer: gives memory of a size, of shape (bytes,).

    Raises:
        ValueError: no position, or more than there are tokens.
    """
    n_past = tokens.shape[0] if n_past is None else n_past
    if not 0 <= first < n_past <= tokens.shape[0]:
        raise ValueError(f"first is {first}, n_past is {n_past} of {tokens.shape[0]} tokens")
    description = _description(identity, scope, n_past, first)
    payload_at = _payload_at(len(description), tokens.shape[0])
    header = Header(identity, scope, tokens.copy(), n_past, payload_at, payload_bytes, 0, first)
    return Envelope(header, buffer(header.n_bytes))


def header_bytes(prelude: bytes | memoryview) -> int:
    """Byte offset of the payload in the envelope that begins with `prelude`.

    Raises:
        Refused: it is no envelope of this version.
    """
    if len(prelude) < PRELUDE_BYTES:
        raise Refused(Refusal.TRUNCATED, f"{len(prelude)} bytes")
    magic, version, n_description, n_tokens, _crc, _n, _own = _PRELUDE.unpack_from(prelude)
    if magic != MAGIC:
        raise Refused(Refusal.UNKNOWN)
    if version not in (VERSION, PIECE_VERSION):
        raise Refused(Refusal.VERSION, f"{version}, this one is {PIECE_VERSION}")
    found: int = _payload_at(n_description, n_tokens)
    if found > _MOST_HEADER_BYTES:
        raise Refused(Refusal.CORRUPT, f"a header of {found} bytes")
    return found


def open_header(data: bytes | memoryview, n_bytes: int) -> Header:
    """The header of an envelope of `n_bytes` in all; `data` begins it, and holds the header at least.

    Raises:
        Refused: it is no whole envelope of this version.
    """
    payload_at = header_bytes(data)
    if len(data) < payload_at:
        raise Refused(Refusal.TRUNCATED, "in its header")
    _, version, n_description, n_tokens, payload_crc, payload_bytes, checksum = _PRELUDE.unpack_from(data)
    if _header_crc(memoryview(data)[:payload_at]) != checksum:
        raise Refused(Refusal.CORRUPT, "its header")
    if payload_at + payload_bytes != n_bytes:
        reason = Refusal.TRUNCATED if n_bytes < payload_at + payload_bytes else Refusal.CORRUPT
        raise Refused(reason, f"{n_bytes} bytes, not {payload_at + payload_bytes}")
    identity, scope, n_past, first = _described(bytes(data[PRELUDE_BYTES : PRELUDE_BYTES + n_description]))
    tokens = np.frombuffer(data, "<i4", n_tokens, PRELUDE_BYTES + n_description).astype(np.int32)
    if not 0 <= first < n_past <= n_tokens or version != _version(first):
        raise Refused(Refusal.CORRUPT, f"the positions from {first} to {n_past} of {n_tokens} tokens")
    return Header(identity, scope, tokens, n_past, payload_at, payload_bytes, payload_crc, first)


def open_envelope(buffer: StateBytes, identity: Identity) -> Envelope:
    """The envelope in `buffer`, of shape (bytes,), checked.

    Raises:
        Refused: it is damaged, or not of this identity.
    """
    header = open_header(buffer.data, buffer.shape[0])
    check_identity(header, identity)
    envelope = Envelope(header, buffer)
    if crc32(envelope.payload.data) != header.payload_crc:
        raise Refused(Refusal.CORRUPT, "its payload")
    return envelope


def check_identity(header: Header, identity: Identity) -> None:
    """Raises:
    Refused: the state is of another identity.
    """
    difference = identity.difference(header.identity)
    if difference:
        raise Refused(Refusal.FOREIGN, difference)


def _version(first: int) -> int:
    return PIECE_VERSION if first else VERSION


def _description(identity: Identity, scope: str, n_past: int, first: int) -> bytes:
    said = {"identity": asdict(identity), "scope": scope, "n_past": n_past}
    return json.dumps(said | {"first": first} if first else said).encode()


def _described(text: bytes) -> tuple[Identity, str, int, int]:
    """(identity, scope, n_past, first) of a description.

    Raises:
        Refused: it is written by something else.
    """
    try:
        found: dict[str, Any] = json.loads(text)
        said = found["identity"]
        identity = Identity(**{**said, "adapters": tuple(said["adapters"])})
        scope = str(found["scope"])
        scope.encode()  # JSON can name characters that no text has
        return identity, scope, int(found["n_past"]), int(found.get("first", 0))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise Refused(Refusal.CORRUPT, f"its description: {error}") from None


def _payload_at(n_description: int, n_tokens: int) -> int:
    return -(-(PRELUDE_BYTES + n_description + _TOKEN_BYTES * n_tokens) // _ALIGNMENT) * _ALIGNMENT


def _write_header(buffer: StateBytes, header: Header, payload_crc: int) -> None:
    description = _description(header.identity, header.scope, header.n_past, header.first)
    tokens = header.tokens.astype("<i4").tobytes()
    # At once: a thread may write the buffer to a file while another one seals it again.
    written = bytearray(header.payload_at)
    numbers = (len(description), header.tokens.shape[0], payload_crc, header.payload_bytes)
    _PRELUDE.pack_into(written, 0, MAGIC, _version(header.first), *numbers, 0)
    body = (description + tokens).ljust(header.payload_at - PRELUDE_BYTES, b"\0")
    written[PRELUDE_BYTES:] = body
    struct.pack_into("<I", written, _CHECKSUM_AT, _header_crc(memoryview(written)))
    buffer[: header.payload_at] = np.frombuffer(written, np.uint8)


def _header_crc(header: memoryview) -> int:
    return crc32(header[PRELUDE_BYTES:], crc32(header[:_CHECKSUM_AT]))
