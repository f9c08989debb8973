"""Facts for tests of decision backends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inferflux.policy.decide.decisions.facts import Facts, Step

CALL = Facts(
    Step.ADMIT,
    "InferenceService/Chat",
    "acme",
    "key_" + "0" * 16,
    ("inference", "models"),
    ("support",),
    scope="inference",
)
RESERVATION = replace(
    CALL, step=Step.RESERVE, scope="", model="small", priority=2, prompt_tokens=10, max_tokens=20
)


def call(**changes: Any) -> Facts:
    return replace(CALL, **changes)


def reservation(**changes: Any) -> Facts:
    return replace(RESERVATION, **changes)
