"""OpenAI's own client, unmodified, against the whole stack and the demo model."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

import openai
import pytest
from harness import audit
from harness.client import MODEL, Client
from harness.http_client import HttpClient, openai_client
from harness.websocket_client import WebSocket
from openai.types.chat import ChatCompletionMessageParam

from inferflux.cli.stack import Stack

CAPITAL: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
async def sdk(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(int(stack.http_url.rpartition(":")[2]), stack.api_key) as client:
        yield client


@pytest.fixture
def http(stack: Stack) -> HttpClient:
    return HttpClient(int(stack.http_url.rpartition(":")[2]), stack.api_key)


async def test_a_chat_is_answered_and_streamed_alike(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0)
    answer = whole.choices[0].message.content
    assert answer is not None
    assert "Paris" in answer
    assert whole.choices[0].finish_reason == "stop"
    stream = await sdk.chat.completions.create(
        model=MODEL, messages=CAPITAL, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == answer
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_a_prompt_that_was_computed_is_told_as_cached(sdk: openai.AsyncOpenAI) -> None:
    question: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "Repeat after me: " + "the quick brown fox jumps over it. " * 8}
    ]
    cached = []
    for _ in range(2):
        answer = await sdk.chat.completions.create(model=MODEL, messages=question, max_tokens=2)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
    assert cached[1] > cached[0]


async def test_several_choices_differ_and_come_again_with_their_seed(sdk: openai.AsyncOpenAI) -> None:
    story: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a story."}]

    async def texts() -> list[str | None]:
        answer = await sdk.chat.completions.create(
            model=MODEL, messages=story, n=3, seed=3, temperature=1.5, max_tokens=12
        )
        return [choice.message.content for choice in answer.choices]

    first = await texts()
    assert len(set(first)) > 1
    assert await texts() == first


async def test_choices_find_the_prompt_of_the_first_one_cached(http: HttpClient, stack: Stack) -> None:
    text = "Count the words: " + "one two three four five six seven eight nine ten " * 6
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "n": 2, "max_tokens": 40}
    body["ignore_eos"] = True
    answer = await http.post("/v1/chat/completions", body, **{"x-request-id": "shared-prompt"})
    assert answer.status == 200
    line = await audit.line_of(stack, "shared-prompt-1")
    assert line["cached_prompt_tokens"] >= answer.json()["usage"]["prompt_tokens"] - 16


async def test_a_text_is_continued_and_echoed(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.completions.create(
        model=MODEL, prompt=["The capital", "One two"], temperature=0, echo=True, max_tokens=8
    )
    assert [choice.text[:7] for choice in whole.choices] == ["The cap", "One two"]
    stream = await sdk.completions.create(
        model=MODEL, prompt="The capital", temperature=0, echo=True, max_tokens=8, stream=True
    )
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text
    scored = await sdk.completions.create(model=MODEL, prompt="The capital", logprobs=2, max_tokens=8)
    logprobs = scored.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == scored.choices[0].text


async def test_a_text_becomes_tokens_and_a_text_again(http: HttpClient) -> None:
    counted = (await http.post("/v1/tokenize", {"model": MODEL, "prompt": "Hello there"})).json()
    back = await http.post("/v1/detokenize", {"model": MODEL, "tokens": counted["tokens"]})
    assert "Hello there" in back.json()["prompt"]


async def test_log_probabilities_are_those_of_the_text(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model=MODEL, messages=CAPITAL, temperature=0, logprobs=True, top_logprobs=2
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in choice.logprobs.content)


async def test_models_and_errors_are_openais(sdk: openai.AsyncOpenAI) -> None:
    assert MODEL in [model.id async for model in sdk.models.list()]
    with pytest.raises(openai.NotFoundError):
        await sdk.chat.completions.create(model=f"{MODEL}:nothing", messages=CAPITAL)
    other = await sdk.chat.completions.create(model="of-another-server", messages=CAPITAL, max_tokens=1)
    assert other.model == MODEL
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=-1)
    assert caught.value.param == "temperature"
    long: list[ChatCompletionMessageParam] = [{"role": "user", "content": "word " * 20_000}]
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(model=MODEL, messages=long)
    assert caught.value.param == "messages"


async def test_a_stream_that_is_closed_frees_its_slot(
    sdk: openai.AsyncOpenAI, client: Client, stack: Stack
) -> None:
    request_id = f"closed-{uuid.uuid4().hex}"
    stream = await sdk.chat.completions.create(
        model=MODEL,
        messages=CAPITAL,
        stream=True,
        extra_body={"ignore_eos": True},
        extra_headers={"x-request-id": request_id},
    )
    async for _ in stream:
        break
    await stream.close()
    await client.until_idle()
    assert await audit.outcome_of(stack, request_id) == "cancelled"


async def test_an_answer_that_is_given_up_frees_its_slot(
    sdk: openai.AsyncOpenAI, client: Client, stack: Stack
) -> None:
    request_id = f"given-up-{uuid.uuid4().hex}"
    asked = sdk.chat.completions.create(
        model=MODEL,
        messages=CAPITAL,
        extra_body={"ignore_eos": True},
        extra_headers={"x-request-id": request_id},
    )
    waiting = asyncio.ensure_future(asked)
    await client.until_status(lambda s: s.scheduler.running == 1)
    waiting.cancel()
    await client.until_idle()
    assert await audit.outcome_of(stack, request_id) == "cancelled"


async def test_an_unmodified_curl_line_works(http: HttpClient) -> None:
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
    answer = await http.post("/v1/chat/completions", body)
    assert answer.status == 200
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_an_answer_matches_its_schema(sdk: openai.AsyncOpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 20}, "is_large": {"type": "boolean"}},
        "required": ["capital", "is_large"],
        "additionalProperties": False,
    }
    answer = await sdk.chat.completions.create(
        model=MODEL,
        messages=CAPITAL,
        temperature=0,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": schema, "strict": True},
        },
    )
    said = json.loads(answer.choices[0].message.content or "")
    assert isinstance(said["capital"], str)
    assert isinstance(said["is_large"], bool)


async def test_a_response_is_answered_and_streamed_alike(sdk: openai.AsyncOpenAI) -> None:
    question = "What is the capital of France?"
    whole = await sdk.responses.create(model=MODEL, input=question, temperature=0)
    assert "Paris" in whole.output_text
    stream = await sdk.responses.create(model=MODEL, input=question, temperature=0, stream=True)
    text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
    assert text == whole.output_text


async def test_a_websocket_gives_what_generate_gives(http: HttpClient) -> None:
    body = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12, "stream": False}
    whole = (await http.post("/generate", body)).json()
    async with WebSocket(http.port, key=http.key) as socket:
        socket.send(body)
        messages = await socket.until_end()
    assert [i for message in messages for i in message.get("token_ids", [])] == whole["token_ids"]
    assert "".join(message.get("text", "") for message in messages) == whole["text"]
