"""JetStream's disk is full for a while: every process, and what a client sees."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator

import grpc
import grpc.aio
import pytest
from harness.client import Answer, Client, countdown, prompt
from harness.small_disk import MountError, SmallDisk

from inferflux.cli.stack import EventKind, Stack, StackEvent, StackOptions

pytestmark = pytest.mark.e2e

WAIT_S = 60.0


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    try:
        mounting = SmallDisk.mounted()
        small = mounting.__enter__()
    except MountError as error:
        pytest.skip(f"{error}: only root can mount a disk of its own")
    yield small
    mounting.__exit__(None, None, None)


@pytest.fixture
def events() -> list[StackEvent]:
    """What the stack has told of its processes."""
    return []


@pytest.fixture
async def stack(disk: SmallDisk, events: list[StackEvent]) -> AsyncIterator[Stack]:
    """One slot, so that a second request is queued, and a disk of its own for the streams."""
    options = StackOptions(slots=1, threads=1, nats_store=disk.path)
    async with Stack(options, observe=events.append) as running:
        yield running


def ask_readiness(address: str) -> dict[str, str]:
    """What is missing, by condition."""
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as reply:
            body = reply.read()
    except urllib.error.HTTPError as error:
        body = error.read()
    conditions = json.loads(body)["conditions"]
    return {name: said["detail"] for name, said in conditions.items() if not said["ok"]}


async def until_unready(stack: Stack, service: str, condition: str) -> str:
    """Return what it says is missing once the condition does not hold."""
    async with asyncio.timeout(WAIT_S):
        while condition not in (missing := await asyncio.to_thread(ask_readiness, stack.metrics[service])):
            await asyncio.sleep(0.05)
    return missing[condition]


async def until_served(client: Client) -> Answer:
    """Ask until there is an answer; all that is said before is UNAVAILABLE."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await client.ask(prompt(max_tokens=4))
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.1)


async def test_a_full_disk_refuses_at_once_stops_nothing_and_heals_when_there_is_space(
    stack: Stack, client: Client, disk: SmallDisk, events: list[StackEvent]
) -> None:
    expected = await client.ask(countdown(30, 1))
    running = Answer()
    streaming = asyncio.create_task(client.ask(prompt("A story:", max_tokens=1900), answer=running))
    async with asyncio.timeout(WAIT_S):
        await running.first_token.wait()
    waiting = asyncio.create_task(client.ask(countdown(30, 1), request_id="waiting"))
    await client.until_status(lambda status: status.scheduler.queued == 1)

    disk.fill()
    assert await until_unready(stack, "gateway", "queue") == "JetStream does not write"
    assert "no space left" in await until_unready(stack, "scheduler", "scheduler")
    rows = {row.name: row for row in (await client.status()).services}
    for name in ("gateway", "nats", "scheduler"):
        assert not rows[name].is_ready
    for name in ("gateway", "nats"):
        assert "no space left" in rows[name].detail
    so_far = len(running.token_ids)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.ask(prompt(max_tokens=4))
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    async with asyncio.timeout(WAIT_S):
        while len(running.token_ids) == so_far and not streaming.done():
            await asyncio.sleep(0.02)

    disk.empty()
    assert (await until_served(client)).terminal is not None
    async with asyncio.timeout(WAIT_S):
        whole, queued = await asyncio.gather(streaming, waiting)
    assert whole.terminal is not None
    assert queued.token_ids == expected.token_ids
    await client.until_idle()
    died = next(event for event in events if event.kind is EventKind.DIED and "disk" in event.detail)
    assert f"{died.process} {died.detail}".startswith("nats does not write, though its disk does again: ")
