"""Server-sent events: JSON messages, comments while nothing comes, and `[DONE]`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferflux.common.errors import InferFluxError, to_http

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


def event(message: Mapping[str, Any]) -> bytes:
    """One message as it is sent."""
    return b"data: " + to_json(message) + b"\n\n"


class EventStream:
    """Events to one client."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def send(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Send messages together; nothing if there are none."""
        data = b"".join(map(event, messages))
        if data:
            await self._start()
            await self._exchange.write(data)

    async def on_idle(self) -> None:
        """Say that the request is still there: proxies and clients count silence."""
        await self._start()
        await self._exchange.write(_COMMENT)

    async def end(self) -> None:
        await self._start()
        await self._exchange.write(_DONE, is_last=True)

    async def fail(self, error: InferFluxError) -> None:
        """End with an error: by its status, if that has not been sent."""
        if not self._exchange.is_started:
            await self._exchange.refuse(error)
            return
        await self._exchange.write(event(to_http(error).body) + _DONE, is_last=True)

    async def _start(self) -> None:
        if not self._exchange.is_started:
            await self._exchange.start(200, _HEADERS)
