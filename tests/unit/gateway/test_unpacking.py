"""Bodies that a client has packed."""

from __future__ import annotations

import gzip
import zlib

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.front.unpacking import UnknownEncoding, unpacker

TEXT = b'{"prompt": "a"}' * 100


def unpacked(encoding: str, body: bytes, size: int) -> bytes:
    """A body that comes in pieces of a size."""
    unpack = unpacker(encoding)
    ends = range(size, max(len(body), 1) + size, size)
    return b"".join(unpack(body[end - size : end], room=10_000, is_last=end >= len(body)) for end in ends)


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
    assert unpacked(encoding, packed, 7) == TEXT


def test_no_more_is_unpacked_than_there_is_room_for() -> None:
    assert len(unpacker("gzip")(gzip.compress(bytes(1 << 24)), room=100, is_last=True)) == 100


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "x" * 100])
def test_another_packing_is_refused(encoding: str) -> None:
    with pytest.raises(UnknownEncoding) as caught:
        unpacker(encoding)
    assert caught.value.http_status == 415


@pytest.mark.parametrize(
    ("encoding", "body", "said"),
    [
        ("gzip", TEXT, "not packed as"),
        ("gzip", b"", "cut"),
        ("gzip", gzip.compress(TEXT, mtime=0)[:-1], "cut"),
        ("gzip", gzip.compress(TEXT, mtime=0)[:-8], "cut"),
        ("gzip", gzip.compress(TEXT, mtime=0) + b"\0", "after the end"),
        ("gzip", gzip.compress(TEXT, mtime=0) * 2, "after the end"),
        ("deflate", zlib.compress(TEXT)[:-4], "cut"),
        ("deflate", zlib.compress(TEXT) + b"x", "after the end"),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_what_is_not_packed_as_it_says_or_not_whole_is_refused(
    encoding: str, body: bytes, said: str, size: int
) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        unpacked(encoding, body, size)
    assert (caught.value.field, caught.value.reason) == ("content-encoding", "BAD_ENCODING")
