"""POST /v1/completions, /v1/tokenize and /v1/detokenize against a scripted worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness.gateway import Backend, Client, tokens, until
from harness.http_client import HttpClient

from inferflux.common.calls import grpc_client
from inferflux.v1 import inference_pb2

PATH = "/v1/completions"


async def completion(http: HttpClient, request_id: str, **fields: Any) -> Any:
    body = {"model": "demo", "prompt": "hello"} | fields
    return await http.post(PATH, body, **{"x-request-id": request_id})


async def test_a_prompt_is_continued(http: HttpClient, backend: Backend) -> None:
    calling = asyncio.create_task(completion(http, "cmpl-1", echo=True))
    job = await backend.job("cmpl-1")
    assert job.params.max_tokens == 16
    await backend.finish(job, n=2)
    said = (await calling).json()
    assert (said["id"], said["object"]) == ("cmpl-cmpl-1", "text_completion")
    assert said["choices"][0]["text"] == "hello0 1 "


async def test_prompts_are_answered_in_their_order(http: HttpClient, backend: Backend) -> None:
    calling = asyncio.create_task(completion(http, "cmpl-2", prompt=["he", "hello"], n=2))
    firsts = [await backend.job(request_id) for request_id in ("cmpl-2", "cmpl-2-2")]
    assert not {"cmpl-2-1", "cmpl-2-3"} & backend.jobs.keys()
    for job in firsts:
        await backend.say(job, tokens(0))
    seconds = [await backend.job(request_id) for request_id in ("cmpl-2-1", "cmpl-2-3")]
    assert list(seconds[1].prompt_token_ids) == list(firsts[1].prompt_token_ids)
    for n, job in enumerate(seconds, 2):
        await backend.finish(job, n=n)
    for job in firsts:
        await backend.finish(job, n=1, offset=1)
    said = (await calling).json()
    assert [choice["text"] for choice in said["choices"]] == ["0 ", "0 1 ", "0 ", "0 1 2 "]
    assert said["usage"]["prompt_tokens"] == 10


async def test_token_ids_are_echoed_as_their_text(http: HttpClient, backend: Backend) -> None:
    ids = (await http.post("/v1/tokenize", {"model": "demo", "prompt": "hello"})).json()["tokens"]
    calling = asyncio.create_task(completion(http, "cmpl-3", prompt=ids, echo=True, stream=True))
    job = await backend.job("cmpl-3")
    assert list(job.prompt_token_ids) == ids
    await backend.finish(job, n=1)
    answer = await calling
    assert b'"text":"hello' in answer.body or b'hello0 "' in answer.body
    assert answer.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [999_999]}, "prompt[0]", "invalid_value"),
        ({"prompt": [999_999], "echo": True}, "prompt[0]", "invalid_value"),
        ({"prompt": [[1], [1, 999_999]], "echo": True}, "prompt[1][1]", "invalid_value"),
        ({"prompt": "word " * 5000}, "prompt", "context_length_exceeded"),
        ({"suffix": "x", "echo": True}, "suffix", "unsupported_value"),
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"prompt": ["a"] * 100, "n": 2}, "n", "invalid_value"),
        ({"max_tokens": -2}, "max_tokens", "invalid_value"),
    ],
)
async def test_a_bad_body_is_refused_by_name(
    http: HttpClient, backend: Backend, fields: dict[str, Any], param: str, code: str
) -> None:
    answer = await http.post(PATH, {"model": "demo", "prompt": "hello"} | fields)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, param, code)


async def test_a_choice_that_leaves_takes_the_others_along(http: HttpClient, backend: Backend) -> None:
    async with http.connection() as connection:
        body = {"model": "demo", "prompt": ["he", "hello"]}
        await connection.request("POST", PATH, body, {"x-request-id": "cmpl-gone"})
        for request_id in ("cmpl-gone", "cmpl-gone-1"):
            await backend.job(request_id)
            backend.known.add(request_id)
    for request_id in ("cmpl-gone", "cmpl-gone-1"):
        await until(lambda name=request_id: backend.cancelled.count(name) == 1)  # type: ignore[misc]
        await backend.done(request_id)


async def test_tokens_become_their_text_again(http: HttpClient, backend: Backend) -> None:
    text = "What is 2 + 2? é"
    answer = (await http.post("/v1/tokenize", {"model": "demo", "prompt": text})).json()
    assert answer["count"] == len(answer["tokens"]) > 3
    assert answer["max_model_len"] == 512
    again = await http.post("/v1/detokenize", {"model": "demo", "tokens": answer["tokens"]})
    assert text in again.json()["prompt"]


async def test_a_conversation_is_tokenized_as_a_chat_would_be(http: HttpClient, backend: Backend) -> None:
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hello"}]
    counted = (await http.post("/v1/tokenize", {"model": "demo", "messages": messages})).json()["tokens"]
    calling = asyncio.create_task(http.chat("tok-1", messages=messages))
    job = await backend.job("tok-1")
    assert list(job.prompt_token_ids) == counted
    older = [{"role": "system", "content": "be brief"}, messages[1]]
    same = await http.post("/v1/tokenize", {"model": "demo", "messages": older})
    assert same.json()["tokens"] == counted
    await backend.finish(job, n=1)
    await calling


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/tokenize", {}, "prompt"),
        ("/v1/tokenize", {"prompt": ""}, "prompt"),
        ("/v1/tokenize", {"messages": []}, "messages"),
        ("/v1/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/v1/detokenize", {"tokens": [1] * 513}, "tokens"),
        ("/v1/detokenize", {}, "tokens"),
    ],
)
async def test_what_cannot_be_tokenized_is_refused_by_name(
    http: HttpClient, backend: Backend, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post(path, {"model": "demo"} | fields)
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_grpc_tokenizes_alike(http: HttpClient, client: Client, backend: Backend, key: str) -> None:
    over_http = (await http.post("/v1/tokenize", {"model": "demo", "prompt": "hello"})).json()
    metadata = grpc_client.outgoing(api_key=key)
    request = inference_pb2.TokenizeRequest(model="demo", text="hello")
    answer = await client.gateway.inference.Tokenize(request, metadata=metadata)
    assert list(answer.token_ids) == over_http["tokens"]
    back = inference_pb2.DetokenizeRequest(model="demo", token_ids=answer.token_ids)
    assert "hello" in (await client.gateway.inference.Detokenize(back, metadata=metadata)).text
