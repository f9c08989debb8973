"""A websocket to a gateway."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

from wsproto import ConnectionType, WSConnection, events

WAIT_S = 20.0


class WebSocket:
    """A client's end. Use as an async context manager.

    Attributes:
        status: of the handshake's answer; 101 where it was accepted.
        close_code: once the server has closed it.
    """

    def __init__(
        self, port: int, path: str = "/generate", *, key: str = "", offers: Sequence[str] = ()
    ) -> None:
        self._port = port
        headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        self._request = events.Request(
            host="gateway", target=path, subprotocols=list(offers), extra_headers=headers
        )
        self._ws = WSConnection(ConnectionType.CLIENT)
        self._events: deque[events.Event] = deque()
        self.status = 0
        self.subprotocol: str | None = None
        self.denial = b""
        self.close_code = 0
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self._reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._put(self._request)
        event = await self._next()
        if isinstance(event, events.AcceptConnection):
            self.status, self.subprotocol = 101, event.subprotocol
        elif isinstance(event, events.RejectConnection):
            self.status = event.status_code
            while event is not None and not (isinstance(event, events.RejectData) and event.body_finished):
                if isinstance(event, events.RejectData):
                    self.denial += event.data
                event = await self._next()
            if isinstance(event, events.RejectData):
                self.denial += event.data
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()

    def abort(self) -> None:
        """Leave without a word."""
        self.writer.transport.abort()

    def send(self, message: object) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self._put(events.TextMessage(text))

    def send_raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def next(self) -> Any:
        """The next message; None once the server has closed."""
        text = ""
        while (event := await self._next()) is not None:
            if isinstance(event, events.TextMessage):
                text += event.data
                if event.message_finished:
                    return json.loads(text)
            elif isinstance(event, events.Ping):
                self._put(event.response())
            elif isinstance(event, events.CloseConnection):
                self.close_code = event.code
                return None
        return None

    async def until_end(self) -> list[Any]:
        """The messages of a request up to its last one."""
        messages: list[Any] = []
        while (message := await self.next()) is not None:
            messages.append(message)
            if "finish_reason" in message or "error" in message:
                break
        return messages

    def _put(self, event: events.Event) -> None:
        self.writer.write(self._ws.send(event))

    async def _next(self) -> events.Event | None:
        async with asyncio.timeout(WAIT_S):
            while not self._events:
                try:
                    data = await self._reader.read(1 << 16)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._ws.receive_data(data)
                self._events.extend(self._ws.events())
        return self._events.popleft()
