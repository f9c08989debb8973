"""The heartbeat: what a worker reports of itself once a second, and at once when it changes."""

from __future__ import annotations

import os
import socket
import time

from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import Unavailable
from inferflux.common.contract.messages.heartbeats import MAX_REQUESTS
from inferflux.common.process import logs
from inferflux.common.process.tasks import until_next
from inferflux.v1 import engine_pb2, scheduler_pb2
from inferflux.worker.model.model_host import ModelHost
from inferflux.worker.model.worker_state import WorkerState
from inferflux.worker.transfer.transfers import Transfers

# Schedulers probe a worker that is silent for 1.3 s (`scheduler/core/types/limits.py`).
HEARTBEAT_INTERVAL_S = 1.0

log = logs.get("worker.heartbeat")


class Heartbeat:
    """Publishes the status of a worker and its model."""

    def __init__(
        self, bus: Bus, state: WorkerState, model: ModelHost, transfers: Transfers | None = None
    ) -> None:
        self._bus = bus
        self._state = state
        self._model = model
        self._transfers = transfers

    def status(self, now: float) -> scheduler_pb2.WorkerStatus:
        """The heartbeat message; `now` is the monotonic clock."""
        state, model = self._state, self._model
        limits, stats = model.limits, model.stats
        status = scheduler_pb2.WorkerStatus(
            worker_id=state.worker_id,
            pool=state.pool,
            zone=state.zone,
            role=state.role,
            incarnation=state.incarnation,
            state=state.with_model(is_ready=model.is_ready),
            models=[model.card],
            slots=limits.slots if limits else 0,
            kv_cells=limits.kv_cells if limits else 0,
            kv_cells_used=stats.kv_cells_used,
            kv_cells_reserved=stats.kv_cells_reserved,
            kv_cells_cached=stats.kv_cells_cached,
            kv_cells_shared=stats.kv_cells_shared,
            kv_cells_high_water=stats.kv_cells_high_water,
            kv_bytes=model.kv_bytes,
            exchange=model.exchange,
            kv_types=model.kv_types,
            kv_cells_width=stats.kv_cells_width,
            kv_cells_holes=stats.kv_cells_holes,
            cached_sequences=stats.cached_sequences,
            swap_bytes_used=stats.swap_bytes_used,
            swap_bytes=model.swap_bytes,
            term=state.term,
            prefill_tokens_per_s=model.rates.prefill,
            decode_tokens_per_s=model.rates.decode,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_unix_ms=state.started_unix_ms,
            prefix_queries=model.cache_counts.queries,
            prefix_hits=model.cache_counts.hits,
            prefix_matched_tokens=model.cache_counts.matched_tokens,
            prefix_sharing=model.prefix_sharing,
            prefix_sharing_reason=model.prefix_sharing_reason,
            host_tier=_tier_use(stats.host, model.cache_counts.host_hits),
            disk_tier=_tier_use(stats.disk, model.cache_counts.disk_hits),
            device_context=model.device_context,
            kv_source=self._transfers.source() if self._transfers is not None else None,
            kv_transfers=self._transfers.status() if self._transfers is not None else None,
            leaves_in_ms=state.leaves_in_ms(now),
        )
        status.residents.extend(resident.to_message() for resident in model.residents.all())
        status.finished.extend(r.identity() for r in model.residents.finished_lately(now)[-MAX_REQUESTS:])
        return status

    async def beat(self) -> None:
        """Publish the status now."""
        status = self.status(time.monotonic())
        try:
            await self._bus.publish(subjects.worker_status(self._state.worker_id), status.SerializeToString())
        except Unavailable as error:
            log.warning("heartbeat not sent", error=str(error))

    async def run(self) -> None:
        """Publish the status again and again, for ever."""
        while True:
            await self.beat()
            await until_next(HEARTBEAT_INTERVAL_S)


def _tier_use(tier: engine_pb2.TierStats, hits: int) -> scheduler_pb2.TierUse:
    return scheduler_pb2.TierUse(bytes=tier.bytes, states=tier.states, hits=hits)
