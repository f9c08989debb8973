"""The audit line of a call, as its front writes it when the call has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from inferflux.common.calls import grpc_metadata
from inferflux.common.calls.calls import CallContext
from inferflux.common.contract.errors import InferFluxError, Internal
from inferflux.common.tracing import trace_id_of

from .writer import AuditTrail

CALL: Final = "call"
"""The event of a line about a call."""
CHANGE: Final = "change"
"""The event of a line about a call that changes something of the whole."""
ALLOWED: Final = "allowed"
REFUSED: Final = "refused"
"""Decision about a call that an error ended before its work began."""


def write_call(
    trail: AuditTrail, context: CallContext, method: str, *, error: BaseException | None = None
) -> None:
    """Write the line of a call, unless what served it has done so.

    Args:
        error: what ended the call, if anything did; whatever is no Exception means that the caller left.
    """
    record = context.record
    if record.is_written:
        return
    record.is_written = True
    trail.write(
        CHANGE if record.is_change else CALL,
        method=method,
        tenant=record.tenant,
        key_id=record.key_id,
        request_id=context.request_id,
        trace_id=trace_id_of(context.traceparent),
        decision=decision_of(error),
        reason=reason_of(error),
        outcome=outcome_of(error),
        duration_ms=duration_ms(context),
        **refused_by(error),
        **record.about,
    )


def decision_of(error: BaseException | None) -> str:
    """Decision on a call: refused or allowed. A call that a defect of ours ended was allowed."""
    is_refused = isinstance(error, InferFluxError) and not isinstance(error, Internal)
    return REFUSED if is_refused else ALLOWED


def reason_of(error: BaseException | None) -> str:
    """Why a call was ended; "" where no error did it."""
    if isinstance(error, InferFluxError):
        return error.reason
    return "INTERNAL" if isinstance(error, Exception) else ""


def refused_by(error: BaseException | None) -> Mapping[str, str]:
    """Fields of a refusal beside its reason: the guardrail that was broken, or the decision
    backend that refused, and why."""
    headers = error.headers if isinstance(error, InferFluxError) else {}
    return {field: headers[header] for field, header in _REFUSED_BY.items() if header in headers}


_REFUSED_BY: Final = {"guardrail": grpc_metadata.GUARDRAIL, "decided_by": grpc_metadata.DECISION}


def outcome_of(error: BaseException | None) -> str:
    """Outcome of a call, lower case."""
    if error is None:
        return "done"
    return reason_of(error).lower() or "left"


def duration_ms(context: CallContext) -> float:
    """Milliseconds from the call to now."""
    return round((time.monotonic() - context.started_at) * 1000, 1) if context.started_at else 0.0
