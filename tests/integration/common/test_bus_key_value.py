"""Small values in JetStream: who writes first wins, also around a restart of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from harness.servers import ServerProcess

from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.bus.key_value import KeyValueBucket
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded, Unavailable

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
