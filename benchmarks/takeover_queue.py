"""How long a new leader takes to dispatch, and to have the whole queue, when very many jobs wait.

    python -m benchmarks.takeover_queue [--jobs 100000] [--workers 4] [--slots 4] [--rounds 2] [--json FILE]

One stack with two schedulers and workers without a model. The queue is filled with jobs, and the leader is
killed. At once an urgent job is queued behind all others. Seconds from the kill:

lease          the other scheduler announces its term
dispatch       it gives a worker the first batch
queue          it has every job in its queue
urgent         the job that came last, and is urgent, is dispatched

Beside these: the longest answer to a question for status meanwhile, which is how long the leader's event loop
was busy, and the memory of the leader before the kill and of the new one after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.bus import Bus, Message
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError
from inferflux.common.contract.requests.priority import HIGHEST
from inferflux.v1 import scheduler_pb2, worker_pb2

from .command_line import add_json, make_parser, positive, write_json
from .lab import LabError
from .scheduling.ground import until

_TENANT = "bench"
_FLUSH_EVERY = 250
_PATIENCE_S = 300.0
_LOOK_EVERY_S = 0.1


@dataclass(slots=True)
class Takeover:
    """What one takeover took, in seconds since the old leader was killed; memory in MiB."""

    jobs: int
    memory_before: float = 0.0
    memory_after: float = 0.0
    lease: float = 0.0
    dispatch: float = 0.0
    queue: float = 0.0
    urgent: float = 0.0
    longest_answer: float = 0.0
    dispatched: dict[str, float] = field(default_factory=dict, repr=False)


class Watch:
    """Reads along what schedulers say."""

    def __init__(self, term: int) -> None:
        self._term = term
        self.led_s = 0.0
        # By request id: when it was first in a batch of a newer term.
        self.dispatched: dict[str, float] = {}

    async def on_leader(self, message: Message) -> None:
        if worker_pb2.LeaderNotice.FromString(message.data).term > self._term and not self.led_s:
            self.led_s = time.perf_counter()

    async def on_batch(self, message: Message) -> None:
        batch = worker_pb2.RequestBatch.FromString(message.data)
        if batch.term > self._term:
            for item in batch.items:
                self.dispatched.setdefault(item.request.request_id, time.perf_counter())


def _job(request_id: str, model: str, options: argparse.Namespace, priority: int = 0) -> bytes:
    request = scheduler_pb2.InferenceRequest(
        request_id=request_id,
        tenant=_TENANT,
        model=model,
        prompt_token_ids=[100 + (hash(request_id) + i) % 300 for i in range(options.prompt_tokens)],
        priority=priority,
        enqueued_unix_ms=round(time.time() * 1000),
        epoch=1,
        attempt_id=request_id,
    )
    request.params.max_tokens = options.max_tokens
    return request.SerializeToString()


async def _fill(bus: Bus, model: str, names: Sequence[str], options: argparse.Namespace) -> None:
    """Queue a job of each name; JetStream is not asked whether it has each: the scheduler is, later."""
    for index, name in enumerate(names):
        await bus.publish(subjects.jobs(model), _job(name, model, options), {"Nats-Msg-Id": name})
        if index % _FLUSH_EVERY == 0:
            await bus.flush(30)
    await bus.flush(30)


async def _status(bus: Bus) -> scheduler_pb2.SchedulerStatus | None:
    try:
        answer = await bus.request(subjects.SCHEDULER_STATUS, b"", timeout_s=_PATIENCE_S)
    except InferFluxError:
        return None
    return scheduler_pb2.SchedulerStatus.FromString(answer)


async def _stored(bus: Bus) -> int:
    """Jobs in the stream."""
    answer = await bus.request(f"$JS.API.STREAM.INFO.{subjects.JOBS_STREAM}", b"", timeout_s=_PATIENCE_S)
    return int(json.loads(answer)["state"]["messages"])


async def _until_held(bus: Bus, jobs: int, taken: Takeover | None = None) -> scheduler_pb2.SchedulerStatus:
    """Wait until a scheduler has as many jobs as the queue.

    Raises:
        LabError: it has not in five minutes.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        asked_s = time.perf_counter()
        status = await _status(bus)
        if status is not None:
            if taken is not None:
                taken.longest_answer = max(taken.longest_answer, time.perf_counter() - asked_s)
            stored = await _stored(bus)
            if status.queued + status.running >= min(jobs, stored):
                return status
        await asyncio.sleep(_LOOK_EVERY_S)
    raise LabError(f"the scheduler has not {jobs} jobs after {_PATIENCE_S:g} s")


