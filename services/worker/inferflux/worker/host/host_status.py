"""Reports of a host on its models, once a second, and at once when one changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import Unavailable
from inferflux.common.contract.messages.hosts import MAX_REASON_BYTES
from inferflux.common.contract.terms import SeenTerms
from inferflux.common.process import logs
from inferflux.common.process.tasks import until_next
from inferflux.v1 import host_pb2, model_pb2
from inferflux.worker.model.worker_state import WorkerState

from .catalog import Catalog
from .heartbeat import HEARTBEAT_INTERVAL_S

# Of the reasons of all failures together.
_ALL_REASONS_BYTES = 128 << 10

log = logs.get("worker.host")


class HostStatusReports:
    """Publishes the status of a host.

    Args:
        terms: of schedulers, that its commands came under.
        idle_s: after which an unused model is unloaded; 0: only to make room.
    """

    def __init__(
        self,
        bus: Bus,
        state: WorkerState,
        catalog: Catalog,
        terms: SeenTerms,
        *,
        idle_s: float,
        store_jobs: Callable[[], Iterable[model_pb2.StoreJob]] = tuple,
    ) -> None:
        self._bus = bus
        self._state = state
        self._catalog = catalog
        self._terms = terms
        self._store_jobs = store_jobs
        self._idle_s = idle_s

    def status(self) -> host_pb2.HostStatus:
        """The message."""
        state, catalog = self._state, self._catalog
        return host_pb2.HostStatus(
            host_id=state.worker_id,
            incarnation=state.incarnation,
            pool=state.pool,
            zone=state.zone,
            is_leaving=state.is_leaving,
            models_max=catalog.models_max,
            memory_bytes=catalog.memory_bytes,
            memory_free_bytes=catalog.free_bytes,
            models=[known.to_message(reason_bytes=self._reason_bytes()) for known in catalog],
            started_unix_ms=state.started_unix_ms,
            idle_s=self._idle_s,
            terms=self._terms.by_partition,
            store_jobs=self._store_jobs(),
        )

    def _reason_bytes(self) -> int:
        """Bytes that reasons of failures are cut to, so that many of them leave the status short enough."""
        failed = sum(bool(known.reason) for known in self._catalog)
        return min(MAX_REASON_BYTES, _ALL_REASONS_BYTES // max(failed, 1))

    async def report(self) -> None:
        """Publish the status now."""
        try:
            subject = subjects.host_status(self._state.worker_id)
            await self._bus.publish(subject, self.status().SerializeToString())
        except Unavailable as error:
            log.warning("status of the host not sent", error=str(error))

    async def run(self) -> None:
        """Publish the status again and again, for ever."""
        while True:
            await self.report()
            await until_next(HEARTBEAT_INTERVAL_S)
