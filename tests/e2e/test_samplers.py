"""Samplers beyond top-k and top-p, as clients ask for them: each changes an answer; bad values are refused.

That they do what llama.cpp's do is shown without a model, in the unit tests of the worker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import openai
import pytest
from harness.client import MODEL, Client, prompt
from harness.http_client import openai_client

from inferflux.cli.stack import Stack
from inferflux.common.contract.errors import InvalidArgument, from_rpc

pytestmark = pytest.mark.e2e

# Nothing is filtered.
PLAIN: dict[str, Any] = {"temperature": 1.5, "seed": 7, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
PROMPT = "one two three one two three one two"
TOKENS = 48
SAMPLERS: dict[str, dict[str, Any]] = {
    "typical_p": {"typical_p": 0.2},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.001},
    "dry": {"dry_multiplier": 20.0, "dry_allowed_length": 1, "dry_penalty_last_n": -1},
    "dynatemp": {"dynatemp_range": 1.4},
    "top_n_sigma": {"top_n_sigma": 0.5},
}
# A value out of its range, by field.
BAD: dict[str, float] = {
    "typical_p": 1.5,
    "xtc_probability": -0.1,
    "xtc_threshold": 2.0,
    "dry_multiplier": -1.0,
    "dry_base": 0.5,
    "dry_allowed_length": -1,
    "dry_penalty_last_n": -2,
    "dynatemp_range": -1.0,
    "dynatemp_exponent": 1000.0,
    "top_n_sigma": 1000.0,
}


@pytest.fixture
async def sdk(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(int(stack.http_url.rpartition(":")[2]), stack.api_key) as client:
        yield client


async def said(sdk: openai.AsyncOpenAI, **sampling: Any) -> str:
    """A completion's text."""
    options = PLAIN | sampling
    own = {name: options.pop(name) for name in ("temperature", "seed", "top_p")}
    answer = await sdk.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=TOKENS, extra_body={"ignore_eos": True, **options}, **own
    )
    text: str = answer.choices[0].text
    return text


async def test_each_sampler_changes_an_answer_over_http(sdk: openai.AsyncOpenAI) -> None:
    await said(sdk)  # from here on the prompt is cached: all answers are computed in the same batches
    plain = await said(sdk)
    assert await said(sdk) == plain
    answers = {name: await said(sdk, **sampler) for name, sampler in SAMPLERS.items()}
    assert {name for name, answer in answers.items() if answer == plain} == set()


async def test_each_sampler_changes_an_answer_over_grpc(client: Client) -> None:
    async def ids(**sampling: Any) -> list[int]:
        return (await client.ask(prompt(PROMPT, max_tokens=TOKENS, **(PLAIN | sampling)))).token_ids

    await ids()
    plain = await ids()
    assert await ids() == plain
    answers = {name: await ids(**sampler) for name, sampler in SAMPLERS.items()}
    assert {name for name, answer in answers.items() if answer == plain} == set()


@pytest.mark.parametrize(("field", "value"), BAD.items(), ids=BAD)
async def test_a_value_out_of_its_range_is_refused_by_name(
    sdk: openai.AsyncOpenAI, client: Client, field: str, value: float
) -> None:
    sampling: dict[str, Any] = {field: value}
    with pytest.raises(openai.BadRequestError) as over_http:
        await said(sdk, **sampling)
    assert over_http.value.param == field
    with pytest.raises(grpc.aio.AioRpcError) as over_grpc:
        await client.ask(prompt(PROMPT, max_tokens=1, **sampling))
    refused = from_rpc(over_grpc.value)
    assert isinstance(refused, InvalidArgument)
    assert refused.field == f"params.sampling.{field}"
