"""Heartbeats and events of workers, and what hosts of models report, into the core."""

from __future__ import annotations

import time
from typing import Protocol

from inferflux.common.bus import Bus, Message
from inferflux.common.contract import checks, subjects
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.known_workers import KnownWorkers
from inferflux.common.contract.messages import hosts
from inferflux.common.contract.messages.heartbeats import parse_status
from inferflux.common.contract.messages.repeats import Repeats
from inferflux.scheduler.core.lifecycle.checks import check_event
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.v1 import host_pb2, scheduler_pb2


class WorkerSink(Protocol):
    def on_host(self, status: host_pb2.HostStatus) -> None: ...
    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus) -> None: ...
    def on_event(self, event: scheduler_pb2.WorkerEvent) -> None: ...


class WorkerListener:
    """Decodes what workers say; what cannot have come from one is counted and ignored."""

    def __init__(self, bus: Bus, sink: WorkerSink, metrics: SchedulerMetrics) -> None:
        self._bus = bus
        self._sink = sink
        self._metrics = metrics
        self._known = KnownWorkers()
        self._statuses = Repeats(parse_status)
        self._hosts = Repeats(hosts.parse_status)

    async def listen(self) -> None:
        await self._bus.serve(subjects.HOST_STATUS_ALL, self._on_host)
        await self._bus.serve(subjects.WORKER_STATUS_ALL, self._on_status)
        await self._bus.serve(subjects.SCHEDULER_EVENTS, self._on_event)

    async def _on_host(self, message: Message) -> None:
        try:
            self._sink.on_host(self._hosts.parse(message.data, message.subject))
        except InvalidArgument as error:
            self._metrics.bad.note("host", error, subject=message.subject)

    async def _on_status(self, message: Message) -> None:
        try:
            status = self._statuses.parse(message.data, message.subject)
            self._known.admit(status.worker_id, time.monotonic())
        except InvalidArgument as error:
            self._metrics.bad.note("heartbeat", error, subject=message.subject)
            return
        self._sink.on_heartbeat(status)

    async def _on_event(self, message: Message) -> None:
        try:
            event = checks.decode(scheduler_pb2.WorkerEvent, message.data)
            check_event(event)
        except InvalidArgument as error:
            self._metrics.bad.note("event", error, subject=message.subject)
            return
        self._sink.on_event(event)
