"""Two schedulers, every other process, and a load: what clients see when the leader changes."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Sequence

import pytest
from harness.breakable_stack import BreakableStack
from harness.client import Answer, Client, Request, countdown, prompt, undisturbed

from inferflux.cli.stack import Stack
from inferflux.v1 import cluster_pb2, generation_pb2

pytestmark = pytest.mark.e2e

CANCELLED = generation_pb2.FINISH_REASON_CANCELLED
SCHEDULERS = {"scheduler-0", "scheduler-1"}

COUNTDOWNS = [countdown(start, end) for start in (30, 29, 28, 27) for end in (1, 2)]
# Long enough to run from before a leader's death until after its successor leads.
STORIES = [prompt(f"Story number {i}:", max_tokens=1900) for i in range(4)]


@pytest.fixture(scope="module")
async def breakable() -> AsyncIterator[BreakableStack]:
    async with BreakableStack(schedulers=2) as stack:
        yield stack


@pytest.fixture
async def stack(breakable: BreakableStack) -> Stack:
    """What is killed stays dead unless the test starts it again."""
    return await breakable.whole()


class Load:
    """Streams that run when something happens, and short requests that never stop coming."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.countdowns = [Answer() for _ in COUNTDOWNS]
        self.stories = [Answer() for _ in STORIES]
        self.short: list[Answer] = []
        self._is_over = False
        # The stack knows the ids of earlier loads.
        self._mark = uuid.uuid4().hex[:8]
        self._tasks = [
            *self._ask(COUNTDOWNS, self.countdowns, "countdown"),
            *self._ask(STORIES, self.stories, "story"),
        ]
        self._tasks += [asyncio.create_task(self._come()) for _ in range(3)]

    def _ask(
        self, requests: Sequence[Request], answers: list[Answer], name: str
    ) -> list[asyncio.Task[Answer]]:
        return [
            asyncio.create_task(
                self._client.ask(request, request_id=f"{name}-{self._mark}-{i}", answer=answer)
            )
            for i, (request, answer) in enumerate(zip(requests, answers, strict=True))
        ]

    def _id(self, name: str, number: int) -> str:
        return f"{name}-{self._mark}-{number}"

    async def _come(self) -> Answer:
        while True:
            answer = await self._client.ask(prompt(max_tokens=4))
            self.short.append(answer)
            if self._is_over:
                return answer

    async def started(self) -> None:
        async with asyncio.timeout(30):
            for answer in (*self.countdowns, *self.stories):
                await answer.first_token.wait()

    async def serves(self, more: int) -> None:
        """Return once this many more short requests were served."""
        wanted = len(self.short) + more
        async with asyncio.timeout(30):
            while len(self.short) < wanted:
                await asyncio.sleep(0.02)

    @property
    def is_telling(self) -> bool:
        """Whether every story goes on."""
        return all(answer.terminal is None for answer in self.stories)

    async def _stories_go_on(self) -> None:
        before = [len(answer.token_ids) for answer in self.stories]
        while any(len(a.token_ids) <= n for a, n in zip(self.stories, before, strict=True)):
            await asyncio.sleep(0.02)

    async def finish(self, expected: list[Answer]) -> None:
        """Let countdowns finish and cancel the stories, once they have gone on; fails if anything failed, or
        a countdown is not as `expected`, or a stream was started again."""
        self._is_over = True
        async with asyncio.timeout(90):
            await self._stories_go_on()
            for i in range(len(STORIES)):
                await self._client.cancel(self._id("story", i))
            await asyncio.gather(*self._tasks)
        assert_same(self.countdowns, expected)
        assert [a.terminal.reason for a in self.stories if a.terminal] == [CANCELLED] * len(STORIES)
        assert all(len(answer.token_ids) == 4 for answer in self.short)
        assert all(answer.epochs == {1} for answer in (*self.countdowns, *self.stories))


def assert_same(answers: list[Answer], expected: list[Answer]) -> None:
    for answer, reference in zip(answers, expected, strict=True):
        assert (answer.token_ids, answer.text) == (reference.token_ids, reference.text)


async def leader(client: Client, *, other_than: str = "") -> str:
    """Who leads, once it is someone else than that."""
    names: list[str] = []

    def is_led(status: cluster_pb2.GetStatusResponse) -> bool:
        names.append(status.scheduler.leader)
        return names[-1] not in ("", other_than)

    await client.until_status(is_led)
    return names[-1]


async def test_a_killed_leaders_standby_takes_over_under_load_and_no_client_notices(
    stack: Stack, client: Client
) -> None:
    expected = await undisturbed(client, COUNTDOWNS)
    first = await leader(client)
    assert first in SCHEDULERS
    load = Load(client)
    await load.started()
    await stack.kill(first)
    assert {await leader(client, other_than=first)} == SCHEDULERS - {first}
    assert load.is_telling
    await load.serves(6)
    await load.finish(expected)
    await client.until_idle()

    await stack.restart(first)
    second = await leader(client)
    assert second != first
    await stack.kill(second)
    assert await leader(client, other_than=second) == first
    assert (await client.ask(prompt(max_tokens=4))).terminal is not None
    await client.until_idle()


async def test_a_leader_that_stands_still_is_replaced_and_steps_down(stack: Stack, client: Client) -> None:
    expected = await undisturbed(client, COUNTDOWNS)
    first = await leader(client)
    load = Load(client)
    await load.started()
    stopped = stack.processes[first]
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        second = await leader(client, other_than=first)
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    assert load.is_telling
    await stack.wait_ready()
    await load.serves(6)
    await load.finish(expected)
    assert await leader(client) == second
    assert stopped.is_running
    await client.until_idle()


async def test_a_restart_of_nats_under_load_leaves_one_leader(stack: Stack, client: Client) -> None:
    expected = await undisturbed(client, COUNTDOWNS)
    running = [asyncio.create_task(client.ask(request)) for request in COUNTDOWNS]
    await client.until_status(lambda s: s.scheduler.running > 0)
    await stack.restart("nats")
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*running)
    assert_same(answers, expected)
    await client.until_idle()
    assert await leader(client) in SCHEDULERS
    assert (await client.ask(prompt(max_tokens=4))).terminal is not None
