"""Whatever happened to an envelope, it is opened whole or refused by name."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.kv.envelope import (
    MAGIC,
    PIECE_VERSION,
    PRELUDE_BYTES,
    VERSION,
    Envelope,
    Identity,
    Refusal,
    Refused,
    StateBytes,
    blank,
    open_envelope,
    open_header,
)

IDENTITY = Identity("m", "0.3.36", 1, 1, flash_attention=True, rope="10000")


def sealed(tokens: list[int], payload: bytes, *, scope: str = "tenant") -> Envelope:
    made = blank(IDENTITY, scope, np.array(tokens, np.int32), len(payload))
    made.payload[:] = np.frombuffer(payload, np.uint8)
    made.seal()
    return made


def array(data: bytes) -> StateBytes:
    return np.frombuffer(data, np.uint8).copy()


def refusal_of(data: bytes, identity: Identity = IDENTITY) -> Refusal:
    with pytest.raises(Refused) as caught:
        open_envelope(array(data), identity)
    return caught.value.reason


@given(
    st.lists(st.integers(-1, 2**31 - 1), min_size=1, max_size=50),
    st.binary(max_size=300),
    st.text(max_size=20),
)
def test_what_is_put_in_comes_out(tokens: list[int], payload: bytes, scope: str) -> None:
    made = sealed(tokens, payload, scope=scope)
    opened = open_envelope(array(made.buffer.tobytes()), IDENTITY)
    assert opened.payload.tobytes() == payload
    assert opened.header.tokens.tolist() == tokens
    assert (opened.header.scope, opened.header.n_past) == (scope, len(tokens))
    assert opened.header.identity == IDENTITY


@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 40))
def test_a_piece_says_which_positions_it_has(first: int, n: int, more: int) -> None:
    tokens = np.arange(first + n + more, dtype=np.int32)
    made = blank(IDENTITY, "s", tokens, 5, first=first, n_past=first + n)
    made.payload[:] = 7
    made.seal()
    opened = open_envelope(array(made.buffer.tobytes()), IDENTITY).header
    assert (opened.first, opened.n_past) == (first, first + n)
    version = struct.unpack_from("<I", made.buffer.data, len(MAGIC))[0]
    assert version == (PIECE_VERSION if first else VERSION)  # builds that know no pieces refuse them


@given(st.data())
def test_any_flipped_byte_is_refused(data: st.DataObject) -> None:
    whole = sealed(list(range(data.draw(st.integers(1, 40)))), data.draw(st.binary(max_size=200))).buffer
    changed = whole.copy()
    changed[data.draw(st.integers(0, whole.shape[0] - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Refused):
        open_envelope(changed, IDENTITY)


@given(st.data())
def test_any_truncation_is_refused(data: st.DataObject) -> None:
    whole = sealed(list(range(20)), bytes(range(100))).buffer
    n = data.draw(st.integers(0, whole.shape[0] - 1))
    assert refusal_of(whole[:n].tobytes()) is Refusal.TRUNCATED


def test_what_is_wrong_is_named() -> None:
    whole = sealed([1, 2, 3], b"payload").buffer.tobytes()
    assert refusal_of(b"GGUF" + whole[4:]) is Refusal.UNKNOWN
    assert refusal_of(whole[: len(MAGIC)] + b"\0" + whole[len(MAGIC) + 1 :]) is Refusal.VERSION
    assert refusal_of(whole[:-1] + b"!") is Refusal.CORRUPT
    assert refusal_of(whole + b"more") is Refusal.CORRUPT
    assert refusal_of(whole[:PRELUDE_BYTES] + b"!" + whole[PRELUDE_BYTES + 1 :]) is Refusal.CORRUPT


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "other"),
        ("llama_cpp", "0.3.37"),
        ("key_type", 8),
        ("value_type", 8),
        ("flash_attention", False),
        ("rope", "500000"),
        ("adapters", ("a",)),
    ],
)
def test_state_of_another_identity_is_refused_and_the_field_named(field: str, value: object) -> None:
    other = dataclasses.replace(IDENTITY, **{field: value})  # type: ignore[arg-type]
    whole = sealed([1, 2, 3], b"payload").buffer
    with pytest.raises(Refused, match=f"foreign: {field}$") as caught:
        open_envelope(whole, other)
    assert caught.value.reason is Refusal.FOREIGN


def test_a_header_is_read_without_the_payload() -> None:
    made = sealed(list(range(100)), bytes(1000))
    start = made.buffer[: made.header.payload_at].tobytes()
    header = open_header(start, made.n_bytes)
    assert header.tokens.tolist() == list(range(100))
    assert header.payload_bytes == 1000
    with pytest.raises(Refused, match="truncated"):
        open_header(start, made.n_bytes - 1)


@pytest.mark.parametrize(("first", "n_past"), [(0, 0), (0, 4), (2, 2), (3, 2), (-1, 2)])
def test_positions_without_a_token_are_refused(first: int, n_past: int) -> None:
    with pytest.raises(ValueError, match="n_past"):
        blank(IDENTITY, "", np.zeros(3, np.int32), 1, n_past=n_past, first=first)


def described_as(description: bytes) -> bytes:
    """An envelope of two tokens and no payload with this description. Its checksums are right."""
    body = description + struct.pack("<2i", 1, 2)
    body = body.ljust(-(-(PRELUDE_BYTES + len(body)) // 64) * 64 - PRELUDE_BYTES, b"\0")
    start = struct.pack("<8sIIIIQ", MAGIC, VERSION, len(description), 2, zlib.crc32(b""), 0)
    return start + struct.pack("<I", zlib.crc32(body, zlib.crc32(start))) + body


@pytest.mark.parametrize(
    "changed",
    [
        {"n_past": float("inf")},
        {"n_past": None},
        {"n_past": 3},
        {"first": 1},
        {"first": 2},
        {"first": -1},
        {"first": "one"},
        {"scope": "\ud800"},
        {"identity": []},
        {"identity": {"model": "m"}},
    ],
)
def test_a_description_that_makes_no_sense_is_refused(changed: dict[str, Any]) -> None:
    said: dict[str, Any] = {"identity": dataclasses.asdict(IDENTITY), "scope": "s", "n_past": 2}
    open_envelope(array(described_as(json.dumps(said).encode())), IDENTITY)
    assert refusal_of(described_as(json.dumps(said | changed).encode())) is Refusal.CORRUPT


def test_a_description_that_is_nested_too_deeply_is_refused() -> None:
    assert refusal_of(described_as(b"[" * 100_000)) is Refusal.CORRUPT
