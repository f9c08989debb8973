"""What a settled request may say, and what it adds."""

from __future__ import annotations

from typing import Any

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.policy.decide.usage import SettledRequest
from inferflux.v1 import generation_pb2, policy_pb2


def settle_request(**changes: Any) -> policy_pb2.SettleRequest:
    fields: dict[str, Any] = {
        "request_id": "r-1",
        "attempt_id": "a1",
        "tenant": "acme",
        "key_id": "key_" + "0" * 16,
        "model": "demo",
        "outcome": "stop",
        "usage": generation_pb2.Usage(
            prompt_tokens=12, cached_prompt_tokens=8, completion_tokens=30, cached_completion_tokens=20
        ),
    }
    return policy_pb2.SettleRequest(**(fields | changes))


def test_a_settled_request_adds_itself_and_its_tokens() -> None:
    assert SettledRequest.parse(settle_request()).counters() == {
        "requests": 1,
        "prompt_tokens": 12,
        "cached_prompt_tokens": 8,
        "completion_tokens": 30,
        "cached_completion_tokens": 20,
    }


def test_a_request_that_never_ran_adds_itself_alone() -> None:
    counters = SettledRequest.parse(settle_request(usage=None, outcome="deadline_exceeded")).counters()
    assert counters == {
        "requests": 1,
        "prompt_tokens": 0,
        "cached_prompt_tokens": 0,
        "completion_tokens": 0,
        "cached_completion_tokens": 0,
    }


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("request_id", {"request_id": ""}),
        ("request_id", {"request_id": "a b"}),
        ("request_id", {"request_id": "a" * 65}),
        ("attempt_id", {"attempt_id": "a}:b{"}),
        ("tenant", {"tenant": ""}),
        ("tenant", {"tenant": "a}:b{"}),
        ("key_id", {"key_id": "mine"}),
        ("model", {"model": "m" * 257}),
        ("outcome", {"outcome": ""}),
        ("outcome", {"outcome": "STOP"}),
        ("outcome", {"outcome": "o" * 65}),
        (
            "usage.cached_prompt_tokens",
            {"usage": generation_pb2.Usage(prompt_tokens=1, cached_prompt_tokens=2)},
        ),
        (
            "usage.cached_completion_tokens",
            {"usage": generation_pb2.Usage(completion_tokens=1, cached_completion_tokens=2)},
        ),
    ],
)
def test_a_wrong_field_is_named(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        SettledRequest.parse(settle_request(**changes))
    assert caught.value.field == field
