"""The audit lines of a websocket whose client leaves."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import pytest
from starlette.types import Message

from inferflux.common.calls.audit.writer import AuditTrail
from inferflux.common.calls.calls import CallContext
from inferflux.common.contract.errors import Unauthenticated
from inferflux.gateway.http.front.endpoint import Edge
from inferflux.gateway.http.paths.reading import BodyReader
from inferflux.gateway.http.paths.websocket import WebSocketEndpoint
from inferflux.gateway.policy.caller import Caller


class Trail(AuditTrail):
    def __init__(self) -> None:
        super().__init__(None)
        self.lines: list[dict[str, object]] = []

    def write(self, event: str, **fields: object) -> None:
        self.lines.append({"event": event, **fields})


class Client:
    """Sends a request, and is gone when it is answered."""

    def __init__(self) -> None:
        self.sent = deque[Message](
            [
                {"type": "websocket.connect"},
                {"type": "websocket.receive", "text": '{"model": "demo", "prompt": "x"}'},
            ]
        )

    async def receive(self) -> Message:
        return self.sent.popleft()

    async def send(self, message: Message) -> None:
        if message["type"] == "websocket.send":
            raise OSError("the client is gone")


class Named:
    async def meant(self, name: str, _role: int, _caller: object) -> str:
        return name


async def test_a_request_whose_client_left_before_it_was_queued_has_its_line() -> None:
    async def admit(_scope: str, _context: CallContext) -> Caller:
        return Caller("acme", "key_0")

    trail, client, unused = Trail(), Client(), cast("Any", None)
    bodies = BodyReader(cast("Any", Named()))
    endpoint = WebSocketEndpoint(Edge(admit, unused, trail), unused, bodies)
    await endpoint({"type": "websocket", "headers": []}, client.receive, client.send)
    (line,) = trail.lines
    assert (line["event"], line["tenant"], line["method"]) == ("call", "acme", "WEBSOCKET /generate")
    assert (line["outcome"], line["decision"]) == ("left", "allowed")


@pytest.mark.parametrize("is_admitted", [False, True])
async def test_a_client_that_leaves_before_its_handshake_is_answered_ends_it_as_the_server_expects(
    is_admitted: bool,
) -> None:
    class ClientDisconnected(OSError):
        """What uvicorn raises where the client has left, and takes for no defect."""

    async def admit(_scope: str, _context: CallContext) -> Caller:
        if not is_admitted:
            raise Unauthenticated("no key", reason="NO_CREDENTIAL")
        return Caller("acme", "key_0")

    async def send(_message: Message) -> None:
        raise ClientDisconnected

    trail, client, unused = Trail(), Client(), cast("Any", None)
    endpoint = WebSocketEndpoint(Edge(admit, unused, trail), unused, unused)
    with pytest.raises(ClientDisconnected):
        await endpoint({"type": "websocket", "headers": []}, client.receive, send)
    assert len(trail.lines) == (not is_admitted)