def _memory(stack: Stack, name: str) -> float:
    return psutil.Process(stack.processes[name].pid or 0).memory_info().rss / 2**20


async def _take_over(stack: Stack, bus: Bus, options: argparse.Namespace, number: int) -> Takeover:
    taken = Takeover(options.jobs)
    status = await _until_held(bus, options.jobs)
    victim, heir = status.leader, next(n for n in ("scheduler-0", "scheduler-1") if n != status.leader)
    watch = Watch(status.term)
    seen = [
        await bus.serve(subjects.SCHEDULER_LEADER, watch.on_leader),
        await bus.serve(subjects.worker_batch("*"), watch.on_batch),
    ]
    await bus.flush()
    taken.memory_before = _memory(stack, victim)
    began_s = time.perf_counter()
    await stack.kill(victim)
    urgent = f"urgent-{number}"
    headers = {"Nats-Msg-Id": urgent}
    await bus.publish(
        subjects.jobs(stack.model_name), _job(urgent, stack.model_name, options, HIGHEST), headers
    )
    await _until_held(bus, options.jobs, taken)
    taken.queue = time.perf_counter() - began_s
    taken.memory_after = _memory(stack, heir)
    await until(lambda: urgent in watch.dispatched)
    taken.lease = watch.led_s - began_s
    taken.dispatch = min(watch.dispatched.values()) - began_s
    taken.urgent = watch.dispatched[urgent] - began_s
    for one in seen:
        await one.close()
    await stack.restart(victim)
    return taken


async def measure(options: argparse.Namespace, console: Console) -> list[Takeover]:
    env = {
        "INFERFLUX_QUEUE_LIMIT": str(2 * options.jobs),
        # These are not read.
        "INFERFLUX_SCHEDULER_UNREAD_LIMIT_S": "0",
        "INFERFLUX_LOG_LEVEL": "warning",
    }
    stack_options = StackOptions(
        schedulers=2, null_workers=options.workers, slots=options.slots, restarts=False, env=env
    )
    found = []
    async with Stack(stack_options) as stack:
        bus = await Bus.connect(stack.nats_url, name="benchmark")
        try:
            began_s = time.perf_counter()
            await _fill(bus, stack.model_name, [f"job-{n}" for n in range(options.jobs)], options)
            await _until_held(bus, options.jobs)
            console.print(f"  queued in {time.perf_counter() - began_s:.1f} s", style="dim")
            for number in range(options.rounds):
                found.append(await _take_over(stack, bus, options, number))
                console.print(f"  {found[-1]}", style="dim", markup=False, highlight=False, soft_wrap=True)
        finally:
            await bus.close()
    return found


def show(found: Sequence[Takeover]) -> Table:
    table = Table(
        "jobs", "lease s", "first dispatch s", "all queued s", "urgent one s", "longest answer s", "MiB"
    )
    for one in found:
        times = (one.lease, one.dispatch, one.queue, one.urgent, one.longest_answer)
        memory = f"{one.memory_before:.0f}, {one.memory_after:.0f}"
        table.add_row(f"{one.jobs:,}", *(f"{seconds:.2f}" for seconds in times), memory)
    return table


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = make_parser(__doc__)
    parser.add_argument("--jobs", type=positive, default=100_000)
    parser.add_argument("--workers", type=positive, default=4)
    parser.add_argument("--slots", type=positive, default=4, help="of each worker")
    parser.add_argument("--prompt-tokens", type=positive, default=64)
    parser.add_argument("--max-tokens", type=positive, default=20)
    parser.add_argument("--rounds", type=positive, default=2)
    add_json(parser)
    options: Any = parser.parse_args()
    console = Console()
    found = uvloop.run(measure(options, console))
    console.print(show(found))
    write_json(options, [asdict(one) for one in found])
    return 0


if __name__ == "__main__":
    sys.exit(main())
