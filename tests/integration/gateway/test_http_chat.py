"""POST /v1/chat/completions against a scripted worker: answers, streams, errors, and clients that leave."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from harness.gateway import Backend, GatewayProcess, failed, finished, queued, started, tokens, until
from harness.http_client import HttpClient, chat_body, openai_client

from inferflux.common.contract.errors import Unavailable
from inferflux.v1 import generation_pb2


def times_cancelled(backend: Backend, request_id: str) -> int:
    return backend.cancelled.count(request_id)


async def test_an_answer_is_one_object(http: HttpClient, backend: Backend) -> None:
    calling = asyncio.create_task(http.chat("http-1"))
    await backend.finish(await backend.job("http-1"), n=2)
    answer = await calling
    assert answer.status == 200
    assert answer.headers["x-request-id"] == "http-1"
    said = answer.json()
    assert said["id"] == "chatcmpl-http-1"
    assert said["object"] == "chat.completion"
    assert said["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "0 1 ", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert said["usage"]["total_tokens"] == 7


async def test_a_stream_is_events_and_done(http: HttpClient, backend: Backend) -> None:
    async with http.connection() as connection:
        body = chat_body(stream=True, stream_options={"include_usage": True})
        await connection.request("POST", "/v1/chat/completions", body, {"x-request-id": "http-2"})
        job = await backend.job("http-2")
        await backend.say(job, started(), tokens(0))
        head = await connection.answer_head()
        assert head.status == 200
        assert head.headers["content-type"].startswith("text/event-stream")
        assert head.headers["x-request-id"] == "http-2"
        events = connection.events()
        deltas = [(await anext(events))["choices"][0]["delta"] for _ in range(2)]
        assert deltas == [{"role": "assistant", "content": ""}, {"content": "0 "}]
        await backend.finish(job, n=2, offset=1)
        rest = [event async for event in events]
    assert [event["choices"][0]["delta"] for event in rest[:2]] == [{"content": "1 "}, {}]
    assert rest[1]["choices"][0]["finish_reason"] == "stop"
    assert rest[2]["choices"] == []
    assert rest[2]["usage"]["completion_tokens"] == 2
    assert rest[3:] == ["[DONE]"]


async def test_the_job_is_what_the_body_asks_for(http: HttpClient, backend: Backend) -> None:
    fields = {
        "max_completion_tokens": 7,
        "temperature": 0.25,
        "seed": 5,
        "stop": "END",
        "logit_bias": {"3": -1.5},
        "service_tier": "flex",
        "user": "ignored",
    }
    calling = asyncio.create_task(http.chat("http-3", **fields))
    job = await backend.job("http-3")
    assert job.params.max_tokens == 7
    assert job.params.sampling.temperature == 0.25
    assert job.params.sampling.seed == 5
    assert list(job.params.stop) == ["END"]
    assert dict(job.params.sampling.logit_bias) == {3: -1.5}
    assert job.priority == -5
    await backend.finish(job, n=1)
    assert (await calling).json()["service_tier"] == "flex"


async def test_log_probabilities_come_with_their_tokens(http: HttpClient, backend: Backend) -> None:
    calling = asyncio.create_task(http.chat("http-4", logprobs=True, top_logprobs=1))
    job = await backend.job("http-4")
    assert job.params.sampling.logprobs == 1
    chunk = tokens(0)
    one = chunk.logprobs.add()
    one.chosen.text, one.chosen.logprob = "0 ", -0.5
    one.top.add(text="é", logprob=float("-inf"))
    await backend.say(job, chunk, finished(1))
    await backend.done("http-4")
    content = (await calling).json()["choices"][0]["logprobs"]["content"]
    assert content == [
        {
            "token": "0 ",
            "logprob": -0.5,
            "bytes": [48, 32],
            "top_logprobs": [{"token": "é", "logprob": -9999.0, "bytes": [195, 169]}],
        }
    ]


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        (b"{", 400, None, "invalid_json"),
        (b'{"model": "demo"}', 400, "messages", "missing_required_parameter"),
        (chat_body(messages=[]), 400, "messages", "invalid_value"),
        (chat_body(messages=[{"role": "king", "content": ""}]), 400, "messages[0].role", "invalid_value"),
        (
            chat_body(messages=[{"role": "user", "content": 5}]),
            400,
            "messages[0].content",
            "invalid_type",
        ),
        (chat_body(temperature="hot"), 400, "temperature", "invalid_type"),
        (chat_body(temperature=-1), 400, "temperature", "invalid_value"),
        (chat_body(top_p=-0.5), 400, "top_p", "invalid_value"),
        (chat_body(typical_p=1.5), 400, "typical_p", "invalid_value"),
        (chat_body(xtc_probability=-1), 400, "xtc_probability", "invalid_value"),
        (chat_body(dry_base=0.5), 400, "dry_base", "invalid_value"),
        (chat_body(dry_penalty_last_n=10**6), 400, "dry_penalty_last_n", "invalid_value"),
        (chat_body(dry_sequence_breakers="x"), 400, "dry_sequence_breakers", "invalid_type"),
        (chat_body(dry_sequence_breakers=["a", ""]), 400, "dry_sequence_breakers[1]", "invalid_value"),
        (chat_body(max_tokens=0), 400, "max_tokens", "invalid_value"),
        (chat_body(max_completion_tokens=0), 400, "max_completion_tokens", "invalid_value"),
        (chat_body(max_tokens=10**12), 400, "max_tokens", "invalid_value"),
        (chat_body(logit_bias={"": 1}), 400, "logit_bias", "invalid_value"),
        (chat_body(logit_bias={"999999": 1}), 400, "logit_bias[999999]", "invalid_value"),
        (chat_body(top_logprobs=3), 400, "top_logprobs", "invalid_value"),
        (chat_body(logprobs=True, top_logprobs=21), 400, "top_logprobs", "invalid_value"),
        (chat_body(n=0), 400, "n", "invalid_value"),
        (chat_body(stop=["a"] * 17), 400, "stop", "invalid_value"),
        (chat_body(service_tier="gold"), 400, "service_tier", "unsupported_value"),
        (chat_body(response_format={"type": "xml"}), 400, "response_format.type", "unsupported_value"),
        (chat_body(tools=[{"type": "drawing"}]), 400, "tools[0].type", "unsupported_value"),
        (chat_body(tools=[{"type": "custom"}]), 400, "tools[0].name", "missing_required_parameter"),
        (chat_body(modalities=["audio"]), 400, "modalities", "unsupported_value"),
        (chat_body(model="unknown"), 404, None, "model_not_found"),
    ],
)
async def test_a_bad_body_is_refused_by_name(
    http: HttpClient, backend: Backend, body: object, status: int, param: str | None, code: str
) -> None:
    answer = await http.post("/v1/chat/completions", body)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (status, param, code)
    assert answer.error["type"] == "invalid_request_error"
    assert answer.headers["x-request-id"]


async def test_unknown_fields_are_ignored(http: HttpClient, backend: Backend) -> None:
    calling = asyncio.create_task(http.chat("http-5", frobnicate={"a": 1}, metadata={"b": "c"}, store=None))
    await backend.finish(await backend.job("http-5"), n=1)
    assert (await calling).status == 200


async def test_a_request_that_fails_before_its_first_token_gets_a_status(
    http: HttpClient, backend: Backend
) -> None:
    error = Unavailable("no worker is there", reason="NO_WORKER", retry_delay_s=1.5)
    for request_id, is_stream in (("http-6", False), ("http-7", True)):
        calling = asyncio.create_task(http.chat(request_id, stream=is_stream))
        job = await backend.job(request_id)
        await backend.say(job, queued(1), failed(0, error))
        await backend.done(request_id)
        answer = await calling
        assert (answer.status, answer.headers["retry-after"]) == (503, "2")
        assert answer.error == {
            "message": "no worker is there",
            "type": "server_error",
            "param": None,
            "code": "no_worker",
        }


async def test_a_stream_that_fails_says_so_and_ends(http: HttpClient, backend: Backend) -> None:
    calling = asyncio.create_task(http.chat("http-8", stream=True))
    job = await backend.job("http-8")
    await backend.say(job, tokens(0), failed(1, Unavailable("the worker burst", reason="BURST")))
    await backend.done("http-8")
    answer = await calling
    said = [part.removeprefix("data: ") for part in answer.body.decode().split("\n\n") if part]
    assert answer.status == 200
    assert json.loads(said[-2])["error"]["code"] == "burst"
    assert said[-1] == "[DONE]"


async def test_without_a_key_or_with_an_unknown_one_nothing_is_done(gateway: GatewayProcess) -> None:
    for key, code in (("", "invalid_api_key"), ("ifx_" + "x" * 43, "invalid_api_key")):
        answer = await HttpClient(gateway.http_port, key).chat()
        assert (answer.status, answer.error["code"]) == (401, code)
        assert answer.error["type"] == "authentication_error"
        assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_malformed_request_id_is_refused(http: HttpClient) -> None:
    answer = await http.chat("inferflux.v1.>")
    assert (answer.status, answer.error["param"]) == (400, "x-request-id")


async def test_a_request_id_is_taken_once(http: HttpClient, backend: Backend) -> None:
    calling = asyncio.create_task(http.chat("http-9"))
    await backend.finish(await backend.job("http-9"), n=1)
    await calling
    answer = await http.chat("http-9")
    assert (answer.status, answer.error["code"]) == (409, "request_id_taken")


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_while_queued_is_cancelled(
    http: HttpClient, backend: Backend, is_stream: bool
) -> None:
    request_id = f"http-gone-1-{is_stream}"
    async with http.connection() as connection:
        body = chat_body(stream=is_stream)
        await connection.request("POST", "/v1/chat/completions", body, {"x-request-id": request_id})
        await backend.job(request_id)
    backend.known.add(request_id)
    await until(lambda: times_cancelled(backend, request_id) > 0)
    await backend.done(request_id)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_mid_stream_is_cancelled_and_audited(
    http: HttpClient, backend: Backend, gateway: GatewayProcess, is_stream: bool
) -> None:
    request_id = f"http-gone-2-{is_stream}"
    async with http.connection() as connection:
        body = chat_body(stream=is_stream)
        await connection.request("POST", "/v1/chat/completions", body, {"x-request-id": request_id})
        job = await backend.job(request_id)
        backend.known.add(request_id)
        await backend.say(job, started(), tokens(0))
        if is_stream:
            await connection.answer_head()
    await until(lambda: times_cancelled(backend, request_id) == 1)
    await backend.say(job, finished(1, reason=generation_pb2.FINISH_REASON_CANCELLED))
    await backend.done(request_id)
    await until(lambda: bool(gateway.audit(request_id)))
    assert gateway.audit(request_id)[0]["outcome"] == "cancelled"
    assert gateway.audit(request_id)[0]["method"] == "Chat"


async def test_a_client_that_pipelines_is_answered_once_and_noticed_when_it_leaves(
    http: HttpClient, backend: Backend
) -> None:
    """Reading would pause for the second request, and the client's end would not be read."""
    async with http.connection() as connection:
        for request_id in ("http-pipe-1", "http-pipe-2"):
            await connection.request(
                "POST", "/v1/chat/completions", chat_body(), {"x-request-id": request_id}
            )
        await backend.job("http-pipe-1")
        backend.known.add("http-pipe-1")
    await until(lambda: times_cancelled(backend, "http-pipe-1") == 1)
    assert "http-pipe-2" not in backend.jobs
    await backend.done("http-pipe-1")


