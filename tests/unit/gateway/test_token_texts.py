"""Tokens as texts, and where they begin."""

from __future__ import annotations

import pytest

from inferflux.gateway.http.openai.token_texts import TextOffsets, name_of
from inferflux.v1 import tokens_pb2


@pytest.mark.parametrize(
    "pieces",
    [
        [b"caf", b"\xc3", b"\xa9", b" x"],
        [b"\xf0\x9f", b"\x98", b"\x80", b"!"],
        ["né".encode(), b"e\xe2", b"\x82\xac", b"."],
    ],
)
def test_a_token_begins_where_its_character_does(pieces: list[bytes]) -> None:
    offsets = TextOffsets()
    text = b"".join(pieces)
    at = 0
    for piece in pieces:
        whole = text[:at].decode("utf-8", "ignore")
        assert offsets.next(piece) == len(whole)
        at += len(piece)
    assert offsets.next(b"") == len(text.decode())


def test_tokens_of_an_echo_begin_where_its_text_has_them() -> None:
    offsets = TextOffsets("Once é")
    pieces = [b"<s>", b" Once", b" ", b"\xc3", b"\xa9"]
    assert [offsets.next_of_echo(piece) for piece in pieces] == [0, 0, 4, 5, 5]
    assert offsets.next(b"!") == 6


def test_text_without_tokens_is_counted() -> None:
    offsets = TextOffsets()
    offsets.skip("an echo")
    assert offsets.next(b"a") == 7


def test_a_part_of_a_character_is_named_by_its_bytes() -> None:
    assert name_of(tokens_pb2.TokenLogprob(text="a")) == "a"
    assert name_of(tokens_pb2.TokenLogprob(text="\ufffd", piece=b"\xe2\x82")) == "bytes:\\xe2\\x82"
