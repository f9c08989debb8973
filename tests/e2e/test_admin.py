"""Fairness changed and workers drained while requests run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from harness.breakable_stack import BreakableStack
from harness.client import Answer, Client, prompt
from harness.inferctl import Terminal, run

from inferflux.cli.stack import Stack
from inferflux.v1 import admin_pb2, cluster_pb2, scheduler_pb2

pytestmark = pytest.mark.e2e

WORKERS = {"worker-0", "worker-1"}
LIMIT_S = 60.0


@pytest.fixture(scope="module")
async def breakable() -> AsyncIterator[BreakableStack]:
    async with BreakableStack(slots=4) as stack:
        yield stack


@pytest.fixture
async def stack(breakable: BreakableStack) -> Stack:
    """Two workers; what is stopped stays down unless the test starts it again."""
    return await breakable.whole()


@pytest.fixture
def env(stack: Stack, tmp_path: Path) -> dict[str, str]:
    return {
        "INFERFLUX_ENDPOINT": stack.endpoint,
        "INFERFLUX_API_KEY": stack.api_key,
        "INFERFLUX_STATE_DIR": str(tmp_path),
    }


class Load:
    """Clients at once, each asking again as soon as it is answered. Use as an async context manager.

    Leaving it waits for the answers that are under way; whatever fails, fails there.
    """

    def __init__(self, client: Client, clients: int) -> None:
        self._client = client
        self._clients = clients
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []
        self.answers: list[Answer] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._ask(i)) for i in range(self._clients)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*self._tasks)

    async def served_by(self, workers: set[str]) -> None:
        """Return once each of the workers has started something from now on."""
        before = len(self.answers)
        async with asyncio.timeout(LIMIT_S):
            while not workers <= {w for a in self.answers[before:] for w in a.worker_ids}:
                await asyncio.sleep(0.02)

    async def goes_on(self, answers: int) -> list[Answer]:
        """Return the next `n` answers to requests that are sent from now on."""
        begin = len(self.answers)
        async with asyncio.timeout(LIMIT_S):
            while len([a for a in self.answers[begin:] if a.terminal is not None]) < answers:
                await asyncio.sleep(0.02)
        return self.answers[begin:]

    async def _ask(self, who: int) -> None:
        while not self._is_over:
            answer = Answer()
            self.answers.append(answer)
            await self._client.ask(prompt(f"Story {who}:", max_tokens=48), answer=answer)


def state_of(status: cluster_pb2.GetStatusResponse, worker_id: str) -> int:
    """The state the scheduler sees a worker in; 0 if it sees none."""
    states = {w.status.worker_id: w.status.state for w in status.scheduler.workers}
    return states.get(worker_id, 0)


async def fairness(env: dict[str, str], *arguments: str) -> dict[str, object]:
    """What `inferctl admin fairness` says, once a scheduler leads."""
    async with asyncio.timeout(LIMIT_S):
        while (result := await run("admin", "fairness", "--json", *arguments, env=env)).returncode:
            assert "scheduler" in result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    assert int(str(found.pop("version"))) >= 1
    return found


async def test_fairness_is_changed_live_and_the_change_outlives_the_scheduler(
    stack: Stack, client: Client, env: dict[str, str]
) -> None:
    default = {"enable_preemption": True, "high_priority_threshold": 5, "max_timeslice_tokens": 0}
    changed = {"enable_preemption": False, "high_priority_threshold": 7, "max_timeslice_tokens": 16}
    assert await fairness(env) == default
    flags = ("--no-preempt", "--high-priority", "7", "--timeslice", "16")
    assert await fairness(env, *flags) == changed
    live = (await client.status()).scheduler.fairness
    live.ClearField("version")
    assert live == scheduler_pb2.Fairness(**changed)  # type: ignore[arg-type]
    async with Load(client, 10) as load:
        await load.goes_on(10)
        await stack.kill("scheduler")
        await stack.restart("scheduler")
        assert await fairness(env) == changed
        await load.goes_on(10)
    assert await fairness(env, "--reset") == default
    await stack.restart("scheduler")
    assert await fairness(env) == default
    await client.until_idle()


async def test_a_worker_is_drained_and_stopped_under_load_without_a_failed_request(
    stack: Stack, client: Client, env: dict[str, str]
) -> None:
    async with Load(client, 6) as load:
        await load.served_by(WORKERS)
        result = await run("admin", "drain", "worker-0", env=env)
        assert result.returncode == 0, result.stderr
        assert result.stdout.endswith("worker-0 may be stopped\n")
        # Nothing was computed twice: all of it ended where it began.
        assert all(answer.epochs <= {1} for answer in load.answers)
        assert await stack.processes["worker-0"].end(30.0)
        after = await load.goes_on(12)
    assert all(answer.terminal is not None for answer in load.answers)
    assert {worker for answer in after for worker in answer.worker_ids} == {"worker-1"}


async def test_a_drained_worker_takes_requests_again(
    stack: Stack, client: Client, env: dict[str, str]
) -> None:
    async with Load(client, 6) as load:
        await load.served_by(WORKERS)
        assert (await run("admin", "drain", "worker-1", env=env)).returncode == 0
        assert state_of(await client.status(), "worker-1") == scheduler_pb2.WORKER_STATE_DRAINING
        during = await load.goes_on(12)
        assert {worker for answer in during for worker in answer.worker_ids} == {"worker-0"}
        assert (await run("admin", "undrain", "worker-1", env=env)).returncode == 0
        await load.served_by({"worker-1"})
    await client.until_idle()


async def test_a_worker_stays_drained_when_another_scheduler_leads(
    stack: Stack, client: Client, env: dict[str, str]
) -> None:
    assert (await run("admin", "drain", "worker-1", env=env)).returncode == 0
    await stack.kill("scheduler")
    await stack.restart("scheduler")
    await client.until_status(lambda s: state_of(s, "worker-1") == scheduler_pb2.WORKER_STATE_DRAINING)
    answers = await asyncio.gather(*(client.ask(prompt(f"Tale {i}", max_tokens=8)) for i in range(8)))
    assert {worker for answer in answers for worker in answer.worker_ids} == {"worker-0"}


async def test_what_runs_is_handed_over_when_that_is_asked_for(stack: Stack, client: Client) -> None:
    answers = [Answer() for _ in range(4)]
    tasks = [
        asyncio.create_task(client.ask(prompt(f"Epic {i}:", max_tokens=1500), answer=answer))
        for i, answer in enumerate(answers)
    ]
    async with asyncio.timeout(LIMIT_S):
        for answer in answers:
            await answer.first_token.wait()
        drained = answers[0].worker_ids[0]
        request = admin_pb2.DrainWorkerRequest(worker_id=drained, hand_over_after_ms=100)
        last = None
        async for response in client.admin.DrainWorker(request, metadata=client.metadata()):
            last = response.progress
        assert last is not None
        assert (last.is_drained, last.residents) == (True, 0)
        while not all(answer.worker_ids[-1] != drained for answer in answers):
            await asyncio.sleep(0.02)
        moved = [answer for answer in answers if drained in answer.worker_ids]
        counts = [len(answer.token_ids) for answer in moved]
        while any(len(a.token_ids) <= n for a, n in zip(moved, counts, strict=True)):
            await asyncio.sleep(0.02)
    assert all(not task.done() for task in tasks), "too short to be handed over"
    assert moved
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.until_idle()


async def test_watching_a_drain_at_the_terminal(stack: Stack, client: Client, env: dict[str, str]) -> None:
    running = asyncio.create_task(client.ask(prompt("Epic:", max_tokens=1900), answer=(answer := Answer())))
    async with asyncio.timeout(LIMIT_S):
        await answer.first_token.wait()
    worker = answer.worker_ids[0]
    async with Terminal("admin", "drain", worker, env=env) as terminal:
        await terminal.see("1 request left")
        running.cancel()
        await terminal.see(f"{worker} may be stopped")
        assert await terminal.exit_status() == 0
    await asyncio.gather(running, return_exceptions=True)
