"""The ground of a measurement: a stack of its own, its administrator, and its clients."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

from rich.console import Console
from rich.progress import Progress

from benchmarks.load.grpc_target import generate_request
from benchmarks.load.prompts import Prompts, middle_of
from benchmarks.rows.lab import LabError
from inferflux.cli.reach.client import Client
from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.calls import grpc_client
from inferflux.common.contract.address import split
from inferflux.common.contract.requests.priority import HIGHEST
from inferflux.v1 import cluster_pb2, inference_pb2, policy_pb2, policy_pb2_grpc, scheduler_pb2

from .streams import Caller, Request, Stream, hang_up

PROMPT_TOKENS = 128
MAX_TOKENS = 64
URGENT = 9
_LOOK_EVERY_S = 0.01
_PATIENCE_S = 60.0
_PAUSE_AFTER_FAILURE_S = 0.1
_GAUGE = re.compile(r"^(inferflux_\w+)(?:\{[^}]*\})? ([-+.\deE]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        rounds: how often a comparison is made; both sides in each.
        singles: requests of a round that are measured alone.
        window_s: how long a constant load is watched at a time.
        settle_s: from a change until its effect is measured.
        kills: how often a process is killed.
        cancels: requests cancelled in each phase.
    """

    rounds: int = 5
    singles: int = 8
    window_s: float = 20.0
    settle_s: float = 4.0
    kills: int = 5
    cancels: int = 12


FULL = Plan()
QUICK = Plan(rounds=1, singles=2, window_s=6.0, settle_s=2.0, kills=1, cancels=2)


class Bench:
    """How much is to be measured, and where it is shown how far that is."""

    def __init__(self, plan: Plan, console: Console, progress: Progress) -> None:
        self.plan = plan
        self._console = console
        self._progress = progress

    def say(self, text: str) -> None:
        self._console.print(f"  {text}", style="dim", markup=False, highlight=False, soft_wrap=True)

    def steps(self, description: str, count: int) -> Iterator[int]:
        """Count up to `count`, shown as a bar."""
        bar = self._progress.add_task(description, total=count)
        try:
            for number in range(count):
                yield number
                self._progress.advance(bar)
        finally:
            self._progress.remove_task(bar)


class Ground:
    """A running stack, and what is done to it."""

    def __init__(self, stack: Stack, admin: Client, caller: Caller, prompts: Mapping[int, Prompts]) -> None:
        self.stack = stack
        self.admin = admin
        self.caller = caller
        self._prefill = prompts
        self._numbers = itertools.count()

    @property
    def model(self) -> str:
        return self.stack.model_name

    def request(
        self, *, prompt_tokens: int = PROMPT_TOKENS, max_tokens: int = MAX_TOKENS, priority: int = 0
    ) -> inference_pb2.GenerateRequest:
        """A greedy request of these lengths whose prompt was not sent before."""
        prompt = self._prefill[prompt_tokens][next(self._numbers)]
        return generate_request(self.model, prompt, max_tokens, priority=priority)

    async def preempt(self, *, on: bool) -> None:
        await self.admin.set_fairness(scheduler_pb2.SetFairness(enable_preemption=on))

    async def drain(self, worker_id: str) -> None:
        """Have a worker take nothing new; returns when it runs nothing."""
        async for progress in self.admin.drain(worker_id):
            if progress.is_drained:
                return

    async def until_scheduler(self, condition: Callable[[scheduler_pb2.SchedulerStatus], bool]) -> None:
        """Return once what the scheduler says of itself fulfils `condition`.

        Raises:
            LabError: it does not in a minute.
        """

        async def is_so() -> bool:
            status: cluster_pb2.GetStatusResponse = await self.admin.status()
            return status.HasField("scheduler") and condition(status.scheduler)

        await until_so(is_so)

    async def until_idle(self) -> None:
        """Return once nothing waits or runs."""
        await self.until_scheduler(
            lambda s: s.queued == 0 and s.running == 0 and not any(w.status.residents for w in s.workers)
        )

    async def gauges(self, process: str) -> dict[str, float]:
        """The metrics of a process by name; of those with labels, all but one are skipped."""
        host, port = split(self.stack.metrics[process], "metrics")
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
            text = (await reader.read()).decode()
        finally:
            writer.close()
        return {name: float(value) for name, value in _GAUGE.findall(text)}

    @asynccontextmanager
    async def tenant(self, name: str) -> AsyncIterator[Caller]:
        """A client with a key of a tenant of its own."""
        caller = Caller(self.stack.endpoint, await self._create_key(name))
        try:
            yield caller
        finally:
            await caller.close()

    async def _create_key(self, tenant: str) -> str:
        address = self.stack.processes["policy"].spec.env["INFERFLUX_POLICY_LISTEN"]
        async with grpc_client.channel(address) as channel:
            reply: policy_pb2.CreateApiKeyResponse = await policy_pb2_grpc.PolicyServiceStub(
                channel
            ).CreateApiKey(
                policy_pb2.CreateApiKeyRequest(
                    tenant=tenant, name="benchmark", scopes=["inference"], max_priority=HIGHEST
                ),
                metadata=grpc_client.outgoing(api_key=self.stack.api_key),
                timeout=10,
            )
        return reply.secret


