"""One request from its admission to its end, however it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from inferflux.common.contract.errors import InferFluxError, Unavailable
from inferflux.gateway.policy.ledger import FinishedRequest
from inferflux.gateway.stream.reader import Reader
from inferflux.v1 import inference_pb2, policy_pb2, tokens_pb2

from .account import FILTERED, Account
from .answer_stream import AnswerStream
from .call import Call
from .preparation import Prepared
from .resumption import Resumption
from .services import Services
from .submission import Submission

# A client counts its deadline from when it sent the call, so its timer ends the call before ours.
_CLIENT_TIMER_AHEAD_S = 0.1


class Generation:
    """An async context: whatever ends it, the stream is closed, and the finished request is recorded once.
    The scheduler is told when the request has no reader here any more.

    What a request used is settled by its terminal chunk. When the client leaves earlier, the gateway reads on
    until that chunk has come: hanging up does not evade the account.
    """

    def __init__(self, call: Call, services: Services) -> None:
        self._prepared: Prepared | None = None
        self._call = call
        self._services = services
        self._account = Account(call, services.accounts)
        self._reader = Reader(
            services.readers, call.caller.tenant, call.request_id, on_found=self._account.note_found
        )
        self._stream = AnswerStream(call, services, self._account, self._reader)

    async def __aenter__(self) -> Self:
        self._account.enter()
        return self

    @property
    def limits(self) -> Sequence[policy_pb2.RateLimitState]:
        """What is left of the caller's limits."""
        return self._account.limits

    @property
    def prepared(self) -> Prepared:
        """The submitted request; RuntimeError without one."""
        if self._prepared is None:
            raise RuntimeError("nothing was submitted here")
        return self._prepared

    async def submit(self, prepared: Prepared) -> None:
        """Submit a request; raises as `Submission.run`."""
        self._prepared = prepared
        submission = Submission(
            self._call,
            prepared,
            self._services,
            account=self._account,
            reader=self._reader,
            stream=self._stream,
        )
        await submission.run()

    async def resume(self, offset: int) -> None:
        """Resume a stream of another call; raises as `Resumption.run`."""
        await Resumption(self._call, self._services, self._reader, self._stream).run(offset)

    def __aiter__(self) -> AnswerStream:
        """The chunks for the client, until the terminal one; raises InferFluxErrors."""
        return self._stream

    def read(self, chunk: tokens_pb2.TokenChunk) -> inference_pb2.ChatDelta | None:
        """As `AnswerStream.read`."""
        return self._stream.read(chunk)

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        services, stream, reader = self._services, self._stream, self._reader
        has_ended = stream.has_ended
        is_handed_over = services.streams.is_over and _is_gone(error) and not has_ended
        outcome = self._outcome_of(error, is_handed_over=is_handed_over)
        stream.count_seen()
        finished = self._account.end(error, outcome, has_begun=reader.is_joined or stream.is_cached)
        is_last = reader.is_joined and reader.leave()
        if is_last and not has_ended:
            if self._account.outcome == FILTERED:
                reader.abandon()
            else:
                reader.depart(has_received=stream.has_received, is_handed_over=is_handed_over)
        if is_last and not has_ended and not is_handed_over:
            tenant = self._call.caller.tenant
            services.streams.follow(stream.follow(), tenant=tenant, on_end=lambda: self._finish(finished))
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
        return "left" if self._reader.window_s else "cancelled"

    def _finish(self, finished: FinishedRequest) -> None:
        """Audit and settle the usage as it is known now, and stop reading."""
        stream, reader = self._stream, self._reader
        stream.count_seen()
        has_job = reader.is_joined and (stream.has_received or not stream.is_unconfirmed)
        finding = stream.guard.finding if stream.guard is not None else None
        self._account.close(
            finished,
            attempt_id=reader.attempt_id if has_job or stream.is_cached else "",
            is_partial=not (stream.is_cached or stream.has_ended),
            guardrail=finding.name if finding is not None else "",
        )
        stream.close()


def _is_gone(error: BaseException | None) -> bool:
    """True if the client went away, or this gateway ended the stream."""
    return isinstance(error, asyncio.CancelledError | GeneratorExit)
