"""An OpenAI-style HTTP server under load: llama.cpp's own, or any that streams /v1/completions."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from .http_stream import EventParser, ProtocolError, ResponseParser
from .prompts import Prompt
from .sampling import GREEDY, Sampling
from .trace import Trace

_DONE = b"[DONE]"


@dataclass(slots=True)
class Completion:
    """Reads the events of one streamed completion. Only its last events are parsed as JSON."""

    trace: Trace
    events: int = 0
    is_done: bool = False

    def take(self, event: bytes, now_s: float) -> None:
        """An event arrived at `now_s`."""
        if b'"finish_reason":null' in event or b'"finish_reason": null' in event:
            self.trace.arrivals_s.append(now_s)
            self.events += 1
            return
        if event == _DONE:
            self.is_done = True
            # Without usage every event with text counts as one token.
            self.trace.tokens = self.trace.tokens or self.events
            return
        self._take_last(json.loads(event), now_s)

    def _take_last(self, event: dict[str, Any], now_s: float) -> None:
        if error := event.get("error"):
            self.trace.error = str(error.get("message", error) if isinstance(error, dict) else error)
        if any(choice.get("text") for choice in event.get("choices") or ()):
            self.trace.arrivals_s.append(now_s)
            self.events += 1
        if usage := event.get("usage"):
            self.trace.tokens = usage["completion_tokens"]


class _Connection(asyncio.Protocol):
    """A kept-alive connection with at most one completion on the way."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.is_open = False
        self._response = ResponseParser()
        self._events = EventParser()
        self._completion = Completion(Trace(0.0))
        self._body = b""
        self._done: asyncio.Future[None] | None = None

    @property
    def has_answered(self) -> bool:
        """Return whether the answer to the present request has begun."""
        return self._response.status != 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._response.end()
        self._settle(exc or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        try:
            body = self._response.feed(data)
            if self._response.status == 200:
                for event in self._events.feed(body):
                    self._completion.take(event, now)
            else:
                self._body += body
        except (ProtocolError, ValueError, KeyError) as error:
            self.transport.abort()
            self._settle(ProtocolError(str(error)))
            return
        if self._response.is_complete:
            self._settle(None)

    async def exchange(self, request: bytes, completion: Completion) -> tuple[int, bytes]:
        """Send a request; returns (status, body unless it was a stream of events) at the answer's end.

        Raises:
            OSError: the connection broke before that.
            ProtocolError: the answer makes no sense.
        """
        self._response, self._events, self._body = ResponseParser(), EventParser(), b""
        self._completion = completion
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        await self._done
        self.is_open = self.is_open and self._response.keeps_alive
        return self._response.status, self._body

    def _settle(self, error: Exception | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None or self._response.is_complete:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """How tokens are drawn, as /v1/completions takes it.

    `samplers` and `min_p` are llama.cpp's own: without them it would go through more steps than ours.
    """
    if sampling.is_greedy:
        return {"temperature": 0}
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": 0,
        "samplers": ["top_k", "top_p", "temperature"],
    }


class SseTarget:
    """A server at http://host:port.

    Args:
        keeps_prompts: llama.cpp's server may go on from what it has computed of a prompt before.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: str,
        sampling: Sampling = GREEDY,
        keeps_prompts: bool = False,
    ) -> None:
        self._keeps_prompts = keeps_prompts
        parts = urlsplit(url if "//" in url else f"http://{url}")
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._model = model
        self._sampling = sampling
        self._authorization = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._idle: list[_Connection] = []

    async def vocabulary_size(self) -> int:
        """As llama.cpp's server tells it in /v1/models.

        Raises:
            OSError: the server does not answer.
            ProtocolError: it does not say.
        """
        request = self._request("GET", "/v1/models", b"").replace(b"keep-alive", b"close")
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(request)
            answer = await reader.read()
        finally:
            writer.close()
        response = ResponseParser()
        body = response.feed(answer)
        try:
            size = json.loads(body)["data"][0]["meta"]["n_vocab"]
        except (ValueError, LookupError, TypeError):
            raise ProtocolError(
                "the server does not tell its vocabulary's size: give --token-range"
            ) from None
        return int(size)

    async def generate(self, prompt: Prompt, max_tokens: int, trace: Trace) -> None:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            **sampling_fields(self._sampling),
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "cache_prompt": self._keeps_prompts,
        }
        request = self._request("POST", "/v1/completions", json.dumps(body).encode())
        completion = Completion(trace)
        try:
            status, answer = await self._exchange(request, completion)
        except (OSError, ProtocolError) as error:
            trace.error = f"{type(error).__name__}: {error}"
            return
        if status != 200:
            trace.error = f"HTTP {status}: {answer.decode('utf-8', 'replace')[:200]}"
        elif not completion.is_done and not trace.error:
            trace.error = "the stream ended before [DONE]"

    async def _exchange(self, request: bytes, completion: Completion) -> tuple[int, bytes]:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                try:
                    return await self._exchange_on(connection, request, completion)
                except OSError:
                    # A server may close a kept connection at the moment it is used again.
                    if connection.has_answered:
                        raise
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, self._host, self._port)
        return await self._exchange_on(connection, request, completion)

    async def _exchange_on(
        self, connection: _Connection, request: bytes, completion: Completion
    ) -> tuple[int, bytes]:
        try:
            answer = await connection.exchange(request, completion)
        except BaseException:
            connection.transport.abort()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return answer

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        head = (
            f"{method} {self._base}{path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Connection: keep-alive\r\nContent-Type: application/json\r\n{self._authorization}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def close(self) -> None:
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()
