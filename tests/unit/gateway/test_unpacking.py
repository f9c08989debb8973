"""Bodies that a client has packed."""

from __future__ import annotations

import gzip
import zlib

import pytest

from inferflux.common.errors import InvalidArgument
from inferflux.gateway.http.unpacking import UnknownEncoding, unpacker

TEXT = b'{"prompt": "a"}' * 100


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("", TEXT),
        ("identity", TEXT),
        ("gzip", gzip.compress(TEXT, mtime=0)),
        ("GZIP", gzip.compress(TEXT, mtime=0)),
        ("deflate", zlib.compress(TEXT)),
    ],
)
def test_a_body_is_unpacked_piece_by_piece(encoding: str, packed: bytes) -> None:
    unpack = unpacker(encoding)
    pieces = [packed[i : i + 7] for i in range(0, len(packed), 7)]
    assert b"".join(unpack(piece, room=10_000) for piece in pieces) == TEXT


def test_no_more_is_unpacked_than_there_is_room_for() -> None:
    assert len(unpacker("gzip")(gzip.compress(bytes(1 << 24)), room=100)) == 100


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "x" * 100])
def test_another_packing_is_refused(encoding: str) -> None:
    with pytest.raises(UnknownEncoding) as caught:
        unpacker(encoding)
    assert caught.value.http_status == 415


def test_what_is_not_packed_as_it_says_is_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        unpacker("gzip")(TEXT, room=100)
    assert caught.value.field == "content-encoding"