class _PromptsByLength(dict[int, Prompts]):
    def __init__(self, token_range: tuple[int, int]) -> None:
        super().__init__()
        self._token_range = token_range

    def __missing__(self, length: int) -> Prompts:
        self[length] = Prompts(length, self._token_range)
        return self[length]


@asynccontextmanager
async def ground(options: StackOptions) -> AsyncIterator[Ground]:
    """A stack with its clients."""
    async with Stack(options) as stack, Client(stack.target) as admin:
        model = next(m for m in await admin.models() if m.card.name == stack.model_name)
        caller = Caller(stack.endpoint, stack.api_key)
        try:
            yield Ground(stack, admin, caller, _PromptsByLength(middle_of(model.card.vocabulary_size)))
        finally:
            await caller.close()


def ready_workers(status: scheduler_pb2.SchedulerStatus) -> set[str]:
    """The workers that take requests."""
    ready = scheduler_pb2.WORKER_STATE_READY
    return {w.status.worker_id for w in status.workers if w.status.state == ready}


async def until_so(condition: Callable[[], Awaitable[bool]], *, patience_s: float = _PATIENCE_S) -> None:
    """Return once the condition holds.

    Raises:
        LabError: it does not in that time.
    """
    deadline = time.monotonic() + patience_s
    while not await condition():
        if time.monotonic() > deadline:
            raise LabError(f"what is to be measured did not come about within {patience_s:g} s")
        await asyncio.sleep(_LOOK_EVERY_S)


async def until(condition: Callable[[], bool], *, patience_s: float = _PATIENCE_S) -> None:
    """Return once the condition holds, as `until_so`."""

    async def is_so() -> bool:
        return condition()

    await until_so(is_so, patience_s=patience_s)


class Load:
    """Keeps this many requests under way: the next one is sent when one ends. An async context manager.

    Leaving it hangs up on those that are under way.

    Attributes:
        streams: all that were sent.
    """

    def __init__(self, caller: Caller, make: Callable[[int], Request], n: int) -> None:
        self._caller = caller
        self._make = make
        self._n = n
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False
        self.streams: list[Stream] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._one_after_the_other()) for _ in range(self._n)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await hang_up(self._tasks)

    async def _one_after_the_other(self) -> None:
        while not self._is_over:
            underway = self._caller.send(self._make(next(self._numbers)))
            self.streams.append(underway.stream)
            # Cancelled while it waits, it takes the request with it.
            await underway.task
            if underway.stream.error:
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

    async def finish(self, limit_s: float) -> None:
        """Send no more, and wait until those that are under way have ended."""
        self._is_over = True
        await asyncio.wait(self._tasks, timeout=limit_s)

    def check(self) -> None:
        """Raises LabError if a request failed."""
        failed = [s.error for s in self.streams if s.error]
        if failed:
            raise LabError(f"{len(failed)} of {len(self.streams)} requests failed: {failed[0]}")
