"""The account of one request: what is reserved for it, what it has used, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from inferflux.api.finish_reasons import name_of
from inferflux.common.calls.audit.calls import ALLOWED, decision_of, reason_of, refused_by
from inferflux.common.calls.audit.writer import AuditTrail
from inferflux.common.contract.callers import rate_limits
from inferflux.common.contract.errors import InferFluxError, Unavailable
from inferflux.common.tracing import trace_id_of
from inferflux.gateway.metrics import GatewayMetrics, ModelMetrics
from inferflux.gateway.policy.ledger import FinishedRequest, Ledger
from inferflux.gateway.policy.reservations import Reservations
from inferflux.v1 import generation_pb2, policy_pb2, scheduler_pb2, tokens_pb2

from .call import Call, note_end

FILTERED = name_of(generation_pb2.FINISH_REASON_CONTENT_FILTER)


@dataclass(frozen=True, slots=True)
class Accounts:
    """Parts that an account reports to."""

    reservations: Reservations
    ledger: Ledger
    metrics: GatewayMetrics
    trail: AuditTrail


class Account:
    """Reserves with policy before the request is queued. It is closed once: it then writes the audit line and
    settles the usage.

    Attributes:
        limits: what is left of the caller's limits.
        usage: as far as it is known.
        outcome: finish reason or error reason, lower case; "" until it is known.
        model: of a stream that was resumed, empty until it is known.
    """

    def __init__(self, call: Call, accounts: Accounts) -> None:
        self.limits: Sequence[policy_pb2.RateLimitState] = call.caller.limits
        self.usage = generation_pb2.Usage()
        self.outcome = ""
        self.model = call.model
        self._call = call
        # Whether a terminal chunk has said what the usage is.
        self._is_final = False
        self._reservations = accounts.reservations
        self._ledger = accounts.ledger
        self._all_metrics = accounts.metrics
        self._metrics: ModelMetrics | None = None
        # The attempt that something is, or may be, reserved for; "" for none.
        self._reserved = ""
        # The attempt whose reservation by another call is renewed here; "" for none.
        self._taken_over = ""
        # Whether nothing is to be renewed here any more.
        self._is_closed = False
        # What let the prompt not pass, as the audit line says it.
        self._refused_by: Mapping[str, str] = {}
        self._decision, self._reason = ALLOWED, ""
        self._answer = accounts.trail.text()
        self._timings: dict[str, object] = {}
        self._last_tokens_at = 0.0

    def enter(self) -> None:
        """Count the admitted call, and write its audit line here from now on."""
        self._all_metrics.streams.inc()
        self._call.context.record.is_written = True

    async def reserve(
        self, request: scheduler_pb2.InferenceRequest, *, text: str | None
    ) -> policy_pb2.ReserveResponse:
        """Have policy let the request be queued. What is reserved is settled when the account is closed.

        Args:
            text: of the prompt, where policy wants it.

        Raises:
            InferFluxError: policy says no, or does not answer: then nothing is queued.
        """
        self._reserved = request.attempt_id
        try:
            answer = await self._reservations.reserve(
                policy_pb2.ReserveRequest(
                    request_id=request.request_id,
                    attempt_id=request.attempt_id,
                    tenant=request.tenant,
                    key_id=self._call.caller.key_id,
                    model=request.model,
                    prompt_tokens=len(request.prompt_token_ids),
                    max_tokens=0 if request.HasField("embedding") else request.params.max_tokens,
                    text=text,
                    priority=request.priority,
                    facts=self._call.caller.facts,
                )
            )
        except InferFluxError as error:
            if not isinstance(error, Unavailable):  # policy has decided, and reserved nothing
                self._reserved = ""
            self._refused_by = refused_by(error)
            raise
        if not answer.lease_ms:
            self._reserved = ""
        self.limits = rate_limits.tightest([*self.limits, *answer.limits])
        return answer

    def note_found(self, reply: scheduler_pb2.ReaderReply) -> None:
        """Renew what another call reserved, which submitted the request: its gateway may be gone."""
        self.model = self.model or reply.model
        if reply.attempt_id and not self._taken_over and not self._is_closed:
            self._taken_over = reply.attempt_id
            self._reservations.take_over(self._call.caller.tenant, self._call.request_id, reply.attempt_id)

    def begin(self, model: str, *, prompt_tokens: int) -> None:
        """Begin to measure: the request is queued, or answered from the cache."""
        self._metrics = self._all_metrics.of(model)
        self.usage.prompt_tokens = prompt_tokens

    def note_tokens(self, n: int) -> None:
        """Measure a chunk of `n` tokens, 1 or more, that the client gets."""
        now = time.monotonic()
        if not self._last_tokens_at:
            self._call.span.event("first_token")
        if self._metrics is not None:
            self._measure(self._metrics, n, now)
        self._last_tokens_at = now

    def note_text(self, text: str) -> None:
        """Add a part of the answer to the audit line's text."""
        self._answer.add(text)

    def note_finished(self, finished: tokens_pb2.Finished, *, n_seen: int) -> bool:
        """Take outcome, usage and timings from a terminal chunk.

        Args:
            n_seen: tokens received. They become the chunk's usage where guardrails ended the answer.

        Returns:
            True if it ends the job, False if it ends the answer alone.
        """
        outcome = name_of(finished.reason)
        is_of_job = outcome != FILTERED or finished.HasField("usage")
        if is_of_job:
            self.note_usage(finished.usage)
            self._timings.update(_timings_of(finished.timings))
        else:
            self.count_seen(n_seen)
            finished.usage.CopyFrom(self.usage)
        self.note_outcome(outcome)
        return is_of_job

    def note_usage(self, usage: generation_pb2.Usage) -> None:
        """Set the final usage."""
        self.usage.CopyFrom(usage)
        self._is_final = True

    def note_outcome(self, outcome: str) -> None:
        """Set the outcome, unless guardrails have ended the answer: the job's own does not count."""
        if self.outcome != FILTERED:
            self.outcome = outcome

    def count_seen(self, n_seen: int) -> None:
        """Set the usage to the tokens received, until a terminal chunk has the final one."""
        if not self._is_final:
            self.usage.completion_tokens = n_seen

    def end(self, error: BaseException | None, outcome: str, *, has_begun: bool) -> FinishedRequest:
        """End the client's part. `close` follows when the usage is known, or will not be.

        Args:
            error: what ended it, if anything did.
            has_begun: whether it was queued or answered.
        """
        self._all_metrics.streams.dec()
        self.outcome = outcome
        self._reason = reason_of(error)
        if not has_begun:
            self._decision = decision_of(error)
        call = self._call
        note_end(call.span, outcome, self.usage)
        duration_s = time.monotonic() - call.context.started_at
        if self._metrics is not None:
            self._metrics.duration.observe(duration_s)
            self._metrics.prompt_tokens.inc(self.usage.prompt_tokens)
            if outcome in ("stop", "length", FILTERED):
                self._metrics.count_success(outcome)
        return FinishedRequest(
            method=call.method,
            tenant=call.caller.tenant,
            key_id=call.caller.key_id,
            request_id=call.request_id,
            model=self.model,
            outcome=outcome,
            usage=self.usage,
            duration_s=duration_s,
            trace_id=trace_id_of(call.span.traceparent),
            decision=self._decision,
            reason=self._reason,
        )

    def close(
        self, finished: FinishedRequest, *, attempt_id: str, is_partial: bool, guardrail: str = ""
    ) -> None:
        """Write the audit line, and settle the usage, as they are known now.

        Args:
            attempt_id: that used something; "" where there is none.
            is_partial: its job may still run.
            guardrail: that ended the answer; "" where none did.
        """
        about = {
            **self._call.context.record.about,
            **self._timings,
            **self._call.prompt.fields("prompt"),
            **self._answer.fields("answer"),
            **self._refused_by,
            **({"guardrail": guardrail} if guardrail else {}),
        }
        finished = replace(finished, model=self.model, about=about)
        self._ledger.write(finished)
        if attempt_id:
            settled = replace(finished, attempt_id=attempt_id, outcome=self.outcome, is_partial=is_partial)
            self._ledger.settle(settled)
        self._is_closed = True
        if self._taken_over:
            self._reservations.drop(finished.tenant, finished.request_id, self._taken_over)
        if self._reserved:
            self._give_back(finished, is_settled=attempt_id == self._reserved)

    def _give_back(self, finished: FinishedRequest, *, is_settled: bool) -> None:
        """Drop the reservation, and settle it as void unless a settlement has ended it."""
        self._reservations.drop(finished.tenant, finished.request_id, self._reserved)
        if not is_settled:
            void = replace(finished, attempt_id=self._reserved, usage=generation_pb2.Usage(), is_void=True)
            self._ledger.settle(void)

    def _measure(self, metrics: ModelMetrics, n: int, now: float) -> None:
        if self._last_tokens_at:
            metrics.inter_token_latency.observe((now - self._last_tokens_at) / n)
        else:
            first_token_s = now - self._call.context.started_at
            metrics.time_to_first_token.observe(first_token_s)
            self._timings["time_to_first_token_ms"] = round(first_token_s * 1000, 1)
        metrics.generation_tokens.inc(n)


def _timings_of(timings: generation_pb2.Timings) -> dict[str, object]:
    """Times in the queue and on the worker, in milliseconds; those that are 0 are left out."""
    return {
        name: round(getattr(timings, name), 1)
        for name in ("queue_ms", "prefill_ms", "decode_ms")
        if getattr(timings, name)
    }
