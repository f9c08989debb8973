"""What tenants have been served outlives leaders, whatever of it can be read when."""

from __future__ import annotations

from inferflux.common import subjects
from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.bus.memory import MemoryNats
from inferflux.common.partitions import WHOLE
from inferflux.scheduler.core.ledger import Ledger
from inferflux.scheduler.shares_store import SharesStore


def store_on(bus: Bus) -> SharesStore:
    return SharesStore(bus.key_value(subjects.SCHEDULERS_BUCKET), WHOLE)


async def what_is_kept(bus: Bus) -> dict[str, float]:
    ledger = Ledger()
    await store_on(bus).load(ledger)
    return ledger.counters


async def test_what_could_not_be_read_at_first_is_read_before_it_is_written_over() -> None:
    nats = MemoryNats()
    bus, other = await nats.connect(), await nats.connect()
    await bus.ensure_streams(StreamLimits())
    first = Ledger()
    first.set("greedy", 100.0)
    first.set("modest", 0.0)
    await store_on(bus).keep(first)

    following, store = Ledger(), store_on(other)
    nats.cut(other)
    await store.load(following)
    following.set("modest", 7.0)
    await store.keep(following)
    assert following.counters == {"modest": 7.0}
    nats.mend(other)
    await store.keep(following)
    assert following.counters == {"greedy": 100.0, "modest": 7.0}
    following.set("modest", 0.0)
    await store.keep(following)
    assert await what_is_kept(bus) == {"greedy": 100.0, "modest": 0.0}
    await bus.close()
    await other.close()
