"""What says again what it said before is parsed once."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.repeats import Repeats


def parsed(data: bytes, subject: str) -> list[str]:
    if data == b"bad":
        raise InvalidArgument("bad", field="data")
    return [subject, data.decode()]


def test_the_same_bytes_on_the_same_subject_give_the_same_object() -> None:
    repeats = Repeats(parsed)
    first = repeats.parse(b"a", "w1")
    assert repeats.parse(b"a", "w1") is first
    assert repeats.parse(b"a", "w2") is not first
    other = repeats.parse(b"b", "w1")
    assert other == ["w1", "b"]
    assert repeats.parse(b"a", "w1") is not first  # it came before another one


def test_what_is_wrong_is_refused_each_time_and_takes_no_place() -> None:
    repeats = Repeats(parsed)
    first = repeats.parse(b"a", "w1")
    for _ in range(2):
        with pytest.raises(InvalidArgument):
            repeats.parse(b"bad", "w1")
    assert repeats.parse(b"a", "w1") is first


def test_what_is_kept_is_bounded_and_long_messages_are_not_kept() -> None:
    repeats = Repeats(parsed, most=2)
    first = repeats.parse(b"a", "w1")
    repeats.parse(b"a", "w2")
    assert repeats.parse(b"a", "w1") is first
    repeats.parse(b"a", "w3")  # in place of w2
    assert repeats.parse(b"a", "w1") is first
    long = b"x" * 100_000
    assert repeats.parse(long, "w1") is not repeats.parse(long, "w1")
    assert repeats.parse(b"a", "w1") is not first
