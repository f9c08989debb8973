"""What is written down when a request has ended: metrics, the audit line, and its usage with policy."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from inferflux.common import logs
from inferflux.common.background import Background
from inferflux.common.errors import InferFluxError, InvalidArgument
from inferflux.v1 import generation_pb2, policy_pb2

from . import audit
from .admission import Admission
from .audit import AuditRecord

log = logs.get()

# Seconds before each further attempt to settle.
_RETRIES_S = (0.2, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended."""

    method: str
    tenant: str
    key_id: str
    request_id: str
    model: str
    outcome: str
    usage: generation_pb2.Usage
    duration_s: float
    attempt_id: str = ""


class Ledger:
    """Writes endings down without keeping anybody waiting."""

    def __init__(self, admission: Admission, background: Background) -> None:
        self._admission = admission
        self._background = background

    def write(self, ending: Ending) -> None:
        """Audit an ending."""
        usage = ending.usage
        audit.write(
            AuditRecord(
                method=ending.method,
                tenant=ending.tenant,
                key_id=ending.key_id,
                request_id=ending.request_id,
                model=ending.model,
                outcome=ending.outcome,
                prompt_tokens=usage.prompt_tokens,
                cached_prompt_tokens=usage.cached_prompt_tokens,
                completion_tokens=usage.completion_tokens,
                duration_ms=round(ending.duration_s * 1000, 1),
            )
        )

    def settle(self, ending: Ending) -> None:
        """Settle what a job used, or used so far, in the background. Policy counts each job once."""
        self._background.start(self._settle(ending))

    async def _settle(self, ending: Ending) -> None:
        request = policy_pb2.SettleRequest(
            request_id=ending.request_id,
            tenant=ending.tenant,
            key_id=ending.key_id,
            model=ending.model,
            usage=ending.usage,
            outcome=ending.outcome,
            attempt_id=ending.attempt_id,
        )
        for delay_s in (*_RETRIES_S, None):
            try:
                await self._admission.settle(request)
            except InferFluxError as error:
                if delay_s is None or isinstance(error, InvalidArgument):
                    log.error("usage was not settled", request_id=ending.request_id, why=error.message)
                    return
                await asyncio.sleep(delay_s)
            else:
                return
