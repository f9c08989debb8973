"""What a command says of an error, beside its message."""

from __future__ import annotations

from typing import NoReturn, Self, cast

import pytest

from inferflux.cli.reach.client import Client
from inferflux.cli.reach.errors import in_words
from inferflux.cli.reach.target import Target
from inferflux.client import AsyncStream
from inferflux.client.retrying import GATEWAY_LOST
from inferflux.common.contract.errors import (
    InferFluxError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidArgument("unknown scope", field="scopes[1]"), "unknown scope (scopes[1])"),
        (InvalidArgument("overlap_s is too long", field="overlap_s"), "overlap_s is too long"),
        (
            InvalidArgument("which host's store is meant?", field="host_id"),
            "which host's store is meant? (--host)",
        ),
        (NotFound("there is none", reason="UNKNOWN_MODEL"), "there is none; `inferctl models` lists them"),
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


class _LostStream:
    """A stream whose gateway is killed before the first chunk."""

    request_id = "r-7"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> NoReturn:
        raise Unavailable("the connection was lost", reason=GATEWAY_LOST)


async def test_a_stream_that_lost_its_gateway_says_how_to_read_its_answer() -> None:
    async with Client(Target("127.0.0.1:1", "key")) as client:
        with pytest.raises(Unavailable) as caught:
            await anext(client._chunks(cast("AsyncStream", _LostStream()), is_own=True))
    assert "may go on: `inferctl resume r-7`" in in_words(caught.value)


def test_a_prompt_that_guardrails_refuse_is_told_the_rule() -> None:
    error = PermissionDenied("guardrails do not let this prompt pass")
    error.headers = {"x-inferflux-guardrail": "acme/ blocked[0]"}
    assert in_words(error) == "guardrails do not let this prompt pass (acme/ blocked[0])"
