"""Attempt ids: which submissions are the same call."""

from __future__ import annotations

from inferflux.common.contract import attempts
from inferflux.common.contract.checks import check_token


def test_each_submission_has_an_id_of_its_own_and_a_call_that_is_sent_again_is_the_same() -> None:
    one, again = (attempts.new(caller="key_1", idempotency_key="a call") for _ in range(2))
    assert one != again
    assert attempts.is_same(one, again)
    assert attempts.may_be_sent_again(one)
    check_token(one, "attempt_id")


def test_no_other_callers_and_no_other_call_is_the_same() -> None:
    one = attempts.new(caller="key_1", idempotency_key="a call")
    for caller, key in (("key_2", "a call"), ("key_1", "another"), ("key_", "1a call"), ("key_1", "")):
        assert not attempts.is_same(one, attempts.new(caller=caller, idempotency_key=key))


def test_what_asks_for_something_else_is_another_call() -> None:
    one, again, other = (
        attempts.new(caller="key_1", idempotency_key="a call", asked=asked) for asked in (b"x", b"x", b"y")
    )
    assert attempts.is_same(one, again)
    assert not attempts.is_same(one, other)


def test_calls_without_a_key_are_the_same_as_themselves_alone() -> None:
    one, other = attempts.new(caller="key_1"), attempts.new(caller="key_1")
    assert attempts.is_same(one, one)
    assert not attempts.is_same(one, other)
    assert not attempts.may_be_sent_again(one)
    assert not attempts.is_same("", other)
