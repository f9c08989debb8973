"""Every process over three nats-servers, of which one dies or stands still: what a client sees."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from harness.breakable_stack import BreakableStack
from harness.client import Client, countdown, prompt, undisturbed
from harness.nats_cluster import NatsCluster

from inferflux.cli.stack import Stack
from inferflux.common.bus import Bus
from inferflux.common.bus.link import ApiError
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded
from inferflux.common.servers import nats_users
from inferflux.v1 import inference_pb2

WORKERS = ("worker-0", "worker-1")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.long]


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsCluster]:
    users = [nats_users.gateway(), nats_users.scheduler(), nats_users.operator()]
    users += [nats_users.worker(name) for name in WORKERS]
    with NatsCluster(tmp_path_factory.mktemp("nats"), users) as made:
        await made.start()
        yield made


@pytest.fixture(scope="module")
async def breakable(cluster: NatsCluster) -> AsyncIterator[BreakableStack]:
    users = ("gateway", "scheduler", *WORKERS)
    urls = {user: {"INFERFLUX_NATS_URL": cluster.url(user=user)} for user in users}
    async with BreakableStack(nats_url=cluster.url(user="operator"), service_env=urls) as stack:
        yield stack


@pytest.fixture
async def stack(breakable: BreakableStack, cluster: NatsCluster) -> Stack:
    await cluster.start()
    return await breakable.whole()


def countdowns() -> list[inference_pb2.ChatRequest]:
    return [countdown(start, end) for start in (30, 29, 28, 27) for end in (1, 2)]


async def leader_of_tokens(stack: Stack) -> int:
    bus = await Bus.connect(stack.nats_url, name="test")
    try:
        while True:
            with contextlib.suppress(DeadlineExceeded, ApiError, KeyError):  # the servers elect
                return await NatsCluster.leader(bus, subjects.TOKENS_STREAM)
    finally:
        await bus.close()


@pytest.mark.parametrize("fault", ["killed", "stopped"])
async def test_no_stream_notices_that_a_server_of_three_is_gone(
    stack: Stack, cluster: NatsCluster, client: Client, fault: str
) -> None:
    """The one that keeps the stream of tokens, so that nothing fills holes but the workers."""
    expected = await undisturbed(client, countdowns())
    victim = cluster.servers[await leader_of_tokens(stack)]
    running = asyncio.gather(
        *(client.ask(each, request_id=f"{fault}-{i}") for i, each in enumerate(countdowns()))
    )
    await client.until_status(lambda s: s.scheduler.running == len(expected))
    victim.kill() if fault == "killed" else victim.pause()
    try:
        answers = await running
        late = await client.ask(prompt("Once", max_tokens=4))
    finally:
        if fault == "stopped":
            victim.resume()
    assert [(a.token_ids, a.text) for a in answers] == [(a.token_ids, a.text) for a in expected]
    assert late.terminal is not None
    await client.until_idle()
