"""Ollama's API against a scripted worker: lines, errors within them, keys, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from harness.gateway import Backend, GatewayProcess, failed, started, tokens, until
from harness.http_client import Answer, HttpClient

from inferflux.common.contract.errors import Unavailable


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "demo:latest", "messages": [{"role": "user", "content": "hello"}]} | fields


def lines(answer: Answer) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.body.splitlines()]


async def test_an_answer_is_lines_unless_one_object_is_asked_for(http: HttpClient, backend: Backend) -> None:
    streaming = asyncio.create_task(http.post("/api/chat", body(), **{"x-request-id": "line-1"}))
    await backend.finish(await backend.job("line-1"), n=2)
    told = lines(await streaming)
    assert "".join(line["message"]["content"] for line in told) == "0 1 "
    assert [line["done"] for line in told][-2:] == [False, True]
    whole = asyncio.create_task(http.post("/api/chat", body(stream=False), **{"x-request-id": "line-2"}))
    await backend.finish(await backend.job("line-2"), n=2)
    answer = (await whole).json()
    assert (answer["message"]["content"], answer["model"]) == ("0 1 ", "demo:latest")


async def test_a_stream_that_fails_says_so_in_its_last_line(http: HttpClient, backend: Backend) -> None:
    calling = asyncio.create_task(http.post("/api/chat", body(), **{"x-request-id": "line-3"}))
    job = await backend.job("line-3")
    await backend.say(job, started(), tokens(0), failed(1, Unavailable("the worker burst", reason="BURST")))
    await backend.done("line-3")
    assert lines(await calling)[-1] == {"error": "the worker burst"}


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/embed", "/api/show", "/api/tags"])
async def test_a_stranger_is_refused_and_told_how_to_send_a_key(gateway: GatewayProcess, path: str) -> None:
    stranger = HttpClient(gateway.http_port, "")
    answer = await (stranger.get(path) if path == "/api/tags" else stranger.post(path, body()))
    assert answer.status == 401
    assert "Bearer" in answer.json()["error"]


async def test_a_version_is_told_to_strangers(gateway: GatewayProcess) -> None:
    answer = await HttpClient(gateway.http_port, "").get("/api/version")
    assert answer.json().keys() == {"version"}


@pytest.mark.parametrize(
    ("path", "given", "status", "said"),
    [
        ("/api/chat", body(options={"temperature": -1}), 400, "options.temperature"),
        ("/api/chat", body(model="unknown"), 404, "unknown"),
        ("/api/chat", body(messages=[]) | {"model": "unknown"}, 404, "unknown"),
        ("/api/generate", {"model": "demo", "prompt": "a", "template": "b"}, 400, "template"),
        ("/api/generate", {"model": "demo", "prompt": 5}, 400, "prompt"),
        ("/api/show", {"name": "unknown"}, 404, "unknown"),
        ("/api/embed", {"model": "demo", "input": "a"}, 400, "generates"),
        ("/api/pull", {"model": "demo"}, 404, "administrators"),
    ],
)
async def test_a_bad_body_is_refused_in_ollamas_shape(
    http: HttpClient, backend: Backend, path: str, given: object, status: int, said: str
) -> None:
    answer = await http.post(path, given)
    assert answer.status == status
    assert said in answer.json()["error"]


async def test_a_model_is_there_before_it_is_asked_something(http: HttpClient, backend: Backend) -> None:
    for path, field in (("/api/chat", "messages"), ("/api/generate", "prompt")):
        answer = (await http.post(path, {"model": "demo"})).json()
        assert (answer["done"], answer["done_reason"]) == (True, "load")
        left = (await http.post(path, {"model": "demo", "keep_alive": 0, field: None})).json()
        assert left["done_reason"] == "unload"
    tags = (await http.get("/api/tags")).json()["models"]
    assert [model["name"] for model in tags] == ["demo:latest"]
    assert (await http.post("/api/show", {"model": "demo:latest"})).json()["capabilities"][0] == "completion"


async def test_a_client_that_leaves_is_cancelled(http: HttpClient, backend: Backend) -> None:
    async with http.connection() as connection:
        await connection.request("POST", "/api/chat", body(), {"x-request-id": "line-gone"})
        job = await backend.job("line-gone")
        backend.known.add("line-gone")
        await backend.say(job, started(), tokens(0))
        await connection.answer_head()
    await until(lambda: backend.cancelled.count("line-gone") == 1)
    await backend.done("line-gone")
