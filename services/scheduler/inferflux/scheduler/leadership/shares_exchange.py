"""Leaders tell each other what tenants were served, so that a tenant's share is one of all partitions."""

from __future__ import annotations

import asyncio

from inferflux.common.bus import Bus, Message
from inferflux.common.contract import checks, partitions, subjects
from inferflux.common.contract.errors import InferFluxError, InvalidArgument
from inferflux.common.contract.partitions import Partition
from inferflux.common.process import logs
from inferflux.scheduler.core.lifecycle.checks import check_service
from inferflux.scheduler.core.order.tenant_service import ServedElsewhere
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.edge.guard import GuardedCore
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.v1 import scheduler_pb2

log = logs.get("scheduler.shares")

_INTERVAL_S = 1.0


class SharesExchange:
    """Publishes what the leader of a partition has served, and counts what others have.

    Args:
        term: of its lease.
    """

    def __init__(
        self, bus: Bus, partition: Partition, term: int, guard: GuardedCore, metrics: SchedulerMetrics
    ) -> None:
        self._bus = bus
        self._partition = partition
        self._term = term
        self._guard = guard
        self._metrics = metrics
        self._elsewhere = ServedElsewhere()

    async def run(self) -> None:
        """Until cancelled."""
        serving = await self._bus.serve(subjects.SCHEDULER_SERVED, self._on_service)
        try:
            while True:
                await self._publish()
                await asyncio.sleep(_INTERVAL_S)
        finally:
            await serving.close()

    async def _publish(self) -> None:
        service = scheduler_pb2.PartitionService(partition=self._partition.name, term=self._term)
        most = self._guard.ask("what was served", lambda core, _now: core.tenant_service.most_served())
        for tenant, served in most.items():
            service.tenants.add(tenant=tenant, served=served)
        if self._bus.is_connected:
            try:
                await self._bus.publish(subjects.SCHEDULER_SERVED, service.SerializeToString())
            except InferFluxError as error:
                log.debug("could not publish what was served", reason=error.reason)

    async def _on_service(self, message: Message) -> None:
        try:
            service = checks.decode(scheduler_pb2.PartitionService, message.data)
            check_service(service)
            partition = partitions.parse(service.partition)
        except InvalidArgument as error:
            self._metrics.bad.note("served", error, subject=message.subject)
            return
        if partition == self._partition or partition.count != self._partition.count:
            return
        served = {each.tenant: each.served for each in service.tenants}
        new = self._elsewhere.take(partition.name, service.term, served)

        def count(core: SchedulerCore, _now: float) -> list[Action]:
            core.tenant_service.charge_elsewhere(new)
            return []

        if new:
            self._guard.decide("what others served", count)
