"""How long a scheduler takes to take over a work queue that is full of jobs.

    python -m benchmarks.full_queue [--jobs 100000] [--rounds 1] [--json FILE]

A stack with two schedulers and workers without a model (docs/operations.md), which start a few requests a
second. The queue is filled; then the leader is killed (SIGKILL), and an urgent job is put behind all others.
Prints, in seconds after the kill: when the other scheduler leads, when the first request that it dispatched
has its first token, when the urgent one has, and when nearly all jobs are in its queue; and its memory.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil
import uvloop
from rich.console import Console
from rich.progress import Progress

from benchmarks.command_line import add_json, make_parser, positive, show_figures
from benchmarks.lab import LabError
from benchmarks.scheduling.ground import until
from benchmarks.stats import median
from inferflux.cli.client import Client
from inferflux.cli.stack import Stack, StackOptions
from inferflux.common import nats_users, subjects
from inferflux.common.bus import Bus
from inferflux.common.priority import HIGHEST
from inferflux.common.tasks import cancel_all
from inferflux.gateway.submit import resolve
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2

_TENANT = "bench"
_PROMPT_TOKENS = 64
_MAX_TOKENS = 20
_STEP_S = 0.05
_CONTEXT = 4096
_WORKERS = 2
_AT_ONCE = 256
_PATIENCE_S = 180.0
_LOOK_EVERY_S = 0.1
# This part of the jobs counts as all: some are served meanwhile.
_NEARLY = 0.9


def _job(model: str, *, priority: int = 0) -> scheduler_pb2.InferenceRequest:
    params = resolve(
        generation_pb2.GenerationParams(max_tokens=_MAX_TOKENS),
        prompt_tokens=_PROMPT_TOKENS,
        context_length=_CONTEXT,
    )
    return scheduler_pb2.InferenceRequest(
        request_id=secrets.token_hex(8),
        tenant=_TENANT,
        model=model,
        prompt_token_ids=[100 + secrets.randbelow(900) for _ in range(_PROMPT_TOKENS)],
        params=params,
        priority=priority,
        enqueued_unix_ms=round(time.time() * 1000),
        epoch=1,
    )


async def _enqueue(bus: Bus, job: scheduler_pb2.InferenceRequest) -> None:
    await bus.enqueue(subjects.jobs(job.model), job.SerializeToString(), msg_id=job.request_id)


async def _fill(bus: Bus, model: str, jobs: int, progress: Progress) -> None:
    bar = progress.add_task("jobs queued", total=jobs)
    for begin in range(0, jobs, _AT_ONCE):
        count = min(_AT_ONCE, jobs - begin)
        await asyncio.gather(*(_enqueue(bus, _job(model)) for _ in range(count)))
        progress.advance(bar, count)


async def _until(
    admin: Client, condition: Callable[[scheduler_pb2.SchedulerStatus], bool]
) -> scheduler_pb2.SchedulerStatus:
    """Return what the leader says of itself once it fulfils `condition`.

    Raises:
        LabError: it does not in three minutes.
    """
    end_s = time.perf_counter() + _PATIENCE_S
    while time.perf_counter() < end_s:
        status = await admin.status()
        if status.HasField("scheduler") and condition(status.scheduler):
            return status.scheduler
        await asyncio.sleep(_LOOK_EVERY_S)
    raise LabError("the scheduler did not get there in time")


async def _note_first_tokens(bus: Bus, firsts: dict[str, float]) -> None:
    """When each request's first token came, by time.perf_counter."""
    stream = await bus.open_stream(subjects.tokens(_TENANT, "*"))
    while True:
        chunk = tokens_pb2.TokenChunk.FromString(await stream.next(_PATIENCE_S))
        if chunk.token_ids and chunk.offset == 0:
            firsts.setdefault(chunk.request_id, time.perf_counter())


async def _take_over(stack: Stack, admin: Client, bus: Bus, options: argparse.Namespace) -> dict[str, float]:
    with Progress(console=Console(stderr=True)) as progress:
        await _fill(bus, stack.model_name, options.jobs, progress)
    before = await _until(admin, lambda s: s.queued >= options.jobs * _NEARLY)
    firsts: dict[str, float] = {}
    noting = asyncio.create_task(_note_first_tokens(bus, firsts))
    await asyncio.sleep(_STEP_S * _MAX_TOKENS)
    killed_s = time.perf_counter()
    await stack.kill(before.leader)
    urgent = _job(stack.model_name, priority=HIGHEST)
    await _enqueue(bus, urgent)
    await _until(admin, lambda s: s.term > before.term)
    leads_s = time.perf_counter()
    after = await _until(admin, lambda s: s.term > before.term and s.queued >= before.queued * _NEARLY)
    whole_s = time.perf_counter()
    await until(lambda: urgent.request_id in firsts)
    await cancel_all([noting])
    # Requests that ran before the kill are over by then.
    ended_s = killed_s + _STEP_S * _MAX_TOKENS
    return {
        "jobs": after.queued,
        "answers_s": leads_s - killed_s,
        "first_token_s": min(at for at in firsts.values() if at > ended_s) - killed_s,
        "urgent_first_token_s": firsts[urgent.request_id] - killed_s,
        "nearly_all_queued_s": whole_s - killed_s,
        "scheduler_mb": psutil.Process(stack.processes[after.leader].pid).memory_info().rss / 1e6,
    }


async def _measure(options: argparse.Namespace) -> dict[str, float]:
    stack_options = StackOptions(
        null_workers=_WORKERS,
        schedulers=2,
        slots=8,
        restarts=False,
        env={
            "INFERFLUX_QUEUE_LIMIT": str(options.jobs + 1000),
            "INFERFLUX_WORKER_NULL_STEP_S": str(_STEP_S),
            "INFERFLUX_LOG_LEVEL": "warning",
        },
    )
    rounds = []
    for _ in range(options.rounds):
        async with Stack(stack_options) as stack, Client(stack.target) as admin:
            url = stack._granted.nats_url(stack._ports, nats_users.GATEWAY)  # noqa: SLF001 - jobs without a gateway
            bus = await Bus.connect(url, name="benchmark")
            try:
                rounds.append(await _take_over(stack, admin, bus, options))
            finally:
                await bus.close()
    return {name: median(each[name] for each in rounds) for name in rounds[0]}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--jobs", type=positive, default=100_000)
    parser.add_argument("--rounds", type=positive, default=1)
    add_json(parser)
    options = parser.parse_args()
    show_figures(options, uvloop.run(_measure(options)))


if __name__ == "__main__":
    main()
