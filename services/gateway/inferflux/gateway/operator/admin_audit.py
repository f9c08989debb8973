"""The audit line of an administrator's call that changes something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from inferflux.common.calls.audit.calls import (
    CHANGE,
    decision_of,
    duration_ms,
    outcome_of,
    reason_of,
    refused_by,
)
from inferflux.common.calls.audit.writer import AuditTrail
from inferflux.common.calls.grpc_interceptor import current_call
from inferflux.common.tracing import trace_id_of


class ChangeAudit:
    """Writes the line of a change when it has been made or refused: which key did what."""

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail

    @contextmanager
    def change(self, method: str, **about: object) -> Iterator[dict[str, object]]:
        """Around the change itself.

        Yields:
            What else the line is to have.
        """
        more: dict[str, object] = {}
        ended_by: BaseException | None = None
        try:
            yield more
        except BaseException as error:
            ended_by = error
            raise
        finally:
            self._write(method, ended_by, about | more)

    def _write(self, method: str, error: BaseException | None, about: dict[str, object]) -> None:
        context = current_call().context
        record = context.record
        record.is_written = True
        self._trail.write(
            CHANGE,
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
            **about,
        )
