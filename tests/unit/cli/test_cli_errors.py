"""What a command says of an error, beside its message."""

from __future__ import annotations

import pytest

from inferflux.cli.reach.errors import in_words
from inferflux.common.contract.errors import (
    InferFluxError,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidArgument("unknown scope", field="scopes[1]"), "unknown scope (scopes[1])"),
        (InvalidArgument("overlap_s is too long", field="overlap_s"), "overlap_s is too long"),
        (ResourceExhausted("4 are used", retry_delay_s=58.2), "4 are used; try again in 58.2s"),
        (ResourceExhausted("30 are used", retry_delay_s=9636), "30 are used; try again in 2h40m36s"),
        (ResourceExhausted("it never fits", retry_delay_s=None), "it never fits"),
        (Unavailable("away", retry_delay_s=1.0), "away"),
    ],
)
def test_an_error_is_a_line_that_leaves_nothing_out(error: InferFluxError, said: str) -> None:
    assert in_words(error) == said


def test_notes_of_an_error_follow_it() -> None:
    error = Unavailable("the connection was lost")
    error.add_note("ask again")
    assert in_words(error) == "the connection was lost\nask again"


def test_a_prompt_that_guardrails_refuse_is_told_the_rule() -> None:
    error = PermissionDenied("guardrails do not let this prompt pass")
    error.headers = {"x-inferflux-guardrail": "acme/ blocked[0]"}
    assert in_words(error) == "guardrails do not let this prompt pass (acme/ blocked[0])"
