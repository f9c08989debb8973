"""What a worker says of itself once a second."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from dataclasses import dataclass, field

from inferflux.common import logs, subjects, terms
from inferflux.common.bus import Bus
from inferflux.common.errors import Unavailable
from inferflux.common.heartbeats import MAX_REQUESTS
from inferflux.v1 import engine_pb2, model_pb2, scheduler_pb2

from .residents import ResidentTable

log = logs.get("worker.presence")

_SMOOTHING = 0.1


@dataclass(slots=True)
class Rates:
    """Tokens per second, smoothed over the engine's steps; 0 until one was seen."""

    prefill: float = 0.0
    decode: float = 0.0

    def observe(self, stats: engine_pb2.StepStats) -> None:
        seconds = max(stats.step_us, 1) / 1e6
        if stats.prefill_tokens and not stats.decode_tokens:
            self.prefill = _smoothed(self.prefill, stats.prefill_tokens / seconds)
        elif stats.decode_tokens and not stats.prefill_tokens:
            self.decode = _smoothed(self.decode, stats.decode_tokens / seconds)


def _smoothed(old: float, new: float) -> float:
    return new if old == 0.0 else old + _SMOOTHING * (new - old)


@dataclass(slots=True)
class Presence:
    """The worker's state, and its heartbeat."""

    bus: Bus
    table: ResidentTable
    worker_id: str
    incarnation: str
    card: model_pb2.ModelCard
    interval_s: float
    state: scheduler_pb2.WorkerState.ValueType = scheduler_pb2.WORKER_STATE_LOADING
    rates: Rates = field(default_factory=Rates)
    started_unix_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    engine: engine_pb2.StepStats = field(default_factory=engine_pb2.StepStats)
    term: int = 0
    swap_bytes: int = 0
    is_leaving: bool = False

    def accepts(self, term: int) -> bool:
        """Whether a lease of this `term` still counts; if so, older ones do not from now on. One that lies
        far beyond the present never does."""
        latest = terms.latest(time.time_ns() // 1_000_000)
        if term > latest:
            log.error("a term is beyond this machine's clock", term=term, latest=latest)
            return False
        if term < self.term:
            return False
        self.term = term
        return True

    def observe(self, stats: engine_pb2.StepStats) -> None:
        """Take note of the engine's latest figures."""
        self.engine = stats
        self.rates.observe(stats)

    def status(self, now: float) -> scheduler_pb2.WorkerStatus:
        """The heartbeat message; `now` is the monotonic clock."""
        limits = self.table.limits
        status = scheduler_pb2.WorkerStatus(
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            state=self.state,
            models=[self.card],
            slots=limits.slots if limits else 0,
            kv_cells=limits.kv_cells if limits else 0,
            sequences=limits.sequences if limits else 0,
            kv_cells_used=self.engine.kv_cells_used,
            kv_cells_reserved=self.engine.kv_cells_reserved,
            swap_bytes_used=self.engine.swap_bytes_used,
            swap_bytes=self.swap_bytes,
            term=self.term,
            prefill_tokens_per_s=self.rates.prefill,
            decode_tokens_per_s=self.rates.decode,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_unix_ms=self.started_unix_ms,
        )
        status.running.extend(r.to_message() for r in self.table.all())
        status.ended.extend(
            scheduler_pb2.EndedRequest(request_id=r.request_id, epoch=r.epoch, tenant=r.tenant)
            for r in self.table.ended_lately(now)[-MAX_REQUESTS:]
        )
        return status

    async def become(self, state: scheduler_pb2.WorkerState.ValueType) -> None:
        """Change state and say so at once."""
        self.state = state
        await self.beat()

    async def drain(self) -> None:
        """Take nothing new from now on."""
        await self.become(scheduler_pb2.WORKER_STATE_DRAINING)

    async def undrain(self) -> None:
        """Take requests again; not when the worker is about to leave."""
        if self.is_leaving or self.state != scheduler_pb2.WORKER_STATE_DRAINING:
            return
        is_ready = self.table.limits is not None
        await self.become(
            scheduler_pb2.WORKER_STATE_READY if is_ready else scheduler_pb2.WORKER_STATE_LOADING
        )

    async def beat(self) -> None:
        status = self.status(time.monotonic())
        try:
            await self.bus.publish(subjects.worker_status(self.worker_id), status.SerializeToString())
        except Unavailable as error:
            log.warning("heartbeat not sent", error=str(error))

    async def run(self) -> None:
        while True:
            await self.beat()
            await asyncio.sleep(self.interval_s)
