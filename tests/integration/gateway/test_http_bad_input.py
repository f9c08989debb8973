"""What a client with a key may send that is wrong, too much or endless: a clear error, and nothing left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from harness.gateway import Backend, GatewayProcess, StartGateway, started, tokens, until
from harness.http_client import HttpClient, chat_body
from harness.starting import patched
from harness.websocket_client import WebSocket

from inferflux.gateway.http.front.json_size import MAX_NAMES, MAX_VALUES

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
IDS = b'{"model": "demo", "prompt": [' + b"1," * MAX_VALUES + b"1]}"
OBJECTS = b'{"model": "demo", "messages": [' + b'{"role":"user"},' * (MAX_NAMES + 1) + b"{}]}"
BIASES = b'{"model": "demo", "logit_bias": {' + b'"1": 1,' * (MAX_NAMES + 1) + b'"2": 1}}'
IGNORED = b'{"model": "demo", "x": [' + b"[]," * MAX_VALUES + b"[]]}"


@pytest.mark.parametrize(
    ("path", "body"),
    [(COMPLETION, IDS), (CHAT, OBJECTS), (CHAT, BIASES), (CHAT, IGNORED), ("/v1/tokenize", OBJECTS)],
    ids=["ids", "objects", "biases", "ignored", "tokenize"],
)
async def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(
    http: HttpClient, path: str, body: bytes
) -> None:
    answer = await http.post(path, body)
    assert (answer.status, answer.error["code"]) == (413, "body_too_complex")
    assert answer.headers["connection"] == "close"


async def test_a_websocket_takes_no_message_of_too_many_values(
    gateway: GatewayProcess, key: str, backend: Backend
) -> None:
    async with WebSocket(gateway.http_port, key=key) as socket:
        socket.send('{"prompt": [' + "1," * MAX_VALUES + "1]}")
        (message,) = await socket.until_end()
    assert message["error"]["code"] == "body_too_complex"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"null", "invalid_type", None),
        (b"[]", "invalid_type", None),
        (b"[" * 100_000, "invalid_json", None),
        (b'{"model": "demo", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", "invalid_json", None),
        (b'{"model": "demo", "messages": [{"role": "user", "content": "\\ud800"}]}', "invalid_json", None),
        (b'{"model": "demo", "messages": [{"role": "user", "content": "\xff"}]}', "invalid_json", None),
        (b'\xef\xbb\xbf{"model": "demo"}', "invalid_json", None),
        (b'{"model": "demo", "messages": [], "temperature": NaN}', "invalid_value", "temperature"),
        (b'{"model": "demo", "messages": [], "temperature": Infinity}', "invalid_value", "temperature"),
        (b'{"model": "demo", "messages": [], "temperature": 1e999}', "invalid_value", "temperature"),
        (b'{"model": "demo", "messages": [], "max_tokens": NaN}', "invalid_type", "max_tokens"),
        (b'{"model": "demo", "messages": [], "max_tokens": 1.5}', "invalid_type", "max_tokens"),
        (b'{"model": "demo", "messages": [], "logit_bias": {"1": NaN}}', "invalid_value", "logit_bias"),
        (b'{"model": "demo", "messages": [], "logit_bias": {"1": 1e31}}', "invalid_value", "logit_bias"),
        (chat_body(seed=10**400), "invalid_value", "seed"),
        (b'{"model": "demo", "messages": [], "seed": ' + b"9" * 10_000 + b"}", "invalid_json", None),
        (b'{"model": "demo", "messages": [], "n": ' + b"9" * 10_000 + b"}", "invalid_json", None),
        (chat_body(messages=[{"role": "user", "content": "a"}] * 10_001), "invalid_value", "messages"),
        (chat_body(messages=[{"role": "user", "content": "a" * (15 << 20)}]), "text_too_large", "messages"),
    ],
)
async def test_what_is_no_request_is_refused_by_name(
    http: HttpClient, backend: Backend, body: object, code: str, param: str | None
) -> None:
    answer = await http.post(CHAT, body)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)
    assert len(answer.body) < 1000


LONG = "x " * 30_000
CALL = {"id": "c", "type": "function", "function": {"name": "f\ng", "arguments": "{}"}}
FUNCTION = {"type": "function", "function": {"name": "f\ng"}}


@pytest.mark.parametrize(
    ("path", "fields", "param", "begin"),
    [
        (
            CHAT,
            {"messages": [{"role": "user", "content": LONG}]},
            "messages",
            "this model's maximum context length is",
        ),
        (COMPLETION, {"prompt": LONG}, "prompt", "this model's maximum context length is"),
        (COMPLETION, {"prompt": [[1], [10**6]]}, "prompt[1][0]", "prompt[1][0]: token id 1000000"),
        (COMPLETION, {"prompt": [10**6]}, "prompt[0]", "prompt[0]: token id 1000000"),
        (COMPLETION, {"prompt": ["a", ""]}, "prompt[1]", "prompt[1] is empty"),
        ("/generate", {"prompt": [-1]}, "prompt[0]", "prompt[0]: token id -1"),
        ("/v1/responses", {"input": LONG}, "input", "this model's maximum context length is"),
        (
            "/v1/responses",
            {"input": [{"type": "function_call", "call_id": "c", "name": "f\ng"}]},
            "input[0].name",
            "input[0].name: a name is",
        ),
        (
            CHAT,
            {"messages": [{"role": "assistant", "tool_calls": [CALL]}]},
            "messages[0].tool_calls[0].function.name",
            "messages[0].tool_calls[0].function.name: a name is",
        ),
        ("/v1/tokenize", {"messages": [], "tools": [FUNCTION]}, "messages", "messages is empty"),
        (
            "/v1/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "tools": [FUNCTION]},
            "tools[0].function.name",
            "tools[0].function.name: a name is",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "a"}], "functions": [{}]},
            "functions[0].name",
            "functions[0].name is missing",
        ),
    ],
)
async def test_a_field_is_named_as_the_client_wrote_it(
    http: HttpClient, path: str, fields: dict[str, Any], param: str, begin: str
) -> None:
    answer = await http.post(path, {"model": "demo", "stream": False, **fields})
    assert answer.status == 400
    assert answer.error["param"] == param
    assert answer.error["message"].startswith(begin)
    assert (answer.error["code"] == "context_length_exceeded") == (LONG in str(fields))


REFUSED_FORMATS: Mapping[str, tuple[dict[str, Any], str]] = {
    "recursion without an end": ({"$ref": "#"}, "response_format.json_schema.schema"),
    "a contradiction": ({"type": "string", "enum": [1, 2]}, "response_format.json_schema.schema"),
    "a bomb": (
        {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(300, 340)]},
        "response_format",
    ),
    "66 KB": ({"enum": ["a" * 66_000]}, "response_format.json_schema.schema"),
    "a deep one": (json.loads('{"items":' * 150 + "{}" + "}" * 150), "response_format.json_schema.schema"),
}
LEFT_TO_THE_CHECK: Mapping[str, tuple[dict[str, Any], str]] = {
    "two at once": ({"type": "object", "not": {"required": ["a", "b"]}}, "not"),
    "a huge number": ({"minimum": 10**4000}, "minimum"),
}
REFUSED_OUTPUTS: Mapping[str, tuple[dict[str, Any], str]] = {
    "10,000 choices": ({"choice": [str(i) for i in range(10_000)]}, "structured_outputs.choice"),
    "an empty choice": ({"choice": []}, "structured_outputs.choice"),
    "nested groups": ({"regex": "(" * 8000 + ")" * 8000}, "structured_outputs.regex"),
    "a grammar of itself": ({"lark": "start: start"}, "structured_outputs.lark"),
    "half a grammar": ({"grammar": "root ::= ("}, "structured_outputs.grammar"),
    "two": ({"regex": "a", "choice": ["a"]}, "structured_outputs"),
    "a text that is no schema": ({"json": "{"}, "structured_outputs.json"),
}


@pytest.mark.parametrize("name", [*REFUSED_FORMATS, *REFUSED_OUTPUTS])
async def test_a_constraint_that_cannot_be_is_refused_by_the_clients_field(
    http: HttpClient, constraining: Backend, name: str
) -> None:
    if name in REFUSED_FORMATS:
        schema, field = REFUSED_FORMATS[name]
        wanted: dict[str, Any] = {
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        }
    else:
        outputs, field = REFUSED_OUTPUTS[name]
        wanted = {"structured_outputs": outputs}
    answer = await http.chat(**wanted)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert answer.error["param"].startswith(field)
    assert not [job for job in constraining.jobs.values() if job.params.HasField("constraint")]


@pytest.mark.parametrize("name", LEFT_TO_THE_CHECK)
async def test_what_no_mask_can_hold_is_left_to_the_check_unless_the_schema_is_strict(
    http: HttpClient, constraining: Backend, name: str
) -> None:
    schema, keyword = LEFT_TO_THE_CHECK[name]
    wanted: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    request_id = f"bad-{name.replace(' ', '-')}"
    calling = asyncio.create_task(http.chat(request_id, response_format=wanted))
    job = await constraining.job(request_id)
    assert keyword not in json.loads(job.params.constraint.json_schema)
    await constraining.finish(job, n=1)
    answer = await calling
    assert (answer.status, answer.headers["x-inferflux-unenforced"]) == (200, f"{keyword} (#)")
    wanted["json_schema"]["strict"] = True
    answer = await http.chat(response_format=wanted)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert answer.error["param"].startswith("response_format")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "demo", "input": "a", "metadata": {"a": NaN}}',
        b'{"model": "demo", "input": "a", "metadata": {"a": 1}}',
    ],
)
async def test_metadata_is_texts(http: HttpClient, body: bytes) -> None:
    answer = await http.post("/v1/responses", body)
    assert (answer.status, answer.error["param"]) == (400, "metadata.a")


async def test_a_schema_that_is_not_asked_for_is_not_repeated(http: HttpClient, backend: Backend) -> None:
    body = b'{"model": "demo", "input": "a", "text": {"format": {"type": "text", "schema": {"a": NaN}}}}'
    calling = asyncio.create_task(http.post("/v1/responses", body, **{"x-request-id": "bad-echo"}))
    await backend.finish(await backend.job("bad-echo"), n=1)
    assert (await calling).json()["text"]["format"] == {"type": "text"}


async def test_the_last_of_two_equal_names_counts(http: HttpClient, backend: Backend) -> None:
    body = b'{"model": "no", "model": "demo", "messages": [{"role": "user", "content": "a"}]}'
    calling = asyncio.create_task(http.post(CHAT, body, **{"x-request-id": "bad-twice"}))
    await backend.finish(await backend.job("bad-twice"), n=1)
    assert (await calling).status == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "image/png", ""])
async def test_a_body_is_json_whatever_its_content_type_says(
    http: HttpClient, backend: Backend, content_type: str
) -> None:
    request_id = f"bad-type-{abs(hash(content_type))}"
    headers = {"content-type": content_type, "x-request-id": request_id}
    calling = asyncio.create_task(http.post(CHAT, chat_body(), **headers))
    await backend.finish(await backend.job(request_id), n=1)
    assert (await calling).status == 200


async def test_a_form_is_refused(http: HttpClient) -> None:
    form = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\ndemo\r\n--x--\r\n'
    answer = await http.post(CHAT, form, **{"content-type": "multipart/form-data; boundary=x"})
    assert (answer.status, answer.error["code"]) == (400, "invalid_json")


async def test_a_client_that_waits_to_be_told_is_told_to_go_on(http: HttpClient, backend: Backend) -> None:
    body = json.dumps(chat_body()).encode()
    async with http.connection() as connection:
        headers = {
            "content-length": str(len(body)),
            "expect": "100-continue",
            "x-request-id": "bad-expect",
        }
        await connection.send(connection.head("POST", CHAT, headers))
        assert (await connection.answer_head()).status == 100
        await connection.send(body)
        await backend.finish(await backend.job("bad-expect"), n=1)
        assert (await connection.answer()).status == 200


async def test_a_stranger_is_not_told_to_go_on(gateway: GatewayProcess) -> None:
    async with HttpClient(gateway.http_port, "").connection() as connection:
        headers = {"content-length": "1000000", "expect": "100-continue"}
        await connection.send(connection.head("POST", CHAT, headers))
        assert (await connection.answer()).status == 401


async def test_a_client_of_http_1_0_gets_its_answer_and_the_end(http: HttpClient, backend: Backend) -> None:
    body = json.dumps(chat_body()).encode()
    async with http.connection() as connection:
        head = connection.head("POST", CHAT, {"content-length": str(len(body)), "x-request-id": "bad-old"})
        await connection.send(head.replace(b"HTTP/1.1", b"HTTP/1.0") + body)
        await backend.finish(await backend.job("bad-old"), n=2)
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await connection.closed() == b""


async def test_a_stream_to_a_client_of_http_1_0_has_no_chunks_and_ends_with_the_connection(
    http: HttpClient, backend: Backend
) -> None:
    body = json.dumps(chat_body(stream=True)).encode()
    async with http.connection() as connection:
        length = {"content-length": str(len(body)), "x-request-id": "bad-old-stream"}
        head = connection.head("POST", CHAT, length | {"connection": "keep-alive"})
        await connection.send(head.replace(b"HTTP/1.1", b"HTTP/1.0") + body)
        await backend.finish(await backend.job("bad-old-stream"), n=2)
        answer = await connection.answer_head()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert not {"transfer-encoding", "content-length"} & answer.headers.keys()
        events = (await connection.closed()).decode().split("\n\n")
    assert all(event.startswith("data: ") for event in events[:-1])
    assert events[-2:] == ["data: [DONE]", ""]
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events[:-2]]
    assert "".join(delta.get("content", "") for delta in deltas) == "0 1 "


@pytest.mark.parametrize("length", ["-1", "1e3", "abc", "99999999999999999999", "5, 6"])
async def test_a_length_that_is_none_is_refused(http: HttpClient, length: str) -> None:
    async with http.connection() as connection:
        await connection.send(connection.head("POST", CHAT, {"content-length": length}) + b"{}")
        answer = await connection.answer_head()
    assert answer.status in (400, 413)


async def test_a_body_of_two_lengths_is_refused(http: HttpClient) -> None:
    """Two readers of such a request could see different ones."""
    async with http.connection() as connection:
        headers = {"content-length": "4", "transfer-encoding": "chunked"}
        await connection.send(connection.head("POST", CHAT, headers) + b"0\r\n\r\n")
        assert (await connection.answer_head()).status == 400


async def test_a_trace_context_that_is_none_is_ignored(http: HttpClient) -> None:
    """It is passed on in gRPC's metadata, which takes ASCII alone."""
    async with http.connection() as connection:
        head = connection.head("GET", "/v1/models", {"traceparent": "TRACE"})
        await connection.send(head.replace(b"TRACE", b"00-\xff"))
        assert (await connection.answer_head()).status == 200


