"""Log-probabilities of prompts, words that are not said, and shortest answers, over HTTP on all processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from harness.client import MODEL
from harness.http_client import openai_client

from inferflux.cli.stack import Stack

pytestmark = pytest.mark.e2e

PROMPT = "Once upon a time"
# Rows of a prefill and of single steps are rounded in another way.
TOLERANCE = 0.02


@pytest.fixture
async def sdk(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(int(stack.http_url.rpartition(":")[2]), stack.api_key) as client:
        yield client


async def complete(sdk: openai.AsyncOpenAI, prompt: Any, **options: Any) -> Any:
    answer = await sdk.completions.create(model=MODEL, prompt=prompt, temperature=0, **options)
    return answer.choices[0]


async def said_tokens(sdk: openai.AsyncOpenAI, text: str) -> list[int]:
    found: Any = await sdk.post("/tokenize", body={"model": MODEL, "prompt": text}, cast_to=object)
    return [int(token) for token in found["tokens"]]


async def test_a_prompt_has_the_logarithms_that_its_tokens_had_when_they_were_said(
    sdk: openai.AsyncOpenAI,
) -> None:
    said = await complete(sdk, PROMPT, max_tokens=90, logprobs=0)
    n_said = len(said.logprobs.tokens)
    prompt = await said_tokens(sdk, PROMPT)
    whole = prompt + (await said_tokens(sdk, PROMPT + said.text))[len(prompt) :]
    assert len(whole) == len(prompt) + n_said
    # The first one computes all of it, and the others find it cached, or run beside each other.
    first = await complete(sdk, whole, max_tokens=1, logprobs=2, echo=True)
    others = await asyncio.gather(
        *(complete(sdk, whole, max_tokens=1, logprobs=2, echo=True) for _ in range(4))
    )
    for choice in (first, *others):
        scored = choice.logprobs
        assert scored.token_logprobs[0] is None
        assert len(scored.tokens) == len(whole) + 1
        assert scored.tokens[len(prompt) : -1] == said.logprobs.tokens
        expected = pytest.approx(said.logprobs.token_logprobs, abs=TOLERANCE)
        assert scored.token_logprobs[len(prompt) : -1] == expected
        assert all(max(top, key=top.__getitem__) == token for token, top in _said_of(scored, len(prompt)))
        for token, offset in zip(scored.tokens, scored.text_offset, strict=True):
            assert choice.text[offset:].startswith(token)


def _said_of(scored: Any, first: int) -> list[tuple[str, dict[str, float]]]:
    return list(zip(scored.tokens[first:], scored.top_logprobs[first:], strict=True))


async def test_a_prompt_can_be_scored_without_an_answer(sdk: openai.AsyncOpenAI) -> None:
    alone = await complete(sdk, PROMPT, max_tokens=0, logprobs=1, echo=True)
    beside = await complete(sdk, PROMPT, max_tokens=1, logprobs=1, echo=True)
    assert (alone.text, alone.finish_reason) == (PROMPT, "length")
    assert alone.logprobs.tokens == beside.logprobs.tokens[:-1]


async def test_several_prompts_are_scored_in_one_call_and_streamed_alike(sdk: openai.AsyncOpenAI) -> None:
    prompts = [PROMPT, "The king said"]
    options: dict[str, Any] = {"max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "n": 2}
    answer = await sdk.completions.create(model=MODEL, prompt=prompts, **options)
    assert [choice.text.startswith(prompts[i // 2]) for i, choice in enumerate(answer.choices)] == [True] * 4
    streamed: dict[int, list[str]] = {i: [] for i in range(4)}
    async for chunk in await sdk.completions.create(model=MODEL, prompt=prompts, stream=True, **options):
        for choice in chunk.choices:
            if choice.logprobs is not None:
                streamed[choice.index] += choice.logprobs.tokens or []
    assert [choice.logprobs and choice.logprobs.tokens for choice in answer.choices] == list(
        streamed.values()
    )


async def test_a_prompt_that_is_too_long_to_be_told_is_refused_by_the_clients_name(
    sdk: openai.AsyncOpenAI,
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await complete(sdk, [300] * 2000, max_tokens=1, logprobs=20, echo=True)
    assert caught.value.param == "logprobs"


async def test_a_word_that_is_banned_is_not_said(sdk: openai.AsyncOpenAI) -> None:
    plain = await complete(sdk, PROMPT, max_tokens=20)
    word = plain.text.split()[2]
    for banned in ({"bad_words": [word]}, {"logit_bias": [[f" {word}", -100]]}):
        choice = await complete(sdk, PROMPT, max_tokens=20, extra_body=banned)
        assert word not in choice.text.split()
        assert choice.text != plain.text


async def test_an_answer_is_as_long_as_it_has_to_be(sdk: openai.AsyncOpenAI) -> None:
    short = await complete(sdk, PROMPT, max_tokens=60, stop=["."], logprobs=0)
    assert short.finish_reason == "stop"
    long = await complete(sdk, PROMPT, max_tokens=60, stop=["."], logprobs=0, extra_body={"min_tokens": 40})
    assert len(long.logprobs.tokens) >= 40
    assert long.text.startswith(short.text)


async def test_a_vocabulary_without_tokens_for_gaps_fills_none(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await complete(sdk, PROMPT, suffix="The end.")
    assert caught.value.param == "suffix"
