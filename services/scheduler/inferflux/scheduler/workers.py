"""Heartbeats and events from workers into the core."""

from __future__ import annotations

from typing import Protocol

from google.protobuf.message import DecodeError

from inferflux.common import logs, subjects
from inferflux.common.bus import Bus, Message
from inferflux.v1 import scheduler_pb2

from .metrics import SchedulerMetrics

log = logs.get("scheduler.workers")


class WorkerSink(Protocol):
    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus) -> None: ...
    def on_event(self, event: scheduler_pb2.WorkerEvent) -> None: ...


class WorkerListener:
    """Decodes what workers say; what cannot be understood is counted and passed over."""

    def __init__(self, bus: Bus, sink: WorkerSink, metrics: SchedulerMetrics) -> None:
        self._bus = bus
        self._sink = sink
        self._metrics = metrics

    async def listen(self) -> None:
        await self._bus.serve(subjects.WORKER_STATUS_ALL, self._on_status)
        await self._bus.serve(subjects.SCHEDULER_EVENTS, self._on_event)

    async def _on_status(self, message: Message) -> None:
        try:
            status = scheduler_pb2.WorkerStatus.FromString(message.data)
        except DecodeError:
            self._pass_over("heartbeat", message)
            return
        if message.subject != subjects.worker_status(status.worker_id) or not status.incarnation:
            self._pass_over("heartbeat", message)
            return
        self._sink.on_heartbeat(status)

    async def _on_event(self, message: Message) -> None:
        try:
            event = scheduler_pb2.WorkerEvent.FromString(message.data)
        except DecodeError:
            self._pass_over("event", message)
            return
        self._sink.on_event(event)

    def _pass_over(self, kind: str, message: Message) -> None:
        self._metrics.bad_messages.labels(kind).inc()
        log.error(f"a bad {kind} was passed over", subject=message.subject, size=len(message.data))