async def test_a_cancelled_stream_says_so(http: HttpClient, backend: Backend) -> None:
    calling = asyncio.create_task(http.chat("http-10"))
    job = await backend.job("http-10")
    await backend.say(job, tokens(0), finished(1, reason=generation_pb2.FINISH_REASON_CANCELLED))
    await backend.done("http-10")
    answer = await calling
    assert (answer.status, answer.error["code"]) == (499, "cancelled")


async def test_openais_client_reads_an_answer_and_a_stream(
    gateway: GatewayProcess, key: str, backend: Backend
) -> None:
    async with openai_client(gateway.http_port, key) as client:
        asking = asyncio.create_task(
            client.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
                extra_headers={"x-request-id": "http-sdk-1"},
            )
        )
        await backend.finish(await backend.job("http-sdk-1"), n=2)
        answer = await asking
        assert answer.choices[0].message.content == "0 1 "
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2

        streaming = asyncio.create_task(
            client.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": "hello"}],
                stream=True,
                extra_headers={"x-request-id": "http-sdk-2"},
            )
        )
        await backend.finish(await backend.job("http-sdk-2"), n=3)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in await streaming])
        assert text == "0 1 2 "


async def test_openais_client_knows_our_errors(gateway: GatewayProcess, key: str, backend: Backend) -> None:
    async with openai_client(gateway.http_port, key) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="no", messages=[{"role": "user", "content": "x"}])
        assert caught.value.code == "model_not_found"
    async with openai_client(gateway.http_port, "ifx_no") as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()


