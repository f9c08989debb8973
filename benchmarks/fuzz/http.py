"""Calls over HTTP of every route: odd bodies, headers and methods, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from contextlib import suppress

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from inferflux.gateway.http.front.routes import ADMIN

from .findings import Findings
from .messages import Messages
from .methods import Method
from .routes import WEBSOCKET, Bodies, Call, client_routes

_HANG_S = 30.0
# Of an answer that goes on: a drain is followed until its worker is drained.
_FOLLOWED_S = 0.3
_READ_BYTES = 1 << 16
_ODD_HEADERS = (
    ("x-request-id", "a b"),
    ("x-request-id", "x" * 5000),
    ("traceparent", "00-zz-zz-01"),
    ("content-type", "text/plain"),
    ("content-encoding", "gzip"),
    ("expect", "100-continue"),
    ("authorization", "Basic eDp5"),
    ("x-forwarded-for", "\xff"),
)
_ODD_BODIES = (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 5_000, b" " * 5_000_000)


_UPGRADE = {
    "upgrade": "websocket",
    "connection": "Upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


class HttpFuzzer:
    """Calls, each on a connection of its own, drawn from one random source.

    Args:
        keys: what a call's credential is drawn from; "" is none.
        texts: what texts of messages are drawn from, beside odd ones; the first is a model's name.
    """

    def __init__(
        self, seed: int, port: int, keys: tuple[str, ...], texts: tuple[str, ...], findings: Findings
    ) -> None:
        self._random = random.Random(seed)
        self._port = port
        self._keys = keys
        self._messages = Messages(self._random, texts)
        self._bodies = Bodies(self._random, texts[0], texts)
        self._routes = client_routes()
        self._findings = findings

    async def call(self, method: Method, request_id: str) -> None:
        """One call of this method, which administrators call, however it ends."""
        await self._call(Call("POST", ADMIN[method.name].path, self._body(method), True), request_id)

    async def call_route(self, turn: int, request_id: str) -> None:
        """One call of a route of clients, which take turns, however it ends."""
        await self._call(self._bodies.draw(self._routes[turn % len(self._routes)]), request_id)

    async def _call(self, call: Call, request_id: str) -> None:
        path, body = call.path, call.body
        headers = self._headers(request_id)
        if call.method == WEBSOCKET:
            own = "GET"
            headers |= _UPGRADE
            # What follows the head is of the new protocol, and no body.
            body = _frame(body, self._random)
        else:
            own = call.method
        verb = self._random.choice((own,) * 12 + ("GET", "PUT", f"{own} /x?"))
        leaves = self._random.random() < 0.1
        what = f"HTTP {verb} {path}"
        try:
            async with asyncio.timeout(_HANG_S):
                status, is_whole = await self._exchange(
                    f"{verb} {path} HTTP/1.1", headers, body, leaves=leaves
                )
        except TimeoutError:
            self._findings.hangs.append(f"{what}: no end after {_HANG_S:g} s")
            return
        except (OSError, ValueError, asyncio.IncompleteReadError):
            status, is_whole = 0, False
        self._findings.codes[f"HTTP {status}" if status else "HTTP, left or cut off"] += 1
        if status == 500:
            self._findings.internal.append(f"{what}: {headers}; body {body[:200]!r}")
        is_own = is_whole and verb == own and call.is_audited and call.method != WEBSOCKET
        if is_own and headers.get("x-request-id") == request_id:
            self._findings.answered[request_id] = f"{what}: {status}"

    async def _exchange(
        self, line: str, headers: Mapping[str, str], body: bytes, *, leaves: bool
    ) -> tuple[int, bool]:
        """The answer's status, and whether it came to its end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            lines = [line, "host: fuzz"]
            if "upgrade" not in headers:
                lines.append(f"content-length: {len(body)}")
            lines += [f"{name}: {value}" for name, value in headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            if leaves:
                await asyncio.sleep(self._random.choice((0, 0.001, 0.02)))
                return 0, False
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            status = int(head.split()[1])
            if "\r\ncontent-length: " not in head:
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(_READ_BYTES), _FOLLOWED_S)
                return status, False
            await reader.readexactly(int(head.partition("\r\ncontent-length: ")[2].split()[0]))
            return status, True
        finally:
            writer.transport.abort()

    def _headers(self, request_id: str) -> dict[str, str]:
        headers = {"x-request-id": request_id}
        if key := self._random.choice(self._keys):
            name, value = self._random.choice((("authorization", f"Bearer {key}"), ("x-api-key", key)))
            headers[name] = value
        if self._random.random() < 0.15:
            headers.update([self._random.choice(_ODD_HEADERS)])
        return headers

    def _body(self, method: Method) -> bytes:
        """A message in JSON; now and then spoilt, or something else."""
        roll = self._random.random()
        if roll < 0.05:
            return self._random.choice(_ODD_BODIES)
        message = method.request()
        try:
            message.ParseFromString(self._messages.draw(method.request))
            given = json_format.MessageToDict(message, preserving_proto_field_name=roll < 0.5)
        except (DecodeError, ValueError, json_format.Error):
            return self._random.randbytes(50)
        body = json.dumps(given, ensure_ascii=roll < 0.3).encode("utf-8", "surrogatepass")
        if roll < 0.8:
            return body
        spoilt = bytearray(body)
        for _ in range(self._random.randint(1, 3)):
            spoilt[self._random.randrange(len(spoilt))] = self._random.choice(b'{}[]",:0a\\-\x00\xff')
        return bytes(spoilt)


def _frame(message: bytes, source: random.Random) -> bytes:
    """A text message of a websocket; now and then of another kind, or with a wrong length."""
    opcode = source.choice((0x81,) * 8 + (0x82, 0x01, 0x89, 0xF1))
    length = len(message) + source.choice((0,) * 10 + (1, 1 << 40))
    return bytes((opcode, 0xFF)) + length.to_bytes(8, "big") + bytes(4) + message
