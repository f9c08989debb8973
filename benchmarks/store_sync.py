"""What it costs to have JetStream sync its writes sooner: nats-server's `sync_interval`.

    python benchmarks/store_sync.py --dir /var/tmp [--servers 3]

Each value serves in turn, round after round, with its store below `--dir`, which has to be on a real disk.
Three figures: one enqueued job at a time, bursts of 1,000 jobs at once, and the time to first token of a
whole stack at idle. With `--servers 3` they are a cluster, all on this disk, and keep each job three times.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.command_line import make_parser
from benchmarks.stats import percentile
from inferflux.cli.reach.client import Client
from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.contract import subjects
from inferflux.common.servers.servers import ServerProcess, free_port, nats_command, nats_members
from inferflux.v1 import generation_pb2

_VALUES = ("2m", "1s", "100ms", "10ms", "always")
_BURST = 1000
_SINGLES = 200
_PAUSE_S = 0.01
_WARM_UP = 10
_JOB = b"x" * 600


async def _enqueue(bus: Bus) -> float:
    """Put one job into the queue; seconds until it was acknowledged."""
    began = time.perf_counter()
    await bus.enqueue(subjects.jobs("bench"), _JOB, msg_id=secrets.token_hex(8))
    return time.perf_counter() - began


def servers_of(value: str, directory: Path, count: int) -> list[ServerProcess]:
    """Servers that are not started yet: one alone, or a cluster."""
    names = [f"nats-{index}" for index in range(count)]
    members = nats_members(names, secrets.token_hex(8)) if count > 1 else [None]
    servers = []
    for name, member in zip(names, members, strict=True):
        port = free_port()
        command = nats_command(port, directory / name, sync_interval=value, member=member)
        servers.append(ServerProcess(command, port=port, name="nats-server"))
    return servers


async def _enqueues(value: str, directory: Path, count: int) -> tuple[list[float], float]:
    """Seconds of single jobs, and of a burst."""
    servers = servers_of(value, directory, count)
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait_ready()
        bus = await Bus.connect(servers[0].url, name="benchmark")
        await bus.ensure_streams(StreamLimits(queue_limit=10 * _BURST))
        await _enqueue(bus)
        singles = []
        for _ in range(_SINGLES):
            singles.append(await _enqueue(bus))
            await asyncio.sleep(_PAUSE_S)
        began = time.perf_counter()
        await asyncio.gather(*(_enqueue(bus) for _ in range(_BURST)))
        burst_s = time.perf_counter() - began
        await bus.close()
    finally:
        for server in servers:
            server.stop()
    return singles, burst_s


async def _first_tokens(value: str, directory: Path, requests: int, count: int) -> list[float]:
    """Seconds to the first token of one request at a time."""
    options = StackOptions(state_dir=directory, nats_servers=count, nats_sync_interval=value)
    times: list[float] = []
    async with Stack(options) as stack, Client(stack.target) as client:
        params = generation_pb2.GenerationParams(max_tokens=1)
        for index in range(_WARM_UP + requests):
            began = time.perf_counter()
            first_s = 0.0
            async for chunk in client.generate(f"Number {index}:", model=stack.model_name, params=params):
                if chunk.token_ids and not first_s:
                    first_s = time.perf_counter() - began
            if index >= _WARM_UP:
                times.append(first_s)
            await asyncio.sleep(_PAUSE_S)
    return times


def _percentiles(times_s: list[float]) -> tuple[str, str]:
    """p50 and p95."""
    ordered = sorted(times_s)
    return (
        f"{percentile(ordered, 0.5) * 1e3:.2f} ms" if ordered else "",
        f"{percentile(ordered, 0.95) * 1e3:.2f} ms" if ordered else "",
    )


async def _measure(directory: Path, values: list[str], rounds: int, requests: int, count: int) -> Table:
    singles: dict[str, list[float]] = defaultdict(list)
    bursts: dict[str, list[float]] = defaultdict(list)
    firsts: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for value in values:
            with tempfile.TemporaryDirectory(dir=directory) as own:
                single, burst_s = await _enqueues(value, Path(own) / "queue", count)
                singles[value] += single
                bursts[value].append(burst_s)
                if requests:
                    firsts[value] += await _first_tokens(value, Path(own) / "stack", requests, count)
    table = Table(
        "sync_interval", "one job: p50", "p95", f"{_BURST} jobs at once: median", "first token: p50", "p95"
    )
    for value in values:
        table.add_row(
            value,
            *_percentiles(singles[value]),
            f"{statistics.median(bursts[value]) * 1e3:.0f} ms",
            *_percentiles(firsts[value]),
        )
    return table


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="on the disk to measure")  # noqa: S108
    parser.add_argument("--values", nargs="+", default=list(_VALUES), help="as nats-server takes them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100, help="a round and value; 0: no stacks")
    parser.add_argument("--servers", type=int, choices=(1, 3), default=1, help="of nats-server")
    asked = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        table = runner.run(_measure(asked.dir, asked.values, asked.rounds, asked.requests, asked.servers))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
