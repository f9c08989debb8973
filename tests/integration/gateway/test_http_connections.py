"""What strangers may do with connections before a request is there, on a server of the test's own bounds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from harness.gateway import until
from harness.http_client import Connection, HttpClient
from harness.websocket_client import WebSocket as WebSocketClient
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from inferflux.gateway.http.front.pinned_uvicorn import Connections
from inferflux.gateway.http.server import HttpServer

StartServer = Callable[[Connections], Awaitable[HttpServer]]


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    """Start servers that answer "hello" and end with the test."""
    started: list[HttpServer] = []

    async def start(bounds: Connections) -> HttpServer:
        server = HttpServer(PlainTextResponse("hello"), bounds)
        started.append(server)
        await server.start("127.0.0.1:0", variable="TEST")
        return server

    yield start
    for server in started:
        await server.stop(0.1)


@pytest.mark.parametrize("is_second", [False, True])
async def test_a_head_that_comes_byte_by_byte_is_cut_off(start_server: StartServer, is_second: bool) -> None:
    server = await start_server(Connections(head_limit_s=0.3))
    async with Connection(server.port) as connection:
        if is_second:
            await connection.request("GET", "/")
            assert (await connection.answer()).body == b"hello"
        trickling = asyncio.create_task(
            _trickle(connection, connection.head("GET", "/", {"x-long": "a" * 500}))
        )
        assert b"hello" not in await connection.closed()
        trickling.cancel()
    await until(lambda: len(server.connections) == 0)


async def _trickle(connection: Connection, data: bytes) -> None:
    for i in range(len(data)):
        connection.writer.write(data[i : i + 1])
        await asyncio.sleep(0.02)


async def test_an_idle_connection_is_kept_for_the_next_request(start_server: StartServer) -> None:
    """The limit counts from the first byte of a head."""
    server = await start_server(Connections(head_limit_s=0.2))
    async with Connection(server.port) as connection:
        await connection.request("GET", "/")
        await connection.answer()
        await asyncio.sleep(0.5)  # nothing is to happen in this time
        await connection.request("GET", "/")
        assert (await connection.answer()).body == b"hello"


@pytest.mark.parametrize("upgrade", ["h2c", "TLS/1.0"])
async def test_an_offer_of_another_protocol_costs_no_body(upgrade: str) -> None:
    server = HttpServer(_echo, Connections())
    await server.start("127.0.0.1:0", variable="TEST")
    try:
        offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": upgrade, "HTTP2-Settings": "AAEAAEAA"}
        body = b"a body\r\nUpgrade: h2c\r\n"
        offer["Content-Length"] = str(len(body))
        async with Connection(server.port) as connection:
            await connection.send(connection.head("POST", "/", offer) + body)
            assert (await connection.answer()).body == body
    finally:
        await server.stop(0.1)


@pytest.mark.parametrize("upgrade", ["websocket", " WebSocket"])
async def test_an_offer_of_websocket_is_taken_however_it_is_written(upgrade: str) -> None:
    async def accept(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        await socket.close()

    server = HttpServer(accept, Connections())
    await server.start("127.0.0.1:0", variable="TEST")
    try:
        async with Connection(server.port) as connection:
            await connection.send(
                f"GET / HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade:{upgrade}\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
            )
            assert await connection.reader.readline() == b"HTTP/1.1 101 Switching Protocols\r\n"
    finally:
        await server.stop(0.1)


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(await Request(scope, receive).body())(scope, receive, send)


async def test_a_flood_of_connections_closes_those_that_wait_longest(start_server: StartServer) -> None:
    server = await start_server(Connections(8))
    async with AsyncExitStack() as stack:
        flood = [await stack.enter_async_context(Connection(server.port)) for _ in range(40)]
        answer = await HttpClient(server.port, "").get("/")
        assert answer.body == b"hello"
        await until(lambda: len(server.connections) <= 8)
        assert await flood[0].closed() == b""
    await until(lambda: len(server.connections) == 0)


async def test_a_body_of_tiny_chunks_is_taken_a_little_at_a_time() -> None:
    sizes: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            sizes.append(len(message["body"]))
            more = message["more_body"]
        await PlainTextResponse(str(sum(sizes)))(scope, receive, send)

    server = HttpServer(app, Connections())
    await server.start("127.0.0.1:0", variable="TEST")
    try:
        async with Connection(server.port) as connection:
            head = connection.head("POST", "/", {"Transfer-Encoding": "chunked"})
            await connection.send(head + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")
            assert (await connection.answer()).body == b"100000"
    finally:
        await server.stop(0.1)
    assert max(sizes) < 10_000


async def test_a_flood_of_messages_is_taken_a_little_at_a_time_and_in_order() -> None:
    turn = 0
    turns: list[int] = []
    received = asyncio.get_running_loop().create_future()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        while await socket.receive_text() == "":
            turns.append(turn)
        received.set_result(None)
        await socket.close()

    async def count_turns() -> None:
        nonlocal turn
        while not received.done():
            turn += 1
            await asyncio.sleep(0)

    server = HttpServer(app, Connections())
    await server.start("127.0.0.1:0", variable="TEST")
    try:
        async with WebSocketClient(server.port, "/") as client:
            client.send_raw(b"\x81\x80\0\0\0\0" * 20_000)
            client.send("end")
            counting = asyncio.create_task(count_turns())
            await asyncio.wait_for(received, 60)
            await counting
    finally:
        await server.stop(0.1)
    assert len(turns) == 20_000
    assert Counter(turns).most_common(1)[0][1] < 1000
