"""Records of a finished request: one line of the audit trail, and its usage with policy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from inferflux.common.calls.audit.calls import ALLOWED, CALL
from inferflux.common.calls.audit.writer import AuditTrail
from inferflux.common.contract.errors import InferFluxError, InvalidArgument
from inferflux.common.prefixes.names import tier_name
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background
from inferflux.v1 import generation_pb2, policy_pb2

log = logs.get()

RETRIES_S = (0.2, 1.0, 5.0, 10.0, *[30.0] * 20)
"""Seconds before each further attempt to settle: some ten minutes. While policy is away no call is admitted,
so no more wait than there are streams."""


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """How a request finished.

    Attributes:
        outcome: finish reason or error reason, lower case.
        duration_s: from the call to its end.
        decision: whether it was refused before it was queued.
        reason: of the error that ended it; "" without one.
        about: more fields of its audit line: timings, and keyed hashes of prompt and answer.
        is_void: no job came of what was reserved for it.
        is_partial: its job may still run.
    """

    method: str
    tenant: str
    key_id: str
    request_id: str
    model: str
    outcome: str
    usage: generation_pb2.Usage
    duration_s: float
    attempt_id: str = ""
    trace_id: str = ""
    decision: str = ALLOWED
    reason: str = ""
    about: Mapping[str, object] = field(default_factory=dict)
    is_void: bool = False
    is_partial: bool = False


class Settles(Protocol):
    """Policy, as the ledger tells it; `inferflux.gateway.policy.admission.Admission` is it."""

    async def settle(self, request: policy_pb2.SettleRequest) -> None: ...


class Ledger:
    """Records finished requests without delaying any other.

    Args:
        retries_s: seconds before each further attempt to settle.
    """

    def __init__(
        self,
        policy: Settles,
        background: Background,
        trail: AuditTrail,
        *,
        retries_s: Sequence[float] = RETRIES_S,
    ) -> None:
        self._policy = policy
        self._background = background
        self._trail = trail
        self._retries_s = retries_s

    def write(self, finished: FinishedRequest) -> None:
        """Write the audit line: which key did what."""
        usage = finished.usage
        self._trail.write(
            CALL,
            method=finished.method,
            tenant=finished.tenant,
            key_id=finished.key_id,
            request_id=finished.request_id,
            trace_id=finished.trace_id,
            model=finished.model,
            decision=finished.decision,
            reason=finished.reason,
            outcome=finished.outcome,
            prompt_tokens=usage.prompt_tokens,
            cached_prompt_tokens=usage.cached_prompt_tokens,
            cached_prompt_tier=tier_name(usage.cached_prompt_tier),
            completion_tokens=usage.completion_tokens,
            cached_completion_tokens=usage.cached_completion_tokens,
            duration_ms=round(finished.duration_s * 1000, 1),
            **finished.about,
        )

    def settle(self, finished: FinishedRequest) -> None:
        """Settle what a job used, or used so far, in the background, and give back what else was reserved for
        it. Policy counts each job once.
        """
        self._background.start(self._settle(finished))

    async def _settle(self, finished: FinishedRequest) -> None:
        request = policy_pb2.SettleRequest(
            request_id=finished.request_id,
            tenant=finished.tenant,
            key_id=finished.key_id,
            model=finished.model,
            usage=finished.usage,
            outcome=finished.outcome,
            attempt_id=finished.attempt_id,
            is_void=finished.is_void,
            is_partial=finished.is_partial,
        )
        why = "the gateway ended"
        try:
            for delay_s in (0.0, *self._retries_s):
                await asyncio.sleep(delay_s)
                try:
                    await self._policy.settle(request)
                except InferFluxError as error:
                    why = error.message
                    if isinstance(error, InvalidArgument):
                        break
                else:
                    why = ""
                    break
        finally:
            if why:
                log.error("usage was not settled", request_id=finished.request_id, why=why)
