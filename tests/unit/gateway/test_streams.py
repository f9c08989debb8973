"""Places for streams, and how they are cleared."""

from __future__ import annotations

import asyncio

import pytest

from inferflux.common.contract.errors import ResourceExhausted, Unavailable
from inferflux.gateway.request.streams import Streams


async def hold(streams: Streams, release: asyncio.Event, tenant: str = "acme") -> str:
    with streams.place(tenant):
        try:
            await release.wait()
        except asyncio.CancelledError:
            return "over" if streams.is_over else "cancelled"
    return "finished"


async def started(streams: Streams, n: int, release: asyncio.Event) -> list[asyncio.Task[str]]:
    tasks = [asyncio.create_task(hold(streams, release)) for _ in range(n)]
    while len(streams) < n:
        await asyncio.sleep(0)
    return tasks


async def test_a_place_is_free_again_when_its_stream_has_ended() -> None:
    streams, release = Streams(2, 2), asyncio.Event()
    tasks = await started(streams, 2, release)
    with pytest.raises(ResourceExhausted), streams.place("acme"):
        pass
    release.set()
    await asyncio.gather(*tasks)
    with streams.place("acme"):
        assert len(streams) == 1
    assert len(streams) == 0


async def test_draining_waits_for_streams_and_takes_no_new_ones() -> None:
    streams, release = Streams(9), asyncio.Event()
    tasks = await started(streams, 3, release)
    draining = asyncio.create_task(streams.drain(60.0))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable), streams.place("acme"):
        pass
    assert not draining.done()
    release.set()
    await draining
    assert await asyncio.gather(*tasks) == ["finished"] * 3


async def test_streams_that_outlast_the_drain_are_ended() -> None:
    streams = Streams(9)
    tasks = await started(streams, 2, asyncio.Event())
    await streams.drain(0.01)
    assert await asyncio.gather(*tasks) == ["over", "over"]


async def test_a_drain_without_streams_ends_at_once() -> None:
    await asyncio.wait_for(Streams(1).drain(60.0), 1.0)


async def test_what_is_followed_holds_its_place_until_it_ends() -> None:
    streams, release = Streams(1), asyncio.Event()

    async def follow() -> None:
        await release.wait()

    streams.follow(follow(), tenant="acme", on_end=lambda: None)
    with pytest.raises(ResourceExhausted), streams.place("acme"):
        pass
    release.set()
    while True:
        await asyncio.sleep(0)
        try:
            with streams.place("acme"):
                break
        except ResourceExhausted:
            continue


@pytest.mark.parametrize("has_begun", [False, True])
async def test_draining_ends_followers_and_each_is_told_of(has_begun: bool) -> None:
    streams = Streams(9)
    ended: list[str] = []

    async def follow() -> None:
        await asyncio.Event().wait()

    streams.follow(follow(), tenant="acme", on_end=lambda: ended.append("follower"))
    if has_begun:
        await asyncio.sleep(0)
    await streams.drain(0.01)
    assert ended == ["follower"]


async def fill_up(
    streams: Streams, release: asyncio.Event, tenant: str, n: int = 64
) -> list[asyncio.Task[str]]:
    """Up to `n` more streams of a tenant; those that were refused are done."""
    tasks = [asyncio.create_task(hold(streams, release, tenant)) for _ in range(n)]
    await asyncio.sleep(0)
    return tasks


async def test_beside_others_a_tenant_takes_no_more_places_than_it_leaves_free() -> None:
    streams, release = Streams(13), asyncio.Event()
    tasks = await fill_up(streams, release, "z", 1)
    taken: list[int] = []
    for tenant in "abcd":
        before = len(streams)
        tasks += await fill_up(streams, release, tenant)
        taken.append(len(streams) - before)
    assert taken == [6, 3, 2, 1]
    release.set()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    refusals = {end.reason for end in ends if isinstance(end, ResourceExhausted)}
    assert refusals == {"TENANT_TOO_MANY_STREAMS", "TOO_MANY_STREAMS"}
    assert ends.count("finished") == 13


async def test_a_tenant_alone_takes_all_places_but_a_reserve_for_newcomers() -> None:
    streams, release = Streams(32), asyncio.Event()
    tasks = await fill_up(streams, release, "acme")
    assert len(streams) == 30
    newcomer = await fill_up(streams, release, "bolt", 1)
    assert len(streams) == 31
    release.set()
    await asyncio.gather(*tasks, *newcomer, return_exceptions=True)
    assert newcomer[0].result() == "finished"


async def test_a_bound_that_is_set_holds_for_each_tenant() -> None:
    streams, release = Streams(12, 2), asyncio.Event()
    tasks = await started(streams, 2, release)
    with pytest.raises(ResourceExhausted) as caught, streams.place("acme"):
        pass
    assert "acme" in caught.value.message
    with streams.place("other"):
        assert len(streams) == 3
    release.set()
    await asyncio.gather(*tasks)
