"""InferFlux under load, through a gRPC client that costs as little as the HTTP one.

grpcio takes several times as long per message as reading a server-sent event does. Where client and server
share cores, that would be held against the server; so comparisons between protocols use this one.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast
from urllib.parse import unquote

from inferflux.common.calls import grpc_client
from inferflux.v1 import inference_pb2, model_pb2

from . import http2
from .grpc_target import generate_request, take_chunk
from .http2 import FrameType
from .prompts import Prompt
from .sampling import GREEDY, Sampling
from .trace import Trace

_INFERENCE = "/inferflux.v1.InferenceService/Generate"
_MODEL = "/inferflux.v1.ModelService/GetModel"

# Calls on one connection at a time, as a server may allow.
_MOST_STREAMS = 900
# A server takes a hundred calls on a connection until its settings are acknowledged, and has not begun with
# one that it refuses: gRPC's own clients send such a call again too.
_REFUSED = (7).to_bytes(4).hex()
_REFUSED_PAUSE_S = 0.02


class _Stream:
    """One call: its messages go to `take`, its end to `done`."""

    def __init__(self) -> None:
        self.messages = http2.MessageReader()
        self.done: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    def take(self, message: bytes, now_s: float) -> None:
        raise NotImplementedError

    def begin_again(self) -> None:
        """The call has ended before anything of it came, and is made once more."""
        self.done = asyncio.get_running_loop().create_future()

    def end(self, trailers: dict[str, str]) -> None:
        if not self.done.done():
            self.done.set_result(trailers)


class _Generation(_Stream):
    def __init__(self, trace: Trace, wall_s: float) -> None:
        super().__init__()
        self._trace = trace
        self._wall_s = wall_s

    def take(self, message: bytes, now_s: float) -> None:
        response = inference_pb2.GenerateResponse.FromString(message)
        take_chunk(response.chunk, self._trace, now_s, self._wall_s)


class _Unary(_Stream):
    answer = b""

    def take(self, message: bytes, now_s: float) -> None:  # noqa: ARG002 - a stream's signature
        self.answer = message


class _Connection(asyncio.Protocol):
    """One HTTP/2 connection for all calls, as a gRPC channel keeps it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._frames = http2.FrameReader()
        self._streams: dict[int, _Stream] = {}
        self._next_id = 1
        self.is_leaving = False
        self._requests = http2.Requests()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(http2.opening())

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail_all(str(exc or "the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        try:
            for frame in self._frames.feed(data):
                self._take(frame, now)
        except (http2.Http2Error, ValueError) as error:
            self._fail_all(str(error))
            self.transport.abort()

    @property
    def n_streams(self) -> int:
        return len(self._streams)

    async def call(self, stream: _Stream, headers: list[tuple[str, str]], message: bytes) -> dict[str, str]:
        """Send a request; returns the trailers once the stream has ended."""
        number = self._next_id
        self._next_id += 2
        self._streams[number] = stream
        self.transport.write(self._requests.begin(number, headers, message))
        try:
            return await stream.done
        finally:
            if self._streams.pop(number, None) is not None and not self.transport.is_closing():
                self._requests.end(number)
                cancelled = (8).to_bytes(4)
                self.transport.write(http2.frame(FrameType.RST_STREAM, 0, number, cancelled))

    def _take(self, frame: http2.Frame, now_s: float) -> None:
        stream = self._streams.get(frame.stream)
        if frame.kind == FrameType.DATA:
            if stream is not None:
                for message in stream.messages.feed(frame.payload):
                    stream.take(message, now_s)
        elif frame.kind == FrameType.HEADERS:
            if stream is not None and frame.flags & http2.END_STREAM:
                self._end(frame.stream, http2.decode_headers(http2.header_block(frame)))
        elif frame.kind == FrameType.SETTINGS and not frame.flags & http2.ACK:
            self.transport.write(http2.frame(FrameType.SETTINGS, http2.ACK, 0) + self._requests.take(frame))
        elif frame.kind == FrameType.PING and not frame.flags & http2.ACK:
            self.transport.write(http2.frame(FrameType.PING, http2.ACK, 0, frame.payload))
        elif frame.kind == FrameType.WINDOW_UPDATE:
            if data := self._requests.take(frame):
                self.transport.write(data)
        elif frame.kind == FrameType.RST_STREAM:
            self._end(frame.stream, {"grpc-status": "RST_STREAM", "grpc-message": frame.payload.hex()})
        elif frame.kind == FrameType.GOAWAY:
            self._leave(frame.payload)

    def _leave(self, goaway: bytes) -> None:
        """Take no further call. Those that the server has taken go on, unless it tells of an error."""
        self.is_leaving = True
        last, error = int.from_bytes(goaway[:4]), int.from_bytes(goaway[4:8])
        why = f"GOAWAY {goaway[8:].decode('utf-8', 'replace')}"
        for number in [number for number in self._streams if error or number > last]:
            self._end(number, {"grpc-status": "UNAVAILABLE", "grpc-message": why})

    def _end(self, number: int, trailers: dict[str, str]) -> None:
        self._requests.end(number)
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.end(trailers)

    def _fail_all(self, why: str) -> None:
        for number in list(self._streams):
            self._end(number, {"grpc-status": "UNAVAILABLE", "grpc-message": why})


class LeanGrpcTarget:
    """A gateway at host:port."""

    def __init__(self, address: str, *, model: str, api_key: str, sampling: Sampling = GREEDY) -> None:
        self._host, _, port = address.removeprefix("grpc://").rpartition(":")
        self._port = int(port)
        self._model = model
        self._sampling = sampling
        self._metadata = grpc_client.outgoing(api_key=api_key)
        self._connections: list[_Connection] = []
        self._connecting = asyncio.Lock()
        self._wall_s = time.time() - time.perf_counter()

    async def vocabulary_size(self) -> int:
        """Raises OSError when the server does not answer, or the model is not served."""
        stream = _Unary()
        asked = model_pb2.GetModelRequest(name=self._model).SerializeToString()
        if why := await self._call(stream, _MODEL, asked):
            raise OSError(why)
        return model_pb2.GetModelResponse.FromString(stream.answer).model.card.vocabulary_size

    async def generate(self, prompt: Prompt, max_tokens: int, trace: Trace) -> None:
        request = generate_request(self._model, prompt, max_tokens, sampling=self._sampling)
        message = request.SerializeToString()
        try:
            why = await self._call(_Generation(trace, self._wall_s), _INFERENCE, message)
        except (OSError, http2.Http2Error) as error:
            why = f"{type(error).__name__}: {error}"
        trace.error = trace.error or why

    async def _call(self, stream: _Stream, method: str, message: bytes) -> str:
        """Why the call failed; "" if it did not."""
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", f"{self._host}:{self._port}"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *self._metadata,
        ]
        while True:
            connection = await self._connected()
            trailers = await connection.call(stream, headers, message)
            if trailers.get("grpc-status") != "RST_STREAM" or trailers["grpc-message"] != _REFUSED:
                break
            stream.begin_again()
            await asyncio.sleep(_REFUSED_PAUSE_S)
        status = trailers.get("grpc-status", "no status")
        return "" if status == "0" else f"{status}: {unquote(trailers.get('grpc-message', ''))}"

    async def _connected(self) -> _Connection:
        """The connection with the fewest calls; one more where all are full."""
        async with self._connecting:
            self._connections = [one for one in self._connections if not one.transport.is_closing()]
            open_ones = [one for one in self._connections if not one.is_leaving]
            best = min(open_ones, key=lambda one: one.n_streams, default=None)
            if best is None or best.n_streams >= _MOST_STREAMS:
                loop = asyncio.get_running_loop()
                _, best = await loop.create_connection(_Connection, self._host, self._port)
                self._connections.append(best)
        return best

    async def close(self) -> None:
        for connection in self._connections:
            connection.transport.close()
