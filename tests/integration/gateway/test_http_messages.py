"""POST /v1/messages against a scripted worker: how it begins, fails, is refused and left."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from harness.gateway import Backend, GatewayProcess, failed, queued, started, tokens, until
from harness.http_client import Answer, HttpClient

from inferflux.common.contract.errors import Unavailable

PATH = "/v1/messages"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]} | fields


def error_of(answer: Answer) -> tuple[int, str, str]:
    said = answer.json()
    assert said["type"] == "error"
    assert said["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    return answer.status, said["error"]["type"], said["error"]["message"]


async def test_the_job_is_what_the_body_asks_for(http: HttpClient, backend: Backend) -> None:
    fields = {"temperature": 0.25, "top_k": 3, "stop_sequences": ["END"], "metadata": {"user_id": "u"}}
    calling = asyncio.create_task(
        http.post(f"{PATH}?beta=true", body(**fields), **{"x-request-id": "msg-1", "anthropic-beta": "a,b"})
    )
    job = await backend.job("msg-1")
    assert (job.params.max_tokens, list(job.params.stop)) == (9, ["END"])
    assert (job.params.sampling.temperature, job.params.sampling.top_k) == (0.25, 3)
    await backend.finish(job, n=2)
    answer = await calling
    assert answer.json()["content"] == [{"type": "text", "text": "0 1 "}]
    assert answer.headers["request-id"] == "msg-1"


async def test_a_stream_that_fails_says_so_and_ends(http: HttpClient, backend: Backend) -> None:
    calling = asyncio.create_task(http.post(PATH, body(stream=True), **{"x-request-id": "msg-2"}))
    job = await backend.job("msg-2")
    await backend.say(job, started(), tokens(0), failed(1, Unavailable("the worker burst", reason="BURST")))
    await backend.done("msg-2")
    answer = await calling
    events = [part.partition("\n")[::2] for part in answer.body.decode().split("\n\n") if part]
    assert [name for name, _ in events][:2] == ["event: message_start", "event: ping"]
    assert events[-1][0] == "event: error"
    said = json.loads(events[-1][1].removeprefix("data: "))
    assert said["error"] == {"type": "overloaded_error", "message": "the worker burst"}
    assert said["request_id"] == "msg-2"


async def test_a_request_that_fails_before_its_first_token_gets_a_status(
    http: HttpClient, backend: Backend
) -> None:
    calling = asyncio.create_task(http.post(PATH, body(stream=True), **{"x-request-id": "msg-3"}))
    job = await backend.job("msg-3")
    away = Unavailable("no worker is there", reason="NO_WORKER", retry_delay_s=1.5)
    await backend.say(job, queued(1), failed(0, away))
    await backend.done("msg-3")
    answer = await calling
    assert error_of(answer) == (503, "overloaded_error", "no worker is there")
    assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
async def test_a_key_comes_in_either_header_and_a_stranger_is_refused(
    gateway: GatewayProcess, backend: Backend, key: str, path: str
) -> None:
    stranger = HttpClient(gateway.http_port, "")
    assert error_of(await stranger.post(path, body()))[:2] == (401, "authentication_error")
    answer = await stranger.post(path, body(messages="no"), **{"x-api-key": key})
    assert error_of(answer)[:2] == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("fields", "status", "kind", "said"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"temperature": -1}, 400, "invalid_request_error", "temperature"),
        ({"stop_sequences": ["a"] * 17}, 400, "invalid_request_error", "stop_sequences"),
        ({"model": "unknown"}, 404, "not_found_error", "unknown"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}
                ]
            },
            400,
            "invalid_request_error",
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": "a " * 900}]}, 400, "invalid_request_error", "too long"),
    ],
)
async def test_a_bad_body_is_refused_in_anthropics_shape(
    http: HttpClient, backend: Backend, fields: dict[str, Any], status: int, kind: str, said: str
) -> None:
    found = error_of(await http.post(PATH, body(**fields)))
    assert found[:2] == (status, kind)
    assert said in found[2]


async def test_a_path_below_that_is_not_there_and_another_method_are_refused_alike(http: HttpClient) -> None:
    assert error_of(await http.post(f"{PATH}/batches", body()))[:2] == (404, "not_found_error")
    assert error_of(await http.get(PATH))[:2] == (405, "invalid_request_error")


async def test_hosted_tools_are_skipped_and_named(http: HttpClient, backend: Backend) -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    calling = asyncio.create_task(http.post(PATH, body(tools=tools), **{"x-request-id": "msg-4"}))
    await backend.finish(await backend.job("msg-4"), n=1)
    assert (await calling).headers["x-inferflux-skipped"] == "web_search_20250305"


async def test_tokens_are_counted_as_a_message_would_have_them(http: HttpClient, backend: Backend) -> None:
    calling = asyncio.create_task(http.post(PATH, body(system="s"), **{"x-request-id": "msg-5"}))
    job = await backend.job("msg-5")
    await backend.finish(job, n=1)
    await calling
    counted = await http.post(f"{PATH}/count_tokens", body(system="s"))
    assert counted.json() == {"input_tokens": len(job.prompt_token_ids)}
    said = "x-anthropic-billing-header: cch=8;\ns"
    assert (await http.post(f"{PATH}/count_tokens", body(system=said))).json() == counted.json()


async def test_models_have_anthropics_shape_for_its_clients(http: HttpClient, backend: Backend) -> None:
    version = {"anthropic-version": "2023-06-01"}
    listed = (await http.get("/v1/models", **version)).json()
    one = (await http.get("/v1/models/demo", **version)).json()
    assert listed["data"] == [one]
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("demo", "demo", False)
    assert (one["type"], one["display_name"]) == ("model", "demo")
    assert error_of(await http.get("/v1/models/unknown", **version))[:2] == (404, "not_found_error")


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_is_cancelled_and_audited(
    http: HttpClient, backend: Backend, gateway: GatewayProcess, is_stream: bool
) -> None:
    request_id = f"msg-gone-{is_stream}"
    async with http.connection() as connection:
        await connection.request("POST", PATH, body(stream=is_stream), {"x-request-id": request_id})
        job = await backend.job(request_id)
        backend.known.add(request_id)
        await backend.say(job, started(), tokens(0))
        if is_stream:
            await connection.answer_head()
    await until(lambda: backend.cancelled.count(request_id) == 1)
    await backend.done(request_id)
    await until(lambda: bool(gateway.audit(request_id)))
    assert gateway.audit(request_id)[0]["tenant"] == "acme"
