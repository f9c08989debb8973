"""State that outlives leaders, whatever of it can be read when."""

from __future__ import annotations

from harness.memory_nats import MemoryNats

from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.contract import subjects
from inferflux.common.contract.partitions import WHOLE
from inferflux.scheduler.core.order.tenant_service import TenantService
from inferflux.scheduler.leadership.kept_store import Kept, KeptStore


def store_on(bus: Bus, kept: Kept) -> KeptStore:
    return KeptStore(bus.key_value(subjects.SCHEDULERS_BUCKET), subjects.tenant_shares(WHOLE), kept)


async def what_is_kept(bus: Bus) -> dict[str, float]:
    service = TenantService()
    await store_on(bus, service).load()
    return service.counters


async def test_what_could_not_be_read_at_first_is_read_before_it_is_written_over() -> None:
    nats = MemoryNats()
    bus, other = await nats.connect(), await nats.connect()
    await bus.ensure_streams(StreamLimits())
    first = TenantService()
    first.set("greedy", 100.0)
    first.set("modest", 0.0)
    await store_on(bus, first).keep()

    following = TenantService()
    store = store_on(other, following)
    nats.cut(other)
    await store.load()
    following.set("modest", 7.0)
    await store.keep()
    assert following.counters == {"modest": 7.0}
    nats.mend(other)
    await store.keep()
    assert following.counters == {"greedy": 100.0, "modest": 7.0}
    following.set("modest", 0.0)
    await store.keep()
    assert await what_is_kept(bus) == {"greedy": 100.0, "modest": 0.0}
    await bus.close()
    await other.close()
