"""The HTTP front around its endpoints: paths, models, health, browsers, and clients that send odd bytes."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack

import psutil
import pytest
from harness.gateway import Backend, GatewayProcess, StartGateway, tokens, until
from harness.http_client import HttpClient, chat_body, openai_client
from harness.policy import PolicyProcess
from harness.starting import patched

CHAT = "/v1/chat/completions"


async def test_models_are_listed_and_found(gateway: GatewayProcess, key: str, backend: Backend) -> None:
    async with openai_client(gateway.http_port, key) as client:
        served = [model.id async for model in client.models.list()]
        assert "demo" in served
        assert (await client.models.retrieve("demo")).object == "model"
    answer = await HttpClient(gateway.http_port, key).get("/v1/models/no/such")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


async def test_health_answers_strangers(gateway: GatewayProcess) -> None:
    stranger = HttpClient(gateway.http_port, "")
    alive = await stranger.get("/livez")
    assert (alive.status, alive.json()) == (200, {"status": "ok", "role": "gateway", "reason": ""})
    health = await stranger.get("/healthz")
    assert (health.status, health.json()["status"] in ("ok", "degraded")) == (200, True)
    ready = await stranger.get("/readyz")
    assert (ready.status, ready.json()["ready"], ready.json()["role"]) == (200, True, "gateway")


async def test_unknown_paths_and_methods_are_refused_in_the_same_shape(http: HttpClient) -> None:
    for method in ("GET", "POST", "DELETE"):
        missing = await http.call(method, "/v1/nothing")
        assert (missing.status, missing.error["code"]) == (404, "unknown_path")
        assert missing.error["message"] == (
            "there is no path '/v1/nothing': /openapi.json lists those that are there"
        )
    for path in ("/v1/v1/chat/completions", "/v1/chat/completions/"):
        message = (await http.call("POST", path)).error["message"]
        assert message == f"there is no path {path!r}: did you mean {CHAT}?"
    message = (await http.call("POST", "/v1/generate")).error["message"]
    assert message == "there is no path '/v1/generate': did you mean /generate?"
    for method, path, allowed in (
        ("GET", CHAT, "POST"),
        ("DELETE", "/v1/models", "GET"),
        ("POST", "/healthz", "GET"),
    ):
        answer = await http.call(method, path)
        assert (answer.status, answer.headers["allow"]) == (405, allowed)
        assert answer.error["code"] == "method_not_allowed"


@pytest.mark.parametrize("given", ["é", "x" * 20_000])
async def test_an_odd_trace_context_is_left_out_for_strangers_and_others(
    http: HttpClient, gateway: GatewayProcess, given: str
) -> None:
    stranger = HttpClient(gateway.http_port, "ifx_" + "x" * 43)
    assert (await stranger.get("/v1/models", traceparent=given)).status == 401
    assert (await http.get("/v1/models", traceparent=given)).status == 200


async def test_a_key_needs_the_scope(gateway: GatewayProcess, policy: PolicyProcess, admin_key: str) -> None:
    models_only = (await policy.create_key(admin_key, scopes=("models",))).secret
    client = HttpClient(gateway.http_port, models_only)
    assert (await client.get("/v1/models")).status == 200
    answer = await client.chat()
    assert (answer.status, answer.error["type"]) == (403, "permission_error")


async def test_a_preflight_is_answered_without_a_key(gateway: GatewayProcess) -> None:
    headers = {
        "origin": "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    answer = await HttpClient(gateway.http_port, "").call("OPTIONS", CHAT, headers=headers)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "authorization" in answer.headers["access-control-allow-headers"]


async def test_a_page_may_read_answers_and_their_ids(http: HttpClient) -> None:
    answer = await http.get("/v1/models", origin="https://app.example")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_a_body_above_the_limit_is_refused_before_it_is_read(http: HttpClient) -> None:
    async with http.connection() as connection:
        await connection.send(connection.head("POST", CHAT, {"content-length": str(17 << 20)}))
        answer = await connection.answer()
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


async def test_an_upload_in_chunks_without_an_end_is_cut_at_the_limit(http: HttpClient) -> None:
    async with http.connection() as connection:
        await connection.send(connection.head("POST", CHAT, {"transfer-encoding": "chunked"}))
        answering = asyncio.create_task(connection.answer())
        piece = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
        for _ in range(64):
            if answering.done() or connection.writer.transport.is_closing():
                break
            connection.writer.write(piece)
            await asyncio.wait(
                [answering, asyncio.create_task(connection.writer.drain())], return_when="FIRST_COMPLETED"
            )
        answer = await answering
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(("is_known", "status"), [(True, 413), (False, 401)])
async def test_a_client_that_reads_nothing_before_it_has_sent_all_reads_why_it_was_refused(
    gateway: GatewayProcess, http: HttpClient, *, is_known: bool, status: int
) -> None:
    caller = http if is_known else HttpClient(gateway.http_port, "")
    async with caller.connection() as connection:
        await connection.request("POST", CHAT, b" " * (40 << 20), {"connection": "close"})
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert await connection.reader.read() == b""


async def test_a_refused_body_that_never_ends_is_not_taken_for_ever(http: HttpClient) -> None:
    async with http.connection() as connection:
        await connection.send(connection.head("POST", CHAT, {"content-length": str(1 << 40)}))
        assert (await connection.answer()).status == 413
        with contextlib.suppress(ConnectionError):
            while True:
                await connection.send(b" " * (1 << 20))


async def test_strangers_send_no_body_at_all(gateway: GatewayProcess) -> None:
    async with HttpClient(gateway.http_port, "").connection() as connection:
        await connection.send(connection.head("POST", CHAT, {"content-length": "1000"}) + b"half of")
        assert (await connection.answer()).status == 401


async def test_a_client_that_leaves_its_body_half_sent_holds_nothing(
    http: HttpClient, backend: Backend
) -> None:
    for _ in range(40):  # more than there are places for bodies
        async with http.connection() as connection:
            await connection.send(connection.head("POST", CHAT, {"content-length": "1000"}) + b'{"model"')
    calling = asyncio.create_task(http.chat("http-half"))
    await backend.finish(await backend.job("http-half"), n=1)
    assert (await calling).status == 200


@pytest.mark.parametrize(
    "flood",
    [
        b"GET /healthz HTTP/1.1\r\n" + b"x-a: b\r\n" * 10_000,
        b"GET /healthz HTTP/1.1\r\nx-a: " + b"a" * (1 << 20),
        b"GET /" + b"a" * (1 << 20),
    ],
    ids=["many", "long", "path"],
)
async def test_a_flood_of_headers_is_cut(http: HttpClient, flood: bytes) -> None:
    async with http.connection() as connection:
        connection.writer.write(flood)
        said = await connection.closed()
    assert said.startswith(b"HTTP/1.1 400 ") or said == b""


async def test_trailers_without_an_end_are_cut(http: HttpClient, backend: Backend) -> None:
    async with http.connection() as connection:
        await connection.send(connection.head("POST", CHAT, {"transfer-encoding": "chunked"}) + b"0\r\n")
        connection.writer.write(b"x-a: b\r\n" * 20_000)
        await connection.closed()
    assert (await http.get("/healthz")).status == 200


async def test_bytes_that_are_no_http_are_refused(http: HttpClient) -> None:
    async with http.connection() as connection:
        await connection.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n")
        assert (await connection.closed()).startswith(b"HTTP/1.1 400 ")


async def test_a_second_call_uses_the_same_connection(http: HttpClient) -> None:
    async with http.connection() as connection:
        for _ in range(3):
            await connection.request("GET", "/v1/models")
            assert (await connection.answer()).status == 200


async def test_a_gateway_that_drains_ends_its_streams_by_name(
    start_gateway: StartGateway, nats_url: str, backend: Backend, key: str
) -> None:
    gateway = await start_gateway(nats_url, INFERFLUX_DRAIN_LIMIT_S="0.2")
    http = HttpClient(gateway.http_port, key)
    async with http.connection() as connection:
        await connection.request("POST", CHAT, chat_body(stream=True), {"x-request-id": "http-drain"})
        job = await backend.job("http-drain")
        await backend.say(job, tokens(0))
        await connection.answer_head()
        gateway.terminate()
        events = [event async for event in connection.events()]
    assert events[-2]["error"]["code"] == "gateway_draining"
    assert await gateway.ended() == 0
    await backend.done("http-drain")


async def test_an_address_that_is_taken_stops_the_start_by_name(
    start_gateway: StartGateway, nats_url: str, gateway: GatewayProcess
) -> None:
    second = await start_gateway(
        nats_url, wait=False, INFERFLUX_GATEWAY_HTTP_LISTEN=f"127.0.0.1:{gateway.http_port}"
    )
    assert await second.ended() == 1
    assert "INFERFLUX_GATEWAY_HTTP_LISTEN" in second.log_path.read_text().splitlines()[-1]


async def test_calls_are_counted_by_path_and_status(http: HttpClient, gateway: GatewayProcess) -> None:
    await http.get("/v1/models")

    async def is_counted() -> bool:
        _, text = await gateway.get("/metrics")
        return 'inferflux_http_requests_total{path="/v1/models",status="200"}' in text

    await until(is_counted)


async def test_a_client_that_stops_reading_is_cut_off_and_cancelled(
    start_gateway: StartGateway, nats_url: str, backend: Backend, key: str
) -> None:
    gateway = await start_gateway(
        nats_url, **patched("inferflux.gateway.http.front.exchange:SEND_LIMIT_S", 0.5)
    )
    http = HttpClient(gateway.http_port, key)
    before = psutil.Process(gateway.pid).memory_info().rss
    async with http.connection() as connection:
        await connection.request("POST", CHAT, chat_body(stream=True), {"x-request-id": "http-slow"})
        job = await backend.job("http-slow")
        backend.known.add("http-slow")
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for first in range(400):
            chunk = tokens(first)
            chunk.text = "x" * 100_000
            await backend.say(job, chunk)
        await until(lambda: backend.cancelled.count("http-slow") == 1)
        after = psutil.Process(gateway.pid).memory_info().rss
    assert after - before < 100 << 20, "what a client does not read is not kept for it"
    await backend.done("http-slow")


async def test_slow_bodies_give_way_to_other_calls(
    gateway: GatewayProcess, http: HttpClient, backend: Backend, other_key: str
) -> None:
    """There are 16 places for bodies."""
    async with AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(http.connection()) for _ in range(17)]
        for connection in slow:
            await connection.send(connection.head("POST", CHAT, {"content-length": "1000"}) + b"{")
        answers = [asyncio.create_task(connection.answer()) for connection in slow]
        done, waiting = await asyncio.wait(answers, return_when="FIRST_COMPLETED")
        first = done.pop().result()
        assert (first.status, first.error["code"]) == (429, "body_too_slow")
        calling = asyncio.create_task(HttpClient(gateway.http_port, other_key).chat("http-other"))
        await backend.finish(await backend.job("http-other"), n=1)
        assert (await calling).status == 200
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
