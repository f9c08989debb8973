"""Streams of JSON messages to a client: as server-sent events, or as lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from inferflux.common.contract.errors import HttpError, InferFluxError

from .exchange import Exchange, to_json

# Until then the status waits for the first message, so that a request that fails soon gets its own status.
HOLD_S = 5.0

_EVENTS, _LINES = "text/event-stream; charset=utf-8", "application/x-ndjson"
_COMMENT = b": waiting\n\n"

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Framing:
    """How messages become bytes.

    Attributes:
        content_type: of the stream.
        frame: the bytes of a message.
        waiting: what is said while nothing comes; empty: nothing, and the status waits for the first message.
        end: what ends a stream.
    """

    content_type: str
    frame: Callable[[Message], bytes]
    waiting: bytes = b""
    end: bytes = b""


def _data(message: Message) -> bytes:
    return b"data: " + to_json(message) + b"\n\n"


def _event(message: Message) -> bytes:
    return f"event: {message['type']}\n".encode() + _data(message)


def _line(message: Message) -> bytes:
    return to_json(message) + b"\n"


# Chats and completions of OpenAI's API; events that have their message's type as a name, of its responses;
# those of Anthropic's messages; lines of Ollama's API.
UNNAMED = Framing(_EVENTS, _data, _COMMENT, b"data: [DONE]\n\n")
NAMED = Framing(_EVENTS, _event, _COMMENT)
PINGED = Framing(_EVENTS, _event, _event({"type": "ping"}))
LINES = Framing(_LINES, _line)


class Events(Protocol):
    """How the messages of a stream are framed."""

    framing: Framing

    def failure(self, error: HttpError) -> Iterable[Message]:
        """Messages that end a stream that fails."""
        ...


class EventStream:
    """A stream of messages to one client."""

    def __init__(self, exchange: Exchange, events: Events) -> None:
        self._exchange = exchange
        self._framing = events.framing
        # Since the last time that was asked for.
        self._has_sent = False

        def failure(error: InferFluxError) -> bytes:
            return self._framed(events.failure(exchange.told(error))) + self._framing.end

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
        if has_sent or not self._framing.waiting:
            return
        await self._start()
        await self._exchange.write(self._framing.waiting)

    async def end(self) -> None:
        await self._start()
        await self._exchange.write(self._framing.end, is_last=True)

    def _framed(self, messages: Iterable[Message]) -> bytes:
        return b"".join(map(self._framing.frame, messages))

    async def _start(self) -> None:
        if not self._exchange.is_started:
            headers = {
                "content-type": self._framing.content_type,
                "cache-control": "no-cache",
                # nginx would collect what is to be read at once.
                "x-accel-buffering": "no",
            }
            await self._exchange.start(200, headers)
