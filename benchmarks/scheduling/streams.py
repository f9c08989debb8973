"""Requests as their client sees them: every token, when it came, and whether one was lost or came twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio

from benchmarks.load.trace import Trace
from inferflux.common.calls import grpc_client
from inferflux.v1 import generation_pb2, inference_pb2, inference_pb2_grpc, tokens_pb2

Request = inference_pb2.GenerateRequest | inference_pb2.ChatRequest


@dataclass(slots=True)
class Stream(Trace):
    """A request and what came back.

    Attributes:
        priority: it was sent with.
        token_ids: in the order they came, repeats left out.
        counts: tokens of each message in `arrivals_s`.
        workers: those that took it up, in turn.
        lost: tokens that never came.
        doubled: tokens that came again.
        finish_reason: of the terminal chunk; 0 until it came.
    """

    priority: int = 0
    token_ids: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    text: str = ""
    workers: list[str] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    finish_reason: int = 0

    @property
    def has_failed(self) -> bool:
        """Return whether it ended otherwise than by a terminal chunk that says it is complete."""
        complete = (generation_pb2.FINISH_REASON_STOP, generation_pb2.FINISH_REASON_LENGTH)
        return bool(self.error) or (self.ended_s > 0 and self.finish_reason not in complete)

    def take(self, chunk: tokens_pb2.TokenChunk, now_s: float) -> None:
        """Note a chunk that arrived at `now_s`."""
        if chunk.HasField("started"):
            self.workers.append(chunk.started.worker_id)
        if chunk.token_ids:
            self._take_tokens(chunk, now_s)
        self.text += chunk.text
        if chunk.HasField("finished"):
            self.finish_reason = chunk.finished.reason
        if chunk.HasField("failed"):
            self.error = f"{chunk.failed.reason}: {chunk.failed.message}"

    def _take_tokens(self, chunk: tokens_pb2.TokenChunk, now_s: float) -> None:
        place = self.tokens + self.lost
        self.lost += max(0, chunk.offset - place)
        repeated = min(max(0, place - chunk.offset), len(chunk.token_ids))
        self.doubled += repeated
        fresh = chunk.token_ids[repeated:]
        self.token_ids += fresh
        self.tokens += len(fresh)
        self.arrivals_s.append(now_s)
        self.counts.append(len(fresh))


@dataclass(frozen=True, slots=True)
class Underway:
    """A request that was sent: `stream` fills while `task` runs, which never raises."""

    stream: Stream
    task: asyncio.Task[None]


class Caller:
    """Sends requests under one API key."""

    def __init__(self, endpoint: str, api_key: str) -> None:
        self._channel = grpc_client.channel(endpoint)
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._api_key = api_key

    def send(self, request: Request, *, request_id: str = "") -> Underway:
        """Send a request now. Cancelling the task hangs up."""
        stream = Stream(sent_s=time.perf_counter(), priority=request.priority)
        return Underway(stream, asyncio.create_task(self._read(request, stream, request_id)))

    async def ask(self, request: Request) -> Stream:
        """Send a request, and wait for its end."""
        underway = self.send(request)
        await underway.task
        return underway.stream

    async def cancel(self, request_id: str) -> None:
        """Have a request of this key's tenant cancelled; returns when the scheduler has confirmed it.

        Raises:
            AioRpcError: it has not.
        """
        message = inference_pb2.CancelRequest(request_id=request_id)
        await self._inference.Cancel(message, metadata=self._metadata(), timeout=10)

    async def close(self) -> None:
        await self._channel.close()

    async def _read(self, request: Request, stream: Stream, request_id: str) -> None:
        metadata = self._metadata(request_id)
        call = (
            self._inference.Chat(request, metadata=metadata)
            if isinstance(request, inference_pb2.ChatRequest)
            else self._inference.Generate(request, metadata=metadata)
        )
        try:
            async for response in call:
                stream.take(response.chunk, time.perf_counter())
        except grpc.aio.AioRpcError as error:
            stream.error = stream.error or f"{error.code().name}: {error.details()}"
        finally:
            stream.ended_s = time.perf_counter()
            # grpc.aio never cancels an RPC whose call object is merely dropped.
            call.cancel()

    def _metadata(self, request_id: str = "") -> tuple[tuple[str, str], ...]:
        return grpc_client.outgoing(api_key=self._api_key, request_id=request_id)


def countdown(model: str, start: int, end: int) -> inference_pb2.ChatRequest:
    """About a hundred tokens of which the demo model is sure.

    Its second choice is always far behind, so what else is in the batch, which changes the last bits of the
    logits, cannot change the text.
    """
    content = f"Count down from {start} to {end}."
    return inference_pb2.ChatRequest(
        model=model,
        messages=[inference_pb2.ChatMessage(role="user", content=content)],
        params=generation_pb2.GenerationParams(
            max_tokens=300, sampling=generation_pb2.SamplingParams(temperature=0.0)
        ),
    )


async def ends(underway: Iterable[Underway], limit_s: float) -> list[Stream]:
    """Wait until all have ended; what has not in time is hung up on, and has failed."""
    sent = list(underway)
    _, late = await asyncio.wait([one.task for one in sent], timeout=limit_s)
    for one in sent:
        if one.task in late:
            one.stream.error = f"not finished within {limit_s:g} s"
    await hang_up(late)
    return [one.stream for one in sent]


async def hang_up(tasks: Iterable[asyncio.Task[None]]) -> None:
    """End the calls, and wait until they are."""
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)


def failures(streams: Sequence[Stream]) -> list[str]:
    """Why those failed that did."""
    return [s.error or "ended without a terminal chunk" for s in streams if s.has_failed]
