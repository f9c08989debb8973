"""A prepared request on its way to its answer: reserved with policy, then found in the cache or queued."""

from __future__ import annotations

import contextlib

from inferflux.common.contract import attempts
from inferflux.common.contract.errors import Aborted, AlreadyExists, InferFluxError, Unavailable
from inferflux.common.contract.request_times import stamp
from inferflux.common.text.guardrails.refusals import TEXT_NEEDED
from inferflux.gateway.answers.record import stream_of
from inferflux.gateway.answers.replaying import publish
from inferflux.gateway.stream.reader import Reader
from inferflux.gateway.stream.stream_guards import attempt_told_by
from inferflux.v1 import answers_pb2

from .account import Account
from .answer_stream import AnswerStream
from .call import Call
from .preparation import Prepared
from .queue import is_refused, taken
from .services import Services


class Submission:
    """Has a request answered: from the cache, by the job of the same call that was sent before, or by a job
    of its own.
    """

    def __init__(
        self,
        call: Call,
        prepared: Prepared,
        services: Services,
        *,
        account: Account,
        reader: Reader,
        stream: AnswerStream,
    ) -> None:
        self._call = call
        self._prepared = prepared
        self._job = prepared.job
        self._services = services
        self._account = account
        self._reader = reader
        self._stream = stream

    async def run(self) -> None:
        """Begin the stream of the answer.

        Raises:
            InvalidArgument: the job is too large.
            AlreadyExists: the request id is taken.
            PermissionDenied: guardrails do not let the prompt pass.
            ResourceExhausted: it would be over a limit, or the queue is full.
            Unavailable: it could not be queued, or the outcome is unknown.
        """
        if not self._call.caller.skips_reserve:
            await self._reserve()
        answers, query = self._services.answers, self._prepared.query
        cached = await answers.find(query) if answers is not None and query is not None else None
        if cached is not None:
            await self._begin_cached(cached)
        else:
            await self._queue()

    async def _reserve(self) -> None:
        """Have policy let the request be queued, with the text of its prompt where that is wanted.

        Where it has nothing to decide it is not asked: that would only delay the first token.
        """
        text = await self._prepared.text() if self._call.caller.wants_text else None
        try:
            answer = await self._account.reserve(self._job, text=text)
        except Aborted as error:
            if text is not None or error.reason != TEXT_NEEDED:
                raise
            # Guardrails came into force after the call was admitted.
            answer = await self._account.reserve(self._job, text=await self._prepared.text())
        self._call.span.event("reserved")
        if self._job.HasField("embedding"):  # what comes of it is no text
            return
        self._stream.guard = await self._services.guards.of_reservation(
            self._job.tenant, self._job.model, answer.stream_guards
        )

    async def _begin_cached(self, cached: answers_pb2.CachedAnswer) -> None:
        """Answer from the cache. The chunks are published as a worker's are, so that the stream can be
        resumed and read along.
        """
        job = self._job
        known = await self._known_attempt()
        form = job.answer_format if job.HasField("answer_format") else None
        chunks = stream_of(
            cached,
            request_id=job.request_id,
            attempt_id=known or job.attempt_id,
            model=job.model,
            prompt_tokens=len(job.prompt_token_ids),
            answer_format=form,
        )
        messages = [chunk.SerializeToString() for chunk in chunks]
        publishing = publish(
            self._services.tokens, self._call.subject, messages, window_s=job.resume_window_s
        )
        self._services.background.start(publishing)
        self._stream.begin_cached(messages, form)
        self._note_begun()
        self._account.note_usage(chunks[-1].finished.usage)
        self._call.span.event("answered_from_cache")

    async def _queue(self) -> None:
        """Subscribe, then queue the job."""
        job, queue = self._job, self._services.queue
        queue.check_open()
        stamp(job, deadline_at=self._call.context.deadline_at)
        payload = job.SerializeToString()
        queue.check_size(payload, self._prepared.prompt_field)
        attempt = await self._known_attempt()
        self._stream.query = self._prepared.query
        await self._stream.subscribe()
        self._stream.begin(job.answer_format if job.HasField("answer_format") else None)
        self._note_begun()
        has_job = True
        self._stream.is_unconfirmed = True
        try:
            attempt = attempt or await self._put(payload)
            self._stream.is_unconfirmed = False
        except InferFluxError as error:
            has_job = not is_refused(error)
            raise
        finally:  # also when the client left meanwhile
            if has_job:
                self._reader.join()
        self._call.span.event("queued")
        if attempt != job.attempt_id:
            await self._attach(attempt)

    async def _put(self, payload: bytes) -> str:
        """Queue the job; the attempt of the one that is there."""
        try:
            return await self._services.queue.put(self._job, payload, traceparent=self._call.span.traceparent)
        except AlreadyExists:
            # The same call may have ended just now, and its job is gone.
            if attempt := await self._known_attempt():
                return attempt
            raise

    async def _attach(self, attempt: str) -> None:
        """Read the job of the same call, which was sent before: what came of it so far, and what comes."""
        self._reader.attempt_id = attempt
        relay = self._stream.attach()
        with contextlib.suppress(Unavailable):  # what is missing is asked for later
            await relay.replay()
        if not relay.state.is_ended:
            # Not with the next report: the first call's reader may leave before, and end the request.
            self._reader.announce()

    async def _known_attempt(self) -> str:
        """The attempt of the same call, sent before, that runs or has ended; "" without one, as far as chunks
        tell.

        Raises:
            AlreadyExists: the request id is another call's.
            Unavailable: NATS does not say whether it is.
        """
        if not self._call.context.is_id_chosen:
            return ""
        stored = await self._services.tokens.stored(self._call.subject)
        known = attempt_told_by(stored)
        is_same = attempts.is_same(known, self._job.attempt_id)
        # Where the first chunk is not stored any more, the queue tells whose the stream is.
        may_be_same = is_same or (not known and attempts.may_be_sent_again(self._job.attempt_id))
        if stored and not may_be_same:
            raise taken(self._job.request_id)
        return known

    def _note_begun(self) -> None:
        self._account.begin(self._prepared.card.name, prompt_tokens=len(self._job.prompt_token_ids))
        self._reader.attempt_id = self._job.attempt_id
        self._reader.window_s = self._job.resume_window_s
