"""POST /generate, the websocket, POST /v1/responses and the documents, against a scripted worker."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import psutil
import pytest
from harness.gateway import Backend, GatewayProcess, StartGateway, started, tokens, until
from harness.http_client import HttpClient, openai_client
from harness.websocket_client import WebSocket

from inferflux.common.contract.errors import Unavailable, to_failed
from inferflux.v1 import tokens_pb2


def events_of(body: bytes) -> list[Any]:
    """The messages of a stream; "[DONE]" as it is."""
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def test_a_prompt_goes_in_and_token_chunks_come_out(http: HttpClient, backend: Backend) -> None:
    body = {"model": "demo", "prompt": "hello", "max_tokens": 4}
    calling = asyncio.create_task(http.post("/generate", body, **{"x-request-id": "gen-1"}))
    job = await backend.job("gen-1")
    assert job.params.max_tokens == 4
    await backend.say(job, started())
    await backend.finish(job, n=2)
    said = events_of((await calling).body)
    chunks = [message for message in said if "token_ids" in message]
    assert [i for chunk in chunks for i in chunk["token_ids"]] == [0, 1]
    assert "".join(chunk["text"] for chunk in chunks) == "0 1 "
    assert (said[-2]["finish_reason"], said[-2]["usage"]["completion_tokens"]) == ("stop", 2)
    assert said[-1] == "[DONE]"


async def test_an_answer_can_be_one_object(http: HttpClient, backend: Backend) -> None:
    body = {"model": "demo", "prompt": [1, 2], "stream": False}
    calling = asyncio.create_task(http.post("/generate", body, **{"x-request-id": "gen-2"}))
    await backend.finish(await backend.job("gen-2"), n=2)
    said = (await calling).json()
    assert (said["token_ids"], said["text"], said["finish_reason"]) == ([0, 1], "0 1 ", "stop")


async def test_without_a_name_the_only_model_is_meant(http: HttpClient, backend: Backend) -> None:
    served = (await http.get("/v1/models")).json()["data"]
    calling = asyncio.create_task(http.post("/generate", {"prompt": "hello"}, **{"x-request-id": "gen-3"}))
    if len(served) == 1:
        await backend.finish(await backend.job("gen-3"), n=1)
        assert (await calling).status == 200
    else:  # other tests serve models too
        assert (await calling).error["param"] == "model"


async def test_a_generate_needs_a_prompt(http: HttpClient, backend: Backend) -> None:
    answer = await http.post("/generate", {"model": "demo"})
    assert (answer.status, answer.error["param"]) == (400, "prompt")


async def test_a_websocket_answers_one_request_after_another(
    gateway: GatewayProcess, key: str, backend: Backend
) -> None:
    async with WebSocket(gateway.http_port, key=key) as socket:
        assert socket.status == 101
        for n in (1, 2):
            socket.send({"model": "demo", "prompt": "hello"})
            request_id = (await socket.next())["request_id"]
            await backend.finish(await backend.job(request_id), n=n)
            messages = await socket.until_end()
            assert [i for m in messages for i in m.get("token_ids", [])] == list(range(n))
            assert messages[-1]["finish_reason"] == "stop"
        socket.send({"model": "demo", "messages": [{"role": "user", "content": "hello"}]})
        await backend.finish(await backend.job((await socket.next())["request_id"]), n=1)
        assert (await socket.until_end())[-1]["finish_reason"] == "stop"


async def test_a_browser_gives_its_key_as_a_subprotocol(gateway: GatewayProcess, key: str) -> None:
    offers = ["inferflux", f"bearer.{key}"]
    async with WebSocket(gateway.http_port, offers=offers) as socket:
        assert (socket.status, socket.subprotocol) == (101, "inferflux")


async def test_a_websocket_without_a_key_or_at_another_path_is_refused(
    gateway: GatewayProcess, key: str
) -> None:
    async with WebSocket(gateway.http_port) as socket:
        assert socket.status == 401
        assert json.loads(socket.denial)["error"]["code"] == "invalid_api_key"
    async with WebSocket(gateway.http_port, "/nothing", key=key) as socket:
        assert socket.status == 404
        assert json.loads(socket.denial)["error"]["code"] == "unknown_path"


async def test_errors_of_a_websocket_are_messages_and_it_goes_on(
    gateway: GatewayProcess, key: str, backend: Backend
) -> None:
    async with WebSocket(gateway.http_port, key=key) as socket:
        empty = {"model": "demo", "prompt": ""}
        for sent, param in (("{", None), ({"model": "demo"}, "prompt"), (empty, "prompt")):
            socket.send(sent)
            (said,) = [m for m in await socket.until_end() if "error" in m]
            assert said["error"]["param"] == param
        socket.send({"model": "demo", "prompt": "hello"})
        await backend.finish(await backend.job((await socket.next())["request_id"]), n=1)
        assert (await socket.until_end())[-1]["finish_reason"] == "stop"


async def test_a_websocket_cancels_on_a_message_and_when_it_goes(
    gateway: GatewayProcess, key: str, backend: Backend
) -> None:
    async with WebSocket(gateway.http_port, key=key) as socket:
        for sent, code in (({"cancel": True}, "cancelled"), ({"prompt": "more"}, "request_runs")):
            socket.send({"model": "demo", "prompt": "hello"})
            request_id = (await socket.next())["request_id"]
            job = await backend.job(request_id)
            backend.known.add(request_id)
            await backend.say(job, tokens(0))
            assert (await socket.next())["token_ids"] == [0]
            socket.send(sent)
            assert (await socket.until_end())[-1]["error"]["code"] == code
            await until(lambda name=request_id: backend.cancelled.count(name) == 1)  # type: ignore[misc]
            await backend.done(request_id)
        socket.send({"model": "demo", "prompt": "hello"})
        request_id = (await socket.next())["request_id"]
        await backend.job(request_id)
        backend.known.add(request_id)
    await until(lambda: backend.cancelled.count(request_id) == 1)
    await backend.done(request_id)


async def test_a_large_message_closes_a_websocket(gateway: GatewayProcess, key: str) -> None:
    async with WebSocket(gateway.http_port, key=key) as socket:
        socket.send({"model": "demo", "prompt": "x" * (2 << 20)})
        assert await socket.next() is None


async def test_a_flood_of_pings_that_reads_no_pongs_is_cut(gateway: GatewayProcess, key: str) -> None:
    payload = b"x" * 125
    ping = struct.pack("!BB", 0x89, 0x80 | len(payload)) + b"\0\0\0\0" + payload
    before = psutil.Process(gateway.pid).memory_info().rss
    async with WebSocket(gateway.http_port, key=key) as socket:
        socket.writer.transport.pause_reading()  # type: ignore[attr-defined]
        try:
            for _ in range(300):
                socket.send_raw(ping * 1000)
                await asyncio.wait_for(socket.writer.drain(), 20)
        except ConnectionError:
            pass
        assert psutil.Process(gateway.pid).memory_info().rss - before < 64 << 20


async def test_a_gateway_that_drains_tells_its_websockets(
    start_gateway: StartGateway, nats_url: str, backend: Backend, key: str
) -> None:
    gateway = await start_gateway(nats_url, INFERFLUX_DRAIN_LIMIT_S="0.2")
    async with WebSocket(gateway.http_port, key=key) as socket:
        socket.send({"model": "demo", "prompt": "hello"})
        request_id = (await socket.next())["request_id"]
        job = await backend.job(request_id)
        await backend.say(job, tokens(0))
        await socket.next()
        gateway.terminate()
        assert (await socket.until_end())[-1]["error"]["code"] == "gateway_draining"
    assert await gateway.ended() == 0
    await backend.done(request_id)


async def test_openais_client_reads_a_response_and_its_events(
    gateway: GatewayProcess, key: str, backend: Backend
) -> None:
    async with openai_client(gateway.http_port, key) as client:
        asking = asyncio.create_task(
            client.responses.create(
                model="demo",
                input="hello",
                instructions="be brief",
                max_output_tokens=5,
                extra_headers={"x-request-id": "resp-1"},
            )
        )
        job = await backend.job("resp-1")
        assert job.params.max_tokens == 5
        await backend.finish(job, n=2)
        answer = await asking
        assert (answer.id, answer.status, answer.output_text) == ("resp_resp-1", "completed", "0 1 ")
        assert answer.usage is not None
        assert answer.usage.output_tokens == 2

        streaming = asyncio.create_task(
            client.responses.create(
                model="demo", input="hello", stream=True, extra_headers={"x-request-id": "resp-2"}
            )
        )
        await backend.finish(await backend.job("resp-2"), n=1)
        kinds = [event.type async for event in await streaming]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_a_response_that_fails_ends_with_its_error(http: HttpClient, backend: Backend) -> None:
    body = {"model": "demo", "input": "hello", "stream": True}
    calling = asyncio.create_task(http.post("/v1/responses", body, **{"x-request-id": "resp-3"}))
    job = await backend.job("resp-3")
    error = to_failed(Unavailable("the worker burst", reason="BURST"))
    await backend.say(job, tokens(0), tokens_pb2.TokenChunk(epoch=1, offset=1, failed=error))
    await backend.done("resp-3")
    last = events_of((await calling).body)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "burst", "message": "the worker burst"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input[0].output"),
        ({"input": [{"type": "function_call"}]}, "input[0].call_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 50}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": {"name": "f"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}, "max_output_tokens": 1},
            "text.format",
        ),
    ],
)
async def test_a_response_that_cannot_be_is_refused_by_name(
    http: HttpClient, backend: Backend, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post("/v1/responses", {"model": "demo", "input": "hello"} | fields)
    assert answer.status == 400
    assert answer.error["param"].startswith(param)


async def test_the_document_names_every_path(gateway: GatewayProcess) -> None:
    stranger = HttpClient(gateway.http_port, "")
    document = (await stranger.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.")
    for path, operations in document["paths"].items():
        for method in operations:
            answer = await stranger.call(method.upper(), path.replace("{model}", "demo"))
            assert answer.status in (200, 401), path


async def test_a_constraint_is_passed_on_and_refused_by_the_clients_names(
    http: HttpClient, constraining: Backend
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    formatted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    calling = asyncio.create_task(http.chat("fmt-1", response_format=formatted))
    job = await constraining.job("fmt-1")
    assert json.loads(job.params.constraint.json_schema)["properties"]["a"] == {"type": "integer"}
    await constraining.finish(job, n=1)
    assert (await calling).status == 200
    formatted["json_schema"]["schema"] = {"not": {}}  # type: ignore[index]
    answer = await http.chat(response_format=formatted)
    assert answer.status == 400
    assert answer.error["param"].startswith("response_format.json_schema.schema")
    answer = await http.chat(structured_outputs={"regex": "("})
    assert (answer.status, answer.error["param"]) == (400, "structured_outputs.regex")
    answer = await http.chat(structured_outputs={"choice": ["a"]}, stop="b")
    assert (answer.status, answer.error["param"]) == (400, "stop")
