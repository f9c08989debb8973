"""What OPA is told, and which answers are decisions."""

from __future__ import annotations

import pytest
from harness.decisions import call, reservation

from inferflux.policy.decide.decisions.facts import PERMITTED, BackendFailed, Decision
from inferflux.policy.decide.decisions.opa import input_of, parse_answer


def test_a_calls_input_says_who_calls_what() -> None:
    assert input_of(call()) == {
        "step": "admit",
        "method": "InferenceService/Chat",
        "tenant": "acme",
        "key_id": "key_" + "0" * 16,
        "scopes": ("inference", "models"),
        "roles": ("support",),
        "issuer": "",
        "subject": "",
        "scope": "inference",
    }


def test_a_reservations_input_says_of_which_model_how_urgent_and_how_much() -> None:
    about = input_of(reservation())
    assert about | {"model": "small", "priority": 2, "prompt_tokens": 10, "max_tokens": 20} == about
    assert about["step"] == "reserve"
    assert "text" not in about
    assert input_of(reservation(text="hi"))["text"] == "hi"


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        ({"result": True}, PERMITTED),
        ({"result": False}, Decision(is_permitted=False)),
        ({"result": {"allow": True, "reason": "unused"}, "decision_id": "x"}, PERMITTED),
        ({"result": {"allow": False}}, Decision(is_permitted=False)),
        ({"result": {"allow": False, "reason": "no"}}, Decision(is_permitted=False, reason="no")),
        ({"result": {"allow": False, "reason": ["no"]}}, Decision(is_permitted=False)),
    ],
)
def test_a_boolean_and_an_object_with_allow_are_decisions(answer: object, decision: Decision) -> None:
    assert parse_answer(answer) == decision


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"code": "internal_error"},
        [],
        None,
        True,
        "true",
        {"result": None},
        {"result": 1},
        {"result": "true"},
        {"result": {}},
        {"result": {"allow": 1}},
        {"result": {"allow": "false"}},
        {"result": [True]},
    ],
)
def test_whatever_is_no_clear_yes_or_no_is_no_decision(answer: object) -> None:
    with pytest.raises(BackendFailed):
        parse_answer(answer)
