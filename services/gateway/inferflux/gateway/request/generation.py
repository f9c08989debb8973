"""One request from its admission to its end, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from inferflux.common.bus import Bus, TokenSubscription
from inferflux.common.calls.audit.writer import AuditTrail
from inferflux.common.contract import attempts
from inferflux.common.contract.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InferFluxError,
    InvalidArgument,
    NotFound,
    Unavailable,
    from_failed,
)
from inferflux.common.contract.request_times import stamp
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background
from inferflux.common.tracing import Tracer
from inferflux.gateway.answers.cache import AnswerCache, Query
from inferflux.gateway.answers.publishing import publish
from inferflux.gateway.answers.record import stream_of
from inferflux.gateway.answers.source import StoredChunks
from inferflux.gateway.metrics import GatewayMetrics
from inferflux.gateway.policy.ledger import FinishedRequest, Ledger
from inferflux.gateway.policy.reservations import Reservations
from inferflux.gateway.stream.canceller import Canceller
from inferflux.gateway.stream.chunk_guard import ChunkGuard
from inferflux.gateway.stream.lost_tokens import want_again
from inferflux.gateway.stream.readers import ReaderReports
from inferflux.gateway.stream.relay import Relay, RelayLimits, TokenSource, replayed
from inferflux.gateway.stream.stream_guards import StreamGuards, attempt_told_by, model_told_by
from inferflux.v1 import (
    answers_pb2,
    generation_pb2,
    inference_pb2,
    model_pb2,
    policy_pb2,
    scheduler_pb2,
    tokens_pb2,
)

from .account import FILTERED, Account
from .call import Call
from .chat_reader import ChatReader, Rest, has_format
from .departure import depart
from .streams import Streams
from .submit import Submitter, is_refused, taken

log = logs.get()

_COMPLETE = frozenset(
    {
        generation_pb2.FINISH_REASON_STOP,
        generation_pb2.FINISH_REASON_LENGTH,
        generation_pb2.FINISH_REASON_SCHEMA_MISMATCH,
        generation_pb2.FINISH_REASON_SCHEMA_MISMATCH,
    }
)

# Time for a stream that is to be resumed to say something.
_RESUME_WAIT_S = 1.0
# A standby leads within this time.
_TAKE_OVER_S = 3.0
# Time for the terminal chunk of a request that was cancelled because its reader left.
_LAST_CHUNK_S = 5.0
# A client counts its deadline from when it sent the call, so its timer ends the call before ours.
_CLIENT_TIMER_AHEAD_S = 0.1


@dataclass(frozen=True, slots=True)
class Services:
    """What a generation works with.

    Attributes:
        answers: None where no answers are cached.
    """

    bus: Bus
    submitter: Submitter
    canceller: Canceller
    reader_reports: ReaderReports
    reservations: Reservations
    guards: StreamGuards
    ledger: Ledger
    metrics: GatewayMetrics
    background: Background
    streams: Streams
    relay_limits: RelayLimits
    tracer: Tracer
    trail: AuditTrail
    answers: AnswerCache | None = None


class Generation:
    """An async context: whatever ends it, the stream is closed, and the finished request is recorded once.
    The scheduler is told when the request has no reader here any more.

    What a request used is settled by its terminal chunk. When the client leaves earlier, the gateway reads on
    until that chunk has come: hanging up does not evade the account.
    """

    def __init__(self, call: Call, services: Services) -> None:
        self._call = call
        # Of the job, which is not always what the client asked for; 0 for one that was resumed.
        self.priority = 0
        self._services = services
        self._account = Account(
            call,
            reservations=services.reservations,
            ledger=services.ledger,
            metrics=services.metrics,
            trail=services.trail,
        )
        self._source: TokenSubscription | None = None
        self._relay: Relay | None = None
        self._failure: InferFluxError | None = None
        # Tells calls and reasoning from content; None where all of the text is content.
        self._reader: ChatReader | None = None
        # Of a stream that was resumed.
        self._rest: Rest | None = None
        # None where the answer is held to no guardrails.
        self._guard: ChunkGuard | None = None
        # Whether the client has been given the end of its stream.
        self._is_told_end = False
        # Whether there is, or may be, a job to settle; this gateway then has a reader of it.
        self._is_submitted = False
        # Whether only its chunks can tell that there is a job.
        self._is_unconfirmed = False
        # Whether it is answered from the cache, without a job.
        self._is_answered = False
        # Of a request whose answer may be kept.
        self._query: Query | None = None
        self._read = scheduler_pb2.ReadRequest(tenant=call.caller.tenant, request_id=call.request_id)
        # None while it is not known.
        self._window_s: int | None = None
        # Tokens the client says it has.
        self._offset = 0
        self._served_as = self.digest = ""
        self.prompt_tokens = 0
        # Keywords of its schemas that the check of the complete answer alone knows, for the client to read.
        self.unenforced = ""

    async def __aenter__(self) -> Self:
        self._services.metrics.streams.inc()
        self._call.context.record.is_written = True
        return self

    @property
    def limits(self) -> Sequence[policy_pb2.RateLimitState]:
        """What is left of the caller's limits."""
        return self._account.limits

    @property
    def served_as(self) -> str:
        """The model that answers, with its adapter if there is one; empty before that is known."""
        return self._served_as

    def serves(self, name: str, *, digest: str = "", prompt_tokens: int = 0) -> None:
        """Note which model answers, with its adapter, the digest of its file, and how long the prompt is."""
        self._served_as, self.digest, self.prompt_tokens = name, digest, prompt_tokens

    def note_prompt(self, text: str) -> None:
        """What the request is to answer, for its audit line."""
        self._account.note_prompt(text)

    async def reserve(self, request: scheduler_pb2.InferenceRequest, *, text: str | None = None) -> None:
        """Have policy let the request be queued. What is reserved is settled with the generation's end.

        Args:
            text: of the prompt, where policy wants it.

        Raises:
            ResourceExhausted: it would be over a limit.
            PermissionDenied: guardrails do not let the prompt pass.
            Aborted: GUARDRAILS_NEED_TEXT: ask again with the text.
            InferFluxError: policy says no, or does not answer: then nothing is queued.
        """
        answer = await self._account.reserve(request, text=text)
        self._call.span.event("reserved")
        if request.HasField("embedding"):  # what comes of it is no text
            return
        self._guard = await self._services.guards.of_reservation(
            request.tenant, request.model, answer.stream_guards
        )

    async def submit(
        self,
        card: model_pb2.ModelCard,
        request: scheduler_pb2.InferenceRequest,
        *,
        prompt_field: str,
        query: Query | None = None,
    ) -> None:
        """Subscribe, then queue the job.

        Args:
            query: of a request whose answer is to be kept.

        Raises:
            InvalidArgument: the job is too large.
            AlreadyExists: the request id is taken.
            ResourceExhausted: the queue is full.
            Unavailable: it could not be queued, or the outcome is unknown.
        """
        self._services.submitter.check_open()
        stamp(request, deadline_at=self._call.context.deadline_at)
        payload = request.SerializeToString()
        self._services.submitter.check_size(payload, prompt_field)
        attempt = await self._known_attempt(request)
        self._query = query
        await self._open()
        self._begin(card, request)
        has_job = True
        self._is_unconfirmed = True
        try:
            attempt = attempt or await self._put(request, payload)
            self._is_unconfirmed = False
        except InferFluxError as error:
            has_job = not is_refused(error)
            raise
        finally:  # also when the client left meanwhile
            if has_job:
                self._join()
        self._call.span.event("queued")
        if attempt != request.attempt_id:
            await self._attach(attempt)

    async def _put(self, request: scheduler_pb2.InferenceRequest, payload: bytes) -> str:
        """Queue the job; the attempt of the one that is there."""
        traceparent = self._call.span.traceparent
        try:
            return await self._services.submitter.submit(request, payload, traceparent=traceparent)
        except AlreadyExists:
            # The same call may have ended just now, and its job is gone.
            if attempt := await self._known_attempt(request):
                return attempt
            raise

    async def _attach(self, attempt: str) -> None:
        """Read the job of the same call, which was sent before: what came of it so far, and what comes."""
        self._read.attempt_id = attempt
        self._rest, self._reader, self._query = Rest(0), None, None
        if self._relay is not None:
            with contextlib.suppress(Unavailable):  # what is missing is asked for later
                await self._relay.replay()
            if not self._relay.state.is_ended:
                # Not with the next report: the first call's reader may leave before, and end the request.
                self._services.background.start(self._announce())

    async def answer(
        self,
        card: model_pb2.ModelCard,
        request: scheduler_pb2.InferenceRequest,
        cached: answers_pb2.CachedAnswer,
    ) -> None:
        """Answer from the cache: no job is queued. The chunks are published as a worker's are, so that the
        stream can be resumed and read along.

        Raises:
            AlreadyExists: the request id is taken.
            Unavailable: NATS does not say whether it is.
        """
        known = await self._known_attempt(request)
        chunks = stream_of(
            cached,
            request_id=request.request_id,
            attempt_id=known or request.attempt_id,
            model=request.model,
            prompt_tokens=len(request.prompt_token_ids),
            answer_format=request.answer_format if request.HasField("answer_format") else None,
        )
        messages = [chunk.SerializeToString() for chunk in chunks]
        services = self._services
        services.background.start(
            publish(services.bus, self._call.subject, messages, window_s=request.resume_window_s)
        )
        self._relay = self._relay_of(StoredChunks(messages), offset=0)
        self._begin(card, request)
        self._account.note_usage(chunks[-1].finished.usage)
        self._is_answered = True
        self._call.span.event("answered_from_cache")

    async def _known_attempt(self, request: scheduler_pb2.InferenceRequest) -> str:
        """The attempt of the same call, sent before, that runs or has ended; "" without one, as far as chunks
        tell.

        Raises:
            AlreadyExists: the request id is another call's.
            Unavailable: NATS does not say whether it is.
        """
        if not self._call.context.is_id_chosen:
            return ""
        stored = await replayed(self._services.bus, self._call.subject)
        known = attempt_told_by(stored)
        is_same = attempts.is_same(known, request.attempt_id)
        # Where the first chunk is not stored any more, the queue tells whose the stream is.
        may_be_same = is_same or (not known and attempts.may_be_sent_again(request.attempt_id))
        if stored and not may_be_same:
            raise taken(request.request_id)
        return known

    def _begin(self, card: model_pb2.ModelCard, request: scheduler_pb2.InferenceRequest) -> None:
        self.priority = request.priority
        self._account.begin(card.name, prompt_tokens=len(request.prompt_token_ids))
        self._read.attempt_id = request.attempt_id
        self._window_s = request.resume_window_s
        if request.HasField("answer_format"):
            self._reader = ChatReader(request.answer_format)

    async def resume(self, offset: int) -> None:
        """Take up a stream that was begun elsewhere.

        Raises:
            NotFound: the scheduler does not know the request, and no chunk of it is stored.
            Unavailable: NATS, or the request's scheduler, does not answer.
        """
        self._offset = offset
        self._rest = Rest(offset)
        self._source = await self._services.bus.open_stream(self._call.subject)
        self._join()
        asked = self._services.background.start(self._announce())
        try:
            stored = await replayed(self._services.bus, self._call.subject)
            self._guard = await self._guard_of(stored, asked)
            is_read_whole = offset > 0 and await self._is_read_whole(stored, asked)
            relay = self._relay = self._relay_of(self._source, offset=0 if is_read_whole else offset)
            relay.take_all(stored)
            if not relay.has_received and not await relay.receives_within(_RESUME_WAIT_S):
                known = await asyncio.shield(asked)
                # Chunks that came before the stream was read may have been stored after that look.
                await relay.replay()
                if not relay.has_received:
                    self._check_known(known)
        except BaseException:  # what could not be resumed here is not ended here
            if self._withdraw():
                self._services.background.start(self._take_back(asked))
            raise

    async def _is_read_whole(
        self, stored: list[bytes], asked: asyncio.Task[scheduler_pb2.ReaderReply | None]
    ) -> bool:
        """Whether what comes next can be read only after all that came before.

        The answer's first or last chunk decides where it is stored, and the scheduler otherwise. A request
        without any chunk that the scheduler does not know may be answered from the cache: all is yet to come.

        Raises:
            Unavailable: only some chunks in between are stored, and no scheduler answers.
        """
        decided = True if self._guard is not None else has_format(stored)
        if decided is not None:
            return decided
        reply = await asyncio.shield(asked)
        if reply is not None and reply.was_found:
            return reply.has_answer_format
        if stored and reply is None:
            self._check_known(reply)
        return not stored

    async def _guard_of(
        self, stored: list[bytes], asked: asyncio.Task[scheduler_pb2.ReaderReply | None]
    ) -> ChunkGuard | None:
        """What a resumed answer is held to. It sees the answer from its first token on.

        The last chunk names the model where it is stored, and the scheduler otherwise. Where neither does,
        the guardrails of every model hold.

        Raises:
            Unavailable: policy does not answer.
        """
        if not self._call.caller.guards_stream:
            return None
        model = model_told_by(stored)
        if not model and (reply := await asyncio.shield(asked)) is not None:
            model = reply.model
        return await self._services.guards.of(self._call.caller.tenant, model)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tokens_pb2.TokenChunk:
        """The next chunk for the client.

        Raises:
            InferFluxError: the generation failed.
        """
        if self._failure is not None:
            raise self._failure
        if self._relay is None:
            raise RuntimeError("neither submitted, answered nor resumed")
        chunk = None if self._is_told_end else await self._relay.next()
        if chunk is None:
            raise StopAsyncIteration
        if chunk.token_ids:
            self._account.note_tokens(len(chunk.token_ids))
        self._account.note_text(chunk.text)
        self._note_end(chunk)
        if chunk.HasField("finished"):
            self._is_told_end = True
            self._check_offset(chunk.finished)
        elif chunk.HasField("failed"):
            self._failure = from_failed(chunk.failed)
            chunk.ClearField("failed")
            if not chunk.token_ids:
                raise self._failure
        return chunk

    def read(self, chunk: tokens_pb2.TokenChunk) -> inference_pb2.ChatDelta | None:
        """What the text of the next chunk is, in order; None where it is content."""
        reader = self._reader if self._rest is None else self._rest.reader
        return None if reader is None else reader.read(chunk)

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        services = self._services
        services.metrics.streams.dec()
        has_ended = self._relay is not None and self._relay.state.is_ended
        is_handed_over = services.streams.is_over and _is_gone(error) and not has_ended
        outcome = self._outcome_of(error, is_handed_over=is_handed_over)
        self._count_seen()
        has_begun = self._is_submitted or self._is_answered
        finished = self._account.end(error, outcome, has_begun=has_begun)
        is_last = self._is_submitted and services.reader_reports.local.leave(self._read)
        if is_last and not has_ended:
            self._leave(is_handed_over=is_handed_over)
        if is_last and not has_ended and not is_handed_over:
            tenant = self._call.caller.tenant
            services.streams.follow(self._follow(), tenant=tenant, on_end=lambda: self._finish(finished))
        else:
            self._finish(finished)
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
        if self._account.outcome:
            return self._account.outcome
        if not _is_gone(error):
            return "internal"
        if time.monotonic() + _CLIENT_TIMER_AHEAD_S >= self._call.context.deadline_at:
            return "deadline_exceeded"
        return "left" if self._window_s else "cancelled"

    def _join(self) -> None:
        self._is_submitted = True
        self._services.reader_reports.local.join(self._read)

    def _withdraw(self) -> bool:
        """Undo the reader; whether it was the last here."""
        self._is_submitted = False
        return self._services.reader_reports.local.leave(self._read)

    def _check_known(self, reply: scheduler_pb2.ReaderReply | None) -> None:
        """No chunk tells of the request: the scheduler has to.

        Raises:
            NotFound: the scheduler does not know it.
            Unavailable: no scheduler has answered.
        """
        request_id = self._call.request_id
        if reply is None:
            message = f"no scheduler says whether the request {request_id} is there: resume it again"
            raise Unavailable(message, reason="NO_SCHEDULER", retry_delay_s=_TAKE_OVER_S)
        if not reply.was_found:
            raise NotFound(f"nothing is known of the request {request_id}", reason="UNKNOWN_REQUEST")

    async def _take_back(self, announcing: asyncio.Task[scheduler_pb2.ReaderReply | None]) -> None:
        """Leave again at the scheduler, which decides by its other readers what becomes of the request."""
        reply = await announcing
        if reply is not None and reply.was_found:
            await self._services.reader_reports.leave(self._read, is_handed_over=False)

    async def _announce(self) -> scheduler_pb2.ReaderReply | None:
        """Tell the scheduler that a stream was resumed. Returns its answer; None without one."""
        try:
            reply = await self._services.reader_reports.join(self._read)
        except (DeadlineExceeded, Unavailable):
            return None
        if reply.was_found:
            # The answer may be late: what the terminal chunk said holds.
            self._read.attempt_id = self._read.attempt_id or reply.attempt_id
            self._window_s = reply.resume_window_s
            self._account.model = self._account.model or reply.model
            self._account.take_over(reply.attempt_id)
        return reply

    def _note_end(self, chunk: tokens_pb2.TokenChunk) -> None:
        """Take note of a terminal chunk, before anything else is done about it."""
        match chunk.WhichOneof("event"):
            case "finished":
                self._note_finished(chunk.finished)
            case "failed":
                self._account.note_outcome(from_failed(chunk.failed).reason.lower())
            case _:
                return
        self._read.attempt_id = chunk.attempt_id or self._read.attempt_id
        self._account.model = chunk.model or self._account.model

    def _note_finished(self, finished: tokens_pb2.Finished) -> None:
        n_seen = self._relay.state.tokens_end if self._relay is not None else 0
        is_of_job = self._account.note_finished(finished, n_seen=n_seen)
        if is_of_job and self._query is not None and self._services.answers is not None:
            self._services.answers.keep(self._query)

    def _check_offset(self, finished: tokens_pb2.Finished) -> None:
        """Raises:
        InvalidArgument: the client said that it has more tokens than the complete answer.
        """
        if self._relay is None or finished.reason not in _COMPLETE:
            return
        end = self._relay.state.tokens_end
        if self._offset > end:
            message = f"the answer has {end} tokens; it cannot be resumed at {self._offset}"
            raise InvalidArgument(message, field="offset", reason="OFFSET_BEYOND_END")

    async def _open(self) -> None:
        self._source = await self._services.bus.open_stream(self._call.subject)
        self._relay = self._relay_of(self._source, offset=0)

    def _relay_of(self, source: TokenSource, *, offset: int) -> Relay:
        bus = self._services.bus
        return Relay(
            source,
            bus,
            self._call.subject,
            offset=offset,
            limits=self._services.relay_limits,
            on_accept=self._take,
            on_bad=self._note_bad,
            want=partial(want_again, bus, self._call.caller.tenant, self._call.request_id),
        )

    def _take(self, chunk: tokens_pb2.TokenChunk) -> Iterable[tokens_pb2.TokenChunk]:
        """What the client gets for a chunk that has come."""
        if self._query is not None:
            self._query.recorder.take(chunk)
        passed: Iterable[tokens_pb2.TokenChunk] = (chunk,)
        if self._guard is not None:
            if self._guard.finding is not None:  # for the client the answer has ended
                self._note_end(chunk)
            passed = self._guard.take(chunk)
        rest = self._rest
        return passed if rest is None else [each for each in passed if rest.take(each)]

    def _note_bad(self, error: InvalidArgument) -> None:
        self._services.metrics.bad.note("chunk", error, subject=self._call.subject)

    def _leave(self, *, is_handed_over: bool) -> None:
        """No client reads on here: tell the scheduler, in the background."""
        services = self._services
        if self._account.outcome == FILTERED:  # there is nothing to resume
            services.background.start(services.canceller.abandon(self._read, may_be_underway=False))
            return
        work = depart(
            services.reader_reports,
            services.canceller,
            self._read,
            window_s=self._window_s,
            has_received=self._relay is not None and self._relay.has_received,
            is_handed_over=is_handed_over,
        )
        services.background.start(work)

    async def _follow(self) -> None:
        """Read on for the sake of the terminal chunk.

        That has come, or the request has another reader, soon after its window has passed.
        """
        if self._relay is None:
            return
        if self._account.outcome != FILTERED:
            self._guard = None  # no client gets what comes now
        try:
            async with asyncio.timeout((self._window_s or 0) + _LAST_CHUNK_S):
                while (chunk := await self._relay.next()) is not None:
                    self._note_end(chunk)
        except (TimeoutError, InferFluxError) as error:
            log.debug(
                "a stream was not followed to its end", request_id=self._call.request_id, why=str(error)
            )

    def _finish(self, finished: FinishedRequest) -> None:
        """Nothing is read any more: audit and settle the usage as it is known now."""
        if self._source is not None:
            self._source.close()
        self._count_seen()
        has_received = self._relay is not None and self._relay.has_received
        has_ended = self._relay is not None and self._relay.state.is_ended
        has_job = self._is_submitted and (has_received or not self._is_unconfirmed)
        finding = self._guard.finding if self._guard is not None else None
        self._account.close(
            finished,
            attempt_id=self._read.attempt_id if has_job or self._is_answered else "",
            is_partial=not (self._is_answered or has_ended),
            guardrail=finding.name if finding is not None else "",
        )
        self._relay = None  # it refers to this generation: only the garbage collector would free the two

    def _count_seen(self) -> None:
        if self._relay is not None:
            self._account.count_seen(self._relay.state.tokens_end)


def _is_gone(error: BaseException | None) -> bool:
    """Whether this is how a stream ends whose client went away, or that was ended from here."""
    return isinstance(error, asyncio.CancelledError | GeneratorExit)
