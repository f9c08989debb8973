"""One request from its admission to its end, however it ends."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from inferflux.common import subjects
from inferflux.common.bus import Bus, TokenSubscription
from inferflux.common.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InferFluxError,
    NotFound,
    ResourceExhausted,
    Unavailable,
    from_failed,
)
from inferflux.common.tracing import Span, Tracer
from inferflux.v1 import generation_pb2, model_pb2, scheduler_pb2, tokens_pb2

from .admission import Caller
from .background import Background
from .canceller import Canceller
from .ledger import Ending, Ledger
from .metrics import GatewayMetrics, ModelMetrics
from .relay import Relay, RelayLimits, replayed
from .spans import note_end
from .streams import Streams
from .submit import Submitter

_OUTCOMES = {
    generation_pb2.FINISH_REASON_STOP: "stop",
    generation_pb2.FINISH_REASON_LENGTH: "length",
    generation_pb2.FINISH_REASON_CANCELLED: "cancelled",
}

# Time for a stream that is to be resumed to say something, and for the scheduler to say whether it knows it.
_RESUME_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Services:
    """What a generation works with."""

    bus: Bus
    submitter: Submitter
    canceller: Canceller
    ledger: Ledger
    metrics: GatewayMetrics
    background: Background
    streams: Streams
    relay_limits: RelayLimits
    tracer: Tracer


@dataclass(frozen=True, slots=True)
class Call:
    """The RPC that a generation answers.

    Attributes:
        model: as the client named it; empty for Resume.
        request_id: of the generation, which for Resume is not that of the RPC.
        is_id_chosen: by the client, who may choose the same one twice.
        span: of the RPC.
        deadline_unix_ms: 0 if the client set none.
        started_at: monotonic, in seconds.
    """

    method: str
    model: str
    request_id: str
    is_id_chosen: bool
    caller: Caller
    span: Span
    deadline_unix_ms: int
    started_at: float

    @property
    def subject(self) -> str:
        return subjects.tokens(self.caller.tenant, self.request_id)


class Generation:
    """An async context: whatever ends it, the stream is closed, the request cancelled if nobody is left to
    read it, and its end written down once.
    """

    def __init__(self, call: Call, services: Services) -> None:
        self._call = call
        self._services = services
        self._source: TokenSubscription | None = None
        self._relay: Relay | None = None
        self._metrics: ModelMetrics | None = None
        self._failure: InferFluxError | None = None
        # Whether there is, or may be, a job of ours to settle and to cancel.
        self._is_submitted = False
        self._usage = generation_pb2.Usage()
        self._outcome = ""
        self._has_tokens = False
        self._last_tokens_at = 0.0

    async def __aenter__(self) -> Self:
        self._services.metrics.streams.inc()
        return self

    async def submit(
        self,
        card: model_pb2.ModelCard,
        request: scheduler_pb2.InferenceRequest,
        *,
        prompt_field: str,
    ) -> None:
        """Subscribe, then queue the job.

        Raises:
            InvalidArgument: the job is too large.
            AlreadyExists: the request id is taken.
            ResourceExhausted: the queue is full.
            Unavailable: it could not be queued.
        """
        self._services.submitter.check_open()
        payload = request.SerializeToString()
        self._services.submitter.check_size(payload, prompt_field)
        if self._call.is_id_chosen and await replayed(self._services.bus, self._call.subject):
            message = f"the request id {request.request_id} was used lately: use Resume to read its stream"
            raise AlreadyExists(message, reason="REQUEST_ID_TAKEN")
        await self._open(offset=0)
        self._metrics = self._services.metrics.of(card.name)
        self._usage.prompt_tokens = len(request.prompt_token_ids)
        self._is_submitted = True
        try:
            await self._services.submitter.submit(request, payload, traceparent=self._call.span.traceparent)
        except (AlreadyExists, ResourceExhausted):
            self._is_submitted = False
            raise
        self._call.span.event("queued")

    async def resume(self, offset: int) -> None:
        """Take up a stream that was begun elsewhere.

        Raises:
            NotFound: nothing is known of the request.
            Unavailable: it cannot be found out.
        """
        relay = await self._open(offset=offset)
        await relay.replay()
        if (
            not relay.has_heard
            and not await relay.hears_within(_RESUME_WAIT_S)
            and not await self._is_running()
        ):
            message = f"nothing is known of the request {self._call.request_id}"
            raise NotFound(message, reason="UNKNOWN_REQUEST")
        self._is_submitted = True

    async def next(self) -> tokens_pb2.TokenChunk | None:
        """The next chunk for the client, or None after the last.

        Raises:
            InferFluxError: the generation failed.
        """
        if self._failure is not None:
            raise self._failure
        if self._relay is None:
            raise RuntimeError("neither submitted nor resumed")
        chunk = await self._relay.next()
        if chunk is None:
            return None
        if chunk.token_ids:
            self._note_tokens(len(chunk.token_ids))
        event = chunk.WhichOneof("event")
        if event == "finished":
            self._usage.CopyFrom(chunk.finished.usage)
            self._outcome = _OUTCOMES.get(chunk.finished.reason, "unknown")
        elif event == "failed":
            self._failure = from_failed(chunk.failed)
            chunk.ClearField("failed")
            if not chunk.token_ids:
                raise self._failure
        return chunk

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        services = self._services
        services.metrics.streams.dec()
        if self._source is not None:
            await self._source.close()
        has_ended = self._relay is not None and self._relay.state.is_ended
        is_handed_over = services.streams.is_over and _is_gone(error) and not has_ended
        self._outcome = self._outcome_of(error, is_handed_over=is_handed_over)
        if self._is_submitted and not has_ended and not is_handed_over:
            await self._abandon()
        self._write_down(settle=self._is_submitted and not is_handed_over)
        if is_handed_over:
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            message = "this gateway is shutting down: Resume the request at any other"
            raise Unavailable(message, reason="GATEWAY_DRAINING") from None

    def _outcome_of(self, error: BaseException | None, *, is_handed_over: bool) -> str:
        if isinstance(error, InferFluxError):
            return error.reason.lower()
        if is_handed_over:
            return "handed_over"
        if self._outcome:
            return self._outcome
        if not _is_gone(error):
            return "internal"
        deadline = self._call.deadline_unix_ms
        return "deadline_exceeded" if deadline and time.time() * 1000 >= deadline else "cancelled"

    async def _open(self, *, offset: int) -> Relay:
        self._source = await self._services.bus.open_stream(self._call.subject)
        self._relay = Relay(
            self._source,
            self._services.bus,
            self._call.subject,
            offset=offset,
            limits=self._services.relay_limits,
        )
        return self._relay

    def _note_tokens(self, n: int) -> None:
        if not self._has_tokens:
            self._has_tokens = True
            self._call.span.event("first_token")
        metrics = self._metrics
        if metrics is None:
            return
        now = time.monotonic()
        if self._last_tokens_at:
            metrics.inter_token_latency.observe((now - self._last_tokens_at) / n)
        else:
            metrics.time_to_first_token.observe(now - self._call.started_at)
        self._last_tokens_at = now
        metrics.generation_tokens.inc(n)

    async def _abandon(self) -> None:
        """Nobody reads on: have the request stopped. Not to be cancelled itself."""
        call = self._call
        is_unheard = self._relay is None or not self._relay.has_heard
        work = self._services.canceller.abandon(
            call.caller.tenant, call.request_id, may_be_underway=is_unheard
        )
        await asyncio.shield(self._services.background.start(work))

    def _write_down(self, *, settle: bool) -> None:
        call = self._call
        if self._relay is not None and not self._usage.completion_tokens:
            self._usage.completion_tokens = self._relay.state.next_offset
        note_end(call.span, self._outcome, self._usage)
        duration_s = time.monotonic() - call.started_at
        if self._metrics is not None:
            self._metrics.duration.observe(duration_s)
            self._metrics.prompt_tokens.inc(self._usage.prompt_tokens)
            if self._outcome in ("stop", "length"):
                self._metrics.count_success(self._outcome)
        ending = Ending(
            method=call.method,
            tenant=call.caller.tenant,
            key_id=call.caller.key_id,
            request_id=call.request_id,
            model=call.model,
            outcome=self._outcome,
            usage=self._usage,
            duration_s=duration_s,
        )
        self._services.ledger.write(ending, settle=settle)

    async def _is_running(self) -> bool:
        """Whether the scheduler has it on a worker."""
        request = scheduler_pb2.SchedulerStatusRequest()
        try:
            reply = await self._services.bus.request(
                subjects.SCHEDULER_STATUS, request.SerializeToString(), timeout_s=_RESUME_WAIT_S
            )
        except (DeadlineExceeded, Unavailable):
            return False
        status = scheduler_pb2.SchedulerStatus.FromString(reply)
        ours = (self._call.caller.tenant, self._call.request_id)
        return any((slot.tenant, slot.request_id) == ours for view in status.workers for slot in view.slots)


def _is_gone(error: BaseException | None) -> bool:
    """Whether this is how a stream ends whose client went away, or that was ended from here."""
    return isinstance(error, asyncio.CancelledError | GeneratorExit)
