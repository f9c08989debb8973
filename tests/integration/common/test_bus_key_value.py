"""Small values in JetStream: who writes first wins, also around a restart of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from inferflux.common import subjects
from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.bus.key_value import Entry, KeyValueBucket
from inferflux.common.errors import DeadlineExceeded, Unavailable
from inferflux.common.servers import ServerProcess

STREAM = f"KV_{subjects.SCHEDULERS_BUCKET}"


@pytest.fixture
async def own_bus(private_nats: ServerProcess) -> AsyncIterator[Bus]:
    bus = await Bus.connect(private_nats.url, name="test")
    await bus.ensure_streams(StreamLimits())
    yield bus
    await bus.close()


@pytest.fixture
def bucket(own_bus: Bus) -> KeyValueBucket:
    return own_bus.key_value(subjects.SCHEDULERS_BUCKET)


async def test_a_key_without_a_value_has_none(bucket: KeyValueBucket) -> None:
    assert await bucket.get("nothing") is None


async def test_a_value_is_read_as_it_was_written_with_its_revision(bucket: KeyValueBucket) -> None:
    first = await bucket.create("lease.all", b"one")
    assert first is not None
    assert await bucket.get("lease.all") == Entry(b"one", first)
    second = await bucket.update("lease.all", b"", revision=first)
    assert second is not None
    assert await bucket.get("lease.all") == Entry(b"", second)


async def test_only_the_first_of_many_creates_a_value(bucket: KeyValueBucket) -> None:
    revisions = await asyncio.gather(*(bucket.create("lease", b"%d" % i) for i in range(10)))
    winners = [i for i, revision in enumerate(revisions) if revision is not None]
    assert len(winners) == 1
    entry = await bucket.get("lease")
    assert entry is not None
    assert entry.value == b"%d" % winners[0]


async def test_an_update_of_an_older_revision_is_refused_and_changes_nothing(bucket: KeyValueBucket) -> None:
    first = await bucket.create("lease", b"1") or 0
    second = await bucket.update("lease", b"2", revision=first)
    assert await bucket.update("lease", b"late", revision=first) is None
    assert await bucket.get("lease") == Entry(b"2", second or 0)


async def test_keys_do_not_hinder_each_other(bucket: KeyValueBucket) -> None:
    first = await bucket.create("lease.a", b"a") or 0
    assert await bucket.create("lease.b", b"b") is not None
    assert await bucket.update("lease.a", b"a2", revision=first) is not None


async def test_a_deleted_value_is_gone_and_may_be_created_again(own_bus: Bus, bucket: KeyValueBucket) -> None:
    first = await bucket.create("lease", b"1") or 0
    await own_bus.publish(f"$KV.{subjects.SCHEDULERS_BUCKET}.lease", b"", {"KV-Operation": "DEL"})
    await own_bus.flush()
    async with asyncio.timeout(5):
        while await bucket.get("lease") is not None:
            await asyncio.sleep(0.01)
    assert await bucket.update("lease", b"late", revision=first) is None
    revision = await bucket.create("lease", b"2")
    assert await bucket.get("lease") == Entry(b"2", revision or 0)


async def test_values_and_revisions_outlive_a_killed_server(
    private_nats: ServerProcess, own_bus: Bus, bucket: KeyValueBucket
) -> None:
    revision = await bucket.create("lease", b"kept") or 0
    recovered = asyncio.Event()

    async def on_reconnect() -> None:
        recovered.set()

    own_bus.on_reconnect(on_reconnect)
    private_nats.kill()
    with pytest.raises((Unavailable, DeadlineExceeded)):
        await bucket.update("lease", b"away", revision=revision, timeout_s=0.5)
    private_nats.start()
    await asyncio.wait_for(recovered.wait(), 10)
    entry = await bucket.get("lease")
    assert entry is not None
    assert entry.value in (b"kept", b"away")  # what went unanswered may have been written all the same
    assert await bucket.update("lease", b"next", revision=entry.revision) is not None


async def test_a_server_that_does_not_answer_is_not_waited_for(
    private_nats: ServerProcess, bucket: KeyValueBucket
) -> None:
    revision = await bucket.create("lease", b"1") or 0
    private_nats.pause()
    try:
        with pytest.raises(DeadlineExceeded):
            await bucket.get("lease", timeout_s=0.2)
        with pytest.raises(DeadlineExceeded):
            await bucket.update("lease", b"2", revision=revision, timeout_s=0.2)
    finally:
        private_nats.resume()
    async with asyncio.timeout(5):
        while (entry := await bucket.get("lease")) is None or entry.value != b"2":
            await asyncio.sleep(0.01)


async def test_without_a_bucket_there_is_nothing_to_read_and_nowhere_to_write(
    own_bus: Bus, bucket: KeyValueBucket
) -> None:
    await own_bus._link.api(f"STREAM.DELETE.{STREAM}")
    assert await bucket.get("lease") is None
    with pytest.raises(Unavailable):
        await bucket.create("lease", b"1")
