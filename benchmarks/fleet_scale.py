"""The control plane with hundreds of workers: what a request costs when no model computes.

    python -m benchmarks.fleet_scale [--workers 300] [--rate 1000] [--seconds 10] [--burst 5000] [--json FILE]

One stack whose worker process has many workers with null engines (docs/operations.md): they make tokens at
given rates, and everything else is as with models. Three phases:

idle    no request comes: what heartbeats cost each service
load    requests come at random moments, more than are served; beside them one urgent one after the other
burst   all at once

Each service's CPU time is read from the kernel: on a machine that others use it says more than times on the
clock. A request's CPU time is that of all services, what their heartbeats cost meanwhile included.
Requests come from a process of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc.aio
import uvloop
from rich.console import Console
from rich.table import Table

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.calls import grpc_client
from inferflux.common.contract.requests.priority import HIGHEST
from inferflux.v1 import inference_pb2_grpc

from .load.command_line import add_json, make_parser, positive, write_json
from .load.grpc_target import generate_request
from .rows.cpu_cost import cpu_s
from .rows.lab import FULL, Lab

_URGENT_EVERY_S = 0.2
_IDLE_S = 5.0
_SETTLE_S = 2.0
_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Phase:
    """Figures of a phase.

    Attributes:
        served: requests that had their whole answer.
        refused: how many of the others ended how.
        cpu_s: CPU time of each service meanwhile.
        urgent_queue_ms: of each urgent request, in the scheduler.
        urgent_answer_ms: of each, until its two tokens were here: the gateway's own queue included.
    """

    name: str
    seconds: float
    served: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    urgent_queue_ms: list[float] = field(default_factory=list)
    urgent_answer_ms: list[float] = field(default_factory=list)
    first_token_p50_ms: float = 0.0

    @property
    def served_per_s(self) -> float:
        return self.served / self.seconds if self.seconds else 0.0

    def cpu_ms_of(self, service: str) -> float:
        """For each request that was served."""
        return 1000 * self.cpu_s[service] / max(self.served, 1)

    @property
    def cpu_ms(self) -> float:
        """For each request that was served, of all services."""
        return sum(map(self.cpu_ms_of, self.cpu_s))


class Fleet:
    """A running stack with null workers."""

    def __init__(self, stack: Stack, console: Console, options: argparse.Namespace) -> None:
        self._stack = stack
        self._console = console
        self._lab = Lab(FULL, console)
        self._options = options

    async def idle(self) -> Phase:
        before = self._cpu()
        await asyncio.sleep(_IDLE_S)
        return Phase("idle", _IDLE_S, cpu_s=self._since(before))

    async def load(self) -> Phase:
        options = self._options
        requests = int(options.rate * options.seconds)
        before = self._cpu()
        urgent = Phase("urgent", 0.0)
        asking = asyncio.create_task(self._ask_urgently(urgent))
        try:
            result = await self._serve("--rate", options.rate, "--requests", requests)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        return self._phase("load", result, self._since(before), urgent)

    async def burst(self) -> Phase:
        count = self._options.burst
        before = self._cpu()
        result = await self._serve("--concurrency", count, "--requests", count)
        return self._phase("burst", result, self._since(before), Phase("urgent", 0.0))

    async def _serve(self, *load: str | float) -> dict[str, Any]:
        options, stack = self._options, self._stack
        where = ("--url", stack.endpoint, "--model", stack.model_name, "--client", "lean")
        sizes = ("--prompt-tokens", options.prompt_tokens, "--max-tokens", options.max_tokens)
        words = (*where, *sizes, *load, "--limit-s", _LIMIT_S)
        return await self._lab.serve(*words, api_key=stack.api_key, may_fail=True)

    async def _ask_urgently(self, urgent: Phase) -> None:
        priority = 0 if self._options.unannounced else HIGHEST
        metadata = grpc_client.outgoing(api_key=self._stack.api_key, priority=priority)
        async with grpc_client.channel(self._stack.endpoint) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            number = 0
            while True:
                number += 1
                prompt = [100 + number % 300] * self._options.prompt_tokens
                request = generate_request(self._stack.model_name, prompt, 2, priority=HIGHEST)
                sent_s = time.perf_counter()
                try:
                    async for answer in stub.Generate(request, metadata=metadata, timeout=_LIMIT_S):
                        if answer.chunk.HasField("finished"):
                            urgent.urgent_queue_ms.append(answer.chunk.finished.timings.queue_ms)
                            urgent.urgent_answer_ms.append(1000 * (time.perf_counter() - sent_s))
                except grpc.aio.AioRpcError as error:
                    self._console.print(f"an urgent one failed: {error.code().name}: {error.details()}")
                await asyncio.sleep(_URGENT_EVERY_S)

    def _cpu(self) -> dict[str, float]:
        return {name: cpu_s(process.pid or 0) for name, process in self._stack.processes.items()}

    def _since(self, before: Mapping[str, float]) -> dict[str, float]:
        return {name: now - before[name] for name, now in self._cpu().items()}

    @staticmethod
    def _phase(name: str, result: dict[str, Any], spent: dict[str, float], urgent: Phase) -> Phase:
        return Phase(
            name,
            seconds=result["duration_s"],
            served=result["requests"] - result["failed"],
            refused=result["errors"],
            cpu_s=spent,
            urgent_queue_ms=sorted(urgent.urgent_queue_ms),
            urgent_answer_ms=sorted(urgent.urgent_answer_ms),
            first_token_p50_ms=result["ttft_ms"]["p50"],
        )


async def measure(options: argparse.Namespace, console: Console) -> list[Phase]:
    stack_options = StackOptions(
        null_workers=options.workers,
        slots=options.slots,
        start_limit_s=120.0,
        env={
            "INFERFLUX_WORKER_NULL_STEP_S": f"{options.step_ms / 1000:g}",
            "INFERFLUX_LOG_LEVEL": "warning" if options.quiet else "info",
        },
    )
    async with Stack(stack_options) as stack:
        fleet = Fleet(stack, console, options)
        await asyncio.sleep(_SETTLE_S)
        phases = [await fleet.idle()]
        if options.seconds:
            phases.append(await fleet.load())
        if options.burst:
            await asyncio.sleep(_SETTLE_S)
            phases.append(await fleet.burst())
        return phases


def show(phases: list[Phase]) -> Table:
    table = Table("", *(phase.name for phase in phases))
    for service in phases[0].cpu_s:
        cells = [
            f"{phase.cpu_ms_of(service):.2f} ms"
            if phase.served
            else f"{phase.cpu_s[service] / phase.seconds:.0%}"
            for phase in phases
        ]
        table.add_row(service, *cells)
    rows = {
        "all services": [
            f"{p.cpu_ms:.2f} ms" if p.served else f"{sum(p.cpu_s.values()) / p.seconds:.0%}" for p in phases
        ],
        "served": [f"{p.served:,}" for p in phases],
        "served a second": [f"{p.served_per_s:,.0f}" for p in phases],
        "first token, p50": [f"{p.first_token_p50_ms:,.0f} ms" for p in phases],
        "longest urgent queueing": [_longest(p.urgent_queue_ms) for p in phases],
        "longest urgent answer": [_longest(p.urgent_answer_ms) for p in phases],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _longest(times_ms: list[float]) -> str:
    return f"{max(times_ms):,.0f} ms of {len(times_ms)}" if times_ms else ""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=positive, default=300)
    parser.add_argument("--slots", type=positive, default=4, help="of each worker")
    parser.add_argument("--step-ms", type=float, default=20.0, help="of the null engine")
    parser.add_argument("--rate", type=float, default=1000.0, help="requests offered per second")
    parser.add_argument("--seconds", type=float, default=10.0, help="that they are offered; 0: no load")
    parser.add_argument("--burst", type=int, default=5000, help="requests at once; 0: no burst")
    parser.add_argument("--prompt-tokens", type=positive, default=16)
    parser.add_argument("--max-tokens", type=positive, default=10)
    parser.add_argument(
        "--unannounced", action="store_true", help="urgent requests say their priority in the body alone"
    )
    parser.add_argument("--quiet", action="store_true", help="services log warnings alone")
    add_json(parser)
    return parser.parse_args(arguments)


def main() -> int:
    """Run from the command line; returns the exit code."""
    options = parse()
    console = Console()
    phases = uvloop.run(measure(options, console))
    console.print(show(phases))
    for phase in phases:
        for why, count in phase.refused.items():
            console.print(f"{phase.name}: {count} not served: {why}", markup=False)
    write_json(options, {"phases": [asdict(phase) for phase in phases]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