async def test_a_handshake_that_is_not_in_ascii_is_refused(gateway: GatewayProcess) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.http_port)
    writer.write(
        b"GET /generate HTTP/1.1\r\nhost: gateway\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"sec-websocket-protocol: bearer.\xff\r\n\r\n"
    )
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    head, _, said = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert f"content-length: {len(said)}".encode() in head


async def test_a_flood_of_messages_on_a_websocket_ends_its_request_and_nothing_else(
    gateway: GatewayProcess, http: HttpClient, key: str, backend: Backend
) -> None:
    async with WebSocket(gateway.http_port, key=key) as socket:
        socket.send({"prompt": "hello"})
        head = await socket.next()
        await backend.job(head["request_id"])
        backend.known.add(head["request_id"])
        for _ in range(20_000):
            socket.send({"cancel": 1})
        errors = [(await socket.until_end())[-1]["error"] for _ in range(50)]
        assert {error["code"] for error in errors} <= {"request_runs", "invalid_value"}
        await until(lambda: head["request_id"] in backend.cancelled)
    await backend.done(head["request_id"])
    assert (await http.get("/v1/models")).status == 200


async def test_a_websocket_that_stops_reading_is_cut_off_and_cancelled(
    start_gateway: StartGateway, nats_url: str, backend: Backend, key: str
) -> None:
    gateway = await start_gateway(
        nats_url, **patched("inferflux.gateway.http.front.exchange:SEND_LIMIT_S", 0.5)
    )
    async with WebSocket(gateway.http_port, key=key) as socket:
        socket.send({"prompt": "hello", "model": "demo"})
        request_id = (await socket.next())["request_id"]
        job = await backend.job(request_id)
        backend.known.add(request_id)
        socket.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for first in range(200):
            chunk = tokens(first)
            chunk.text = "x" * 100_000
            await backend.say(job, chunk)
        await until(lambda: request_id in backend.cancelled)
    await backend.done(request_id)