async def test_several_choices_share_a_prompt_and_draw_with_their_own_seeds(
    http: HttpClient, backend: Backend
) -> None:
    calling = asyncio.create_task(http.chat("http-n", n=3, seed=10))
    first = await backend.job("http-n")
    assert "http-n-1" not in backend.jobs, "the others wait until the prompt is cached"
    await backend.say(first, tokens(0))
    others = [await backend.job(f"http-n-{i}") for i in (1, 2)]
    assert [job.params.sampling.seed for job in (first, *others)] == [10, 11, 12]
    assert [job.same_prompt_as for job in (first, *others)] == ["", "http-n", "http-n"]
    assert all(list(job.prompt_token_ids) == list(first.prompt_token_ids) for job in others)
    await backend.finish(first, n=1, offset=1)
    for n, job in enumerate(others, 2):
        await backend.finish(job, n=n)
    said = (await calling).json()
    assert [choice["message"]["content"] for choice in said["choices"]] == ["0 ", "0 1 ", "0 1 2 "]
    assert [choice["index"] for choice in said["choices"]] == [0, 1, 2]
    assert said["usage"]["prompt_tokens"] == 5
    assert said["usage"]["completion_tokens"] == 6


async def test_a_choice_that_fails_cancels_the_others(http: HttpClient, backend: Backend) -> None:
    calling = asyncio.create_task(http.chat("http-nf", n=2))
    first = await backend.job("http-nf")
    backend.known.add("http-nf")
    await backend.say(first, tokens(0))
    second = await backend.job("http-nf-1")
    await backend.say(second, failed(0, Unavailable("gone", reason="BURST")))
    answer = await calling
    assert (answer.status, answer.error["code"]) == (503, "burst")
    await until(lambda: times_cancelled(backend, "http-nf") == 1)
    await backend.done("http-nf")
    await backend.done("http-nf-1")
