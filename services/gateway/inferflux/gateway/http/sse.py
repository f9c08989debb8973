"""Server-sent events: JSON messages, and comments while nothing comes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from inferflux.common.errors import HttpError, InferFluxError, to_http

from .exchange import Exchange, to_json

# Until then the status waits for the first message, so that a request that fails soon gets its own status.
HOLD_S = 5.0

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # nginx would collect what is to be read at once.
    "x-accel-buffering": "no",
}
_DONE = b"data: [DONE]\n\n"
_COMMENT = b": waiting\n\n"

Message = Mapping[str, Any]


class Events(Protocol):
    """How the messages of a stream are framed.

    Attributes:
        are_named: each event has its message's type as a name; else the stream ends with `[DONE]`.
    """

    are_named: bool

    def failure(self, error: HttpError) -> Iterable[Message]:
        """What a stream that fails ends with."""
        ...


class EventStream:
    """Events to one client."""

    def __init__(self, exchange: Exchange, events: Events) -> None:
        self._exchange = exchange
        self._are_named = events.are_named
        self._end = b"" if events.are_named else _DONE
        # Since the last time that was asked for.
        self._has_sent = False

        def failure(error: InferFluxError) -> bytes:
            return self._framed(events.failure(to_http(error))) + self._end

        exchange.failure = failure

    async def send(self, messages: Iterable[Message]) -> None:
        """Send messages together; nothing if there are none."""
        data = self._framed(messages)
        if data:
            await self._start()
            await self._exchange.write(data)
            self._has_sent = True

    async def on_idle(self) -> None:
        """Say that the request is still there, if nothing else was said since the last time: proxies and
        clients count silence."""
        has_sent, self._has_sent = self._has_sent, False
        if has_sent:
            return
        await self._start()
        await self._exchange.write(_COMMENT)

    async def end(self) -> None:
        await self._start()
        await self._exchange.write(self._end, is_last=True)

    def _framed(self, messages: Iterable[Message]) -> bytes:
        return b"".join(map(self._event, messages))

    def _event(self, message: Message) -> bytes:
        name = f"event: {message['type']}\n".encode() if self._are_named else b""
        return name + b"data: " + to_json(message) + b"\n\n"

    async def _start(self) -> None:
        if not self._exchange.is_started:
            await self._exchange.start(200, _HEADERS)