@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
@pytest.mark.parametrize("path", ["/v1/responses", "/generate", COMPLETION, "websocket"])
async def test_a_client_that_is_killed_in_any_phase_is_cancelled(
    http: HttpClient, backend: Backend, path: str, phase: str
) -> None:
    """Of the other endpoints; those of chats are in test_http_chat."""
    if path == "websocket":
        async with WebSocket(http.port, key=http.key) as socket:
            socket.send({"prompt": "hello", "model": "demo"})
            request_id = (await socket.next())["request_id"]
            await _reach(phase, backend, request_id)
            if phase == "decode":
                while "token_ids" not in await socket.next():
                    pass
    else:
        request_id = f"bad-killed-{path.rpartition('/')[2]}-{phase}"
        is_response = path == "/v1/responses"
        prompt = {"input": "hello", "max_output_tokens": 50} if is_response else {"prompt": "hello"}
        async with http.connection() as connection:
            body = {"model": "demo", "stream": True} | prompt
            await connection.request("POST", path, body, {"x-request-id": request_id})
            await _reach(phase, backend, request_id)
            if phase == "decode":
                await connection.answer_head()
    await until(lambda: request_id in backend.cancelled)
    await backend.done(request_id)


async def _reach(phase: str, backend: Backend, request_id: str) -> None:
    job = await backend.job(request_id)
    backend.known.add(request_id)
    if phase != "queued":
        await backend.say(job, started())
    if phase == "decode":
        await backend.say(job, tokens(0))
