"""Answers that break their schema, against a scripted worker: what each front says, and before it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest
from harness.gateway import Backend, Client, GatewayProcess, finished, started, tokens, until
from harness.http_client import Answer, HttpClient, chat_body, openai_client
from harness.websocket_client import WebSocket

from inferflux.v1 import generation_pb2, scheduler_pb2

WHY = "the answer does not match its schema: [3,3] has non-unique elements"
UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
HEADER = "x-inferflux-unenforced"
MISMATCH = generation_pb2.FINISH_REASON_SCHEMA_MISMATCH


def formatted(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}


async def end_badly(backend: Backend, job: scheduler_pb2.InferenceRequest) -> None:
    """A token, and the end of an answer that was checked."""
    last = finished(1, reason=MISMATCH, attempt=job.attempt_id)
    last.finished.mismatch = WHY.partition(": ")[2]
    await backend.say(job, started(), tokens(0), last)
    await backend.done(job.request_id)


def events_of(answer: Answer) -> list[str]:
    return [part for part in answer.body.decode().split("\n\n") if part]


async def test_an_answer_that_breaks_its_schema_is_an_error_and_no_answer(
    http: HttpClient, constraining: Backend, gateway: GatewayProcess
) -> None:
    calling = asyncio.create_task(http.chat("mis-1", response_format=formatted(UNIQUE)))
    job = await constraining.job("mis-1")
    assert json.loads(job.params.constraint.json_schema) == {"type": "array", "items": {"type": "integer"}}
    assert json.loads(job.params.constraint.checked_schema) == UNIQUE
    await end_badly(constraining, job)
    answer = await calling
    assert (answer.status, answer.error["code"], answer.error["message"]) == (422, "schema_mismatch", WHY)
    assert answer.headers[HEADER] == "uniqueItems (#)"
    await until(lambda: bool(gateway.audit("mis-1")))
    assert gateway.audit("mis-1")[0]["outcome"] == "schema_mismatch"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat_body(response_format=formatted(UNIQUE))),
        ("/v1/completions", {"model": "demo", "prompt": "x", "structured_outputs": {"json": UNIQUE}}),
        ("/generate", {"model": "demo", "prompt": "x", "structured_outputs": {"json": UNIQUE}}),
    ],
)
async def test_a_stream_says_so_in_its_last_event(
    http: HttpClient, constraining: Backend, path: str, body: dict[str, Any]
) -> None:
    name = f"mis-{path.replace('/', '-')}"
    calling = asyncio.create_task(http.post(path, body | {"stream": True}, **{"x-request-id": name}))
    await end_badly(constraining, await constraining.job(name))
    answer = await calling
    assert (answer.status, answer.headers[HEADER]) == (200, "uniqueItems (#)")
    *_, failure, done = events_of(answer)
    assert done == "data: [DONE]"
    said = json.loads(failure.removeprefix("data: "))["error"]
    assert (said["code"], said["message"]) == ("schema_mismatch", WHY)
    assert '"finish_reason":"' not in answer.body.decode()


async def test_responses_say_so_in_an_event_of_theirs(http: HttpClient, constraining: Backend) -> None:
    format_ = {"type": "json_schema", "name": "x", "schema": UNIQUE}
    body = {"model": "demo", "input": "hello", "text": {"format": format_}, "stream": True}
    calling = asyncio.create_task(http.post("/v1/responses", body, **{"x-request-id": "mis-resp"}))
    await end_badly(constraining, await constraining.job("mis-resp"))
    name, _, data = events_of(await calling)[-1].partition("\n")
    assert name in ("event: error", "event: response.failed")
    assert "schema_mismatch" in data
    assert WHY in data


async def test_one_choice_that_breaks_its_schema_ends_the_call(
    http: HttpClient, constraining: Backend
) -> None:
    calling = asyncio.create_task(http.chat("mis-n", response_format=formatted(UNIQUE), n=2))
    await end_badly(constraining, await constraining.job("mis-n"))
    answer = await calling
    assert (answer.status, answer.error["code"]) == (422, "schema_mismatch")


async def test_openais_client_raises_it_and_does_not_ask_again(
    gateway: GatewayProcess, key: str, constraining: Backend
) -> None:
    async with openai_client(gateway.http_port, key) as client:
        asking = client.with_options(max_retries=3).chat.completions
        calling = asyncio.create_task(asking.create(**chat_body(response_format=formatted(UNIQUE))))
        await end_badly(constraining, await constraining.only_job())
        with pytest.raises(openai.UnprocessableEntityError, match="does not match its schema"):
            await calling
    assert len(constraining.jobs) == 1


async def test_anthropics_client_is_told_whole_and_streamed(
    gateway: GatewayProcess, key: str, constraining: Backend
) -> None:
    client = anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{gateway.http_port}", api_key=key, max_retries=3
    )
    body: dict[str, Any] = {
        "model": "demo",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hello"}],
        "extra_body": {"output_config": {"format": {"type": "json_schema", "schema": UNIQUE}}},
    }
    async with client:
        calling = asyncio.create_task(client.messages.create(**body))
        await end_badly(constraining, await constraining.only_job())
        with pytest.raises(anthropic.UnprocessableEntityError) as whole:
            await calling
        assert len(constraining.jobs) == 1
        constraining.jobs.clear()
        calling = asyncio.create_task(client.messages.create(**body, stream=True))
        await end_badly(constraining, await constraining.only_job())
        async with await calling as events:
            with pytest.raises(anthropic.APIStatusError) as streamed:
                async for _ in events:
                    pass
    for told in (whole.value.body, streamed.value.body):
        assert told["error"] == {"type": "api_error", "message": WHY}  # type: ignore[index]


async def test_ollamas_clients_are_told_in_their_shape(http: HttpClient, constraining: Backend) -> None:
    messages = [{"role": "user", "content": "hello"}]
    for name, is_streamed, status in (("mis-o1", False, 422), ("mis-o2", True, 200)):
        body = {"model": "demo", "messages": messages, "format": UNIQUE, "stream": is_streamed}
        calling = asyncio.create_task(http.post("/api/chat", body, **{"x-request-id": name}))
        await end_badly(constraining, await constraining.job(name))
        answer = await calling
        assert answer.status == status
        assert json.loads(answer.body.splitlines()[-1]) == {"error": WHY}


async def test_a_websocket_is_told_and_goes_on(
    gateway: GatewayProcess, key: str, constraining: Backend
) -> None:
    async with WebSocket(gateway.http_port, key=key) as socket:
        socket.send({"model": "demo", "prompt": "x", "structured_outputs": {"json": UNIQUE}})
        await end_badly(constraining, await constraining.job((await socket.next())["request_id"]))
        assert (await socket.until_end())[-1]["error"]["code"] == "schema_mismatch"
        socket.send({"model": "demo", "prompt": "x"})
        await constraining.finish(await constraining.job((await socket.next())["request_id"]), n=1)
        assert (await socket.until_end())[-1]["finish_reason"] == "stop"


async def test_over_grpc_it_is_a_reason_to_end_with_what_is_wrong(
    client: Client, constraining: Backend
) -> None:
    constraint = generation_pb2.StructuredConstraint(json_schema=json.dumps(UNIQUE))
    stream = client.generate("mis-g", params=generation_pb2.GenerationParams(constraint=constraint))
    await end_badly(constraining, await constraining.job("mis-g"))
    last = (await stream.rest())[-1]
    assert (last.finished.reason, last.finished.mismatch) == (MISMATCH, WHY.partition(": ")[2])


async def test_what_tools_leave_to_the_check_is_named_with_the_tool(
    http: HttpClient, constraining: Backend
) -> None:
    parameters = {"type": "object", "properties": {"ids": UNIQUE}, "required": ["ids"]}
    tool = {"type": "function", "function": {"name": "find", "parameters": parameters}}
    calling = asyncio.create_task(http.chat("mis-t", tools=[tool]))
    await constraining.finish(await constraining.job("mis-t"), n=1)
    assert (await calling).headers[HEADER] == "uniqueItems (find#/properties/ids)"
    strict = {"type": "function", "function": {**tool["function"], "strict": True}}  # type: ignore[dict-item]
    answer = await http.chat(tools=[strict])
    assert (answer.status, answer.error["code"]) == (400, "unsupported_schema")
    assert "uniqueItems (#/properties/ids)" in answer.error["message"]


async def test_a_strict_schema_is_refused_for_what_cannot_be_enforced_and_for_nothing_else(
    http: HttpClient, constraining: Backend
) -> None:
    answer = await http.chat(response_format=formatted(UNIQUE, strict=True))
    assert (answer.status, answer.error["code"]) == (400, "unsupported_schema")
    assert "uniqueItems (#)" in answer.error["message"]
    assert answer.error["param"].startswith("response_format.json_schema")
    open_ = {"type": "object", "properties": {"a": {"type": "integer", "format": "int32", "x-order": 1}}}
    calling = asyncio.create_task(http.chat("mis-s", response_format=formatted(open_, strict=True)))
    await constraining.finish(await constraining.job("mis-s"), n=1)
    answer = await calling
    assert answer.status == 200
    assert HEADER not in answer.headers


async def test_what_the_masks_library_refuses_is_left_to_the_check(
    http: HttpClient, constraining: Backend
) -> None:
    """Two patterns that overlap compile only where they are left out."""
    schema = {"patternProperties": {"^[a-c]+$": {"type": "integer"}, "^[b-d]+$": {"type": "integer"}}}
    calling = asyncio.create_task(http.chat("mis-f", response_format=formatted(schema)))
    job = await constraining.job("mis-f")
    await constraining.finish(job, n=1)
    assert "patternProperties" not in job.params.constraint.json_schema
    assert json.loads(job.params.constraint.checked_schema)["patternProperties"].keys() == {
        "^[a-c]+$",
        "^[b-d]+$",
    }
    assert (await calling).headers[HEADER] == "patternProperties (#)"
    answer = await http.chat(response_format=formatted(schema, strict=True))
    assert (answer.status, answer.error["param"]) == (400, "response_format.json_schema.schema")
