"""What limits may be, and what a caller over one is told."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.policy.decide.limits.rules import MOST, kind_subject, over_limit, parse_limits, parse_subject

KEY = "key:key_" + "0" * 16


@pytest.mark.parametrize(
    "text", [KEY, "key:*", "tenant:acme", "tenant:*", "model:*", "model:demo", "model:a:b /c"]
)
def test_a_subject_may_be(text: str) -> None:
    assert parse_subject(text) == text
    assert parse_subject(kind_subject(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "acme",
        "key:",
        "key:acme",
        "tenant:A",
        "tenant:**",
        "model:",
        "user:x",
        "model:" + "m" * 257,
        "model:a\x1b[2J",
    ],
)
def test_a_subject_may_not_be(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_subject(text, field="rate_limit.subject")
    assert caught.value.field == "rate_limit.subject"


def test_a_limit_of_0_is_none() -> None:
    assert parse_limits({"tokens_per_day": 0, "concurrent_requests": 3}, field="f") == {
        "concurrent_requests": 3
    }


def test_a_limit_out_of_range_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_limits({"tokens_per_day": MOST + 1}, field="rate_limit")
    assert caught.value.field == "rate_limit.tokens_per_day"


def refused(name: str, *, wait_ms: int, subject: str = "tenant:acme") -> dict[str, object]:
    return {"subject": subject, "name": name, "limit": 60, "used": 59, "wait_ms": wait_ms, "reset_ms": 5}


def test_a_caller_is_told_which_limit_it_is_and_when_to_try_again() -> None:
    error = over_limit(refused("requests_per_minute", wait_ms=2500), asked_tokens=0)
    assert (error.reason, error.retry_delay_s) == ("RATE_LIMITED", 2.5)
    assert error.message == "tenant acme may have 60 requests in a minute; 59 are used"


def test_a_daily_quota_has_a_reason_of_its_own() -> None:
    error = over_limit(refused("tokens_per_day", wait_ms=60_000), asked_tokens=7)
    assert (error.reason, error.retry_delay_s) == ("QUOTA_USED_UP", 60.0)
    assert error.message == "tenant acme may have 60 tokens today; 59 are used, and this asks for 7"


def test_what_can_never_fit_is_not_to_be_tried_again() -> None:
    error = over_limit(refused("tokens_per_minute", wait_ms=-1), asked_tokens=100)
    assert (error.reason, error.retry_delay_s) == ("REQUEST_BEYOND_LIMIT", None)
    assert "asks for 100" in error.message
