"""Spans that the scheduler adds to its requests' traces: how long they waited, and how their runs went."""

from __future__ import annotations

import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

from inferflux.common.bus import Job
from inferflux.common.contract import subjects
from inferflux.common.tracing import Attributes, Kind, Tracer, names, valid
from inferflux.common.tracing.context import HEADER
from inferflux.v1 import worker_pb2

from .core.types import actions


def traceparent_of(handle: object) -> str:
    """The trace context a job came with; "" for none."""
    return valid(handle.headers.get(HEADER, "")) if isinstance(handle, Job) else ""


class SchedulerSpans:
    """Makes spans of actions, when they are performed.

    Args:
        clock: Unix time, in seconds.
    """

    def __init__(self, tracer: Tracer, clock: Callable[[], float] = time.time) -> None:
        self._tracer = tracer
        self._clock = clock
        # Since when a job waits that has been dispatched before.
        self._waits_since: WeakKeyDictionary[Job, float] = WeakKeyDictionary()

    def note(self, action: actions.Action) -> None:
        """Make the spans of an action, if it has any."""
        if not self._tracer.is_on:
            return
        now = self._clock()
        match action:
            case actions.Dispatch():
                self._on_dispatch(action, now)
            case actions.CountRetry():
                self._now_waits(action.handle, now)
                self._record(names.RETRY, action.handle, {names.REASON: action.cause}, since=now, now=now)
            case actions.Follows():
                self._now_waits(action.handle, now)
            case actions.MoveEnded():
                what = {
                    names.REASON: action.move.why.value,
                    names.OUTCOME: action.move.outcome,
                    names.WORKER_ID: action.move.to_id,
                }
                self._record(names.MOVE, action.handle, what, since=action.move.began_s, now=now)
            case actions.Yielded():
                self._now_waits(action.handle, now)
                what = {names.REASON: action.reason, names.WORKER_ID: action.worker_id}
                self._record(names.YIELD, action.handle, what, since=now, now=now)
            case actions.Preempted():
                self._now_waits(action.handle, now)
                what = {names.PREEMPTED_BY: action.by.request_id, names.WORKER_ID: action.worker_id}
                self._record(names.PREEMPT, action.handle, what, since=now, now=now)
            case actions.Resumed():
                what = {names.RESIDENCE: action.residence, names.WORKER_ID: action.worker_id}
                self._record(names.RESUME, action.handle, what, since=now - action.waited_s, now=now)

    def _on_dispatch(self, action: actions.Dispatch, now: float) -> None:
        is_resumed = action.batch.phase == worker_pb2.PHASE_DECODE  # Resumed has said how long it waited
        for item, handle in zip(action.batch.items, action.handles, strict=True):
            if not isinstance(handle, Job):
                continue
            is_first = handle not in self._waits_since
            since = self._waits_since.get(handle, item.request.enqueued_unix_ms / 1000)
            self._waits_since[handle] = now
            if is_resumed:
                continue
            what: Attributes = {
                names.MESSAGING_SYSTEM: "nats",
                names.DESTINATION: subjects.jobs(action.model),
                names.REQUEST_MODEL: action.model,
                names.REQUEST_ID: item.request.request_id,
                names.PRIORITY: item.request.priority,
                names.EPOCH: item.request.epoch,
                names.WORKER_ID: action.worker_id,
                names.SLOT: item.slot,
            }
            received = handle.received_unix_s if is_first else None
            self._record(
                names.QUEUE, handle, what, since=since, now=now, received=received, kind=Kind.CONSUMER
            )

    def _now_waits(self, handle: object, now: float) -> None:
        if isinstance(handle, Job):
            self._waits_since[handle] = now

    def _record(
        self,
        name: str,
        handle: object,
        attributes: Attributes,
        *,
        since: float,
        now: float,
        received: float | None = None,
        kind: Kind = Kind.INTERNAL,
    ) -> None:
        """A span that is over, of a request that came with a trace."""
        if parent := traceparent_of(handle):
            span = self._tracer.start(
                name, parent=parent, kind=kind, attributes=attributes, at_s=min(since, now)
            )
            if received is not None:
                span.event("received", at_s=min(received, now))
            span.end(now)
