"""What it costs a cluster of three nats-servers to keep one copy or three of the token stream.

    python -m benchmarks.token_copies [--rounds 2] [--seconds 6]

A client at each server publishes chunks of 200 bytes, and one reads them. One copy and three take turns.
Prints CPU time of all servers per chunk, and the time from publishing to receiving.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.command_line import make_parser, positive
from benchmarks.stats import percentile
from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.contract import subjects
from inferflux.common.servers.servers import ServerProcess, free_port, nats_command, nats_members

_SERVERS = 3
_COPIES = (1, 3)
_BYTES = 200
_AT_ONCE, _PAUSE_S = 20, 0.01
_SETTLE_S = 1.5
_START_S = 30.0


def _cluster(directory: Path) -> list[ServerProcess]:
    servers = []
    for member in nats_members([f"nats-{index}" for index in range(_SERVERS)], "between-servers"):
        port = free_port()
        command = nats_command(port, directory / member.name, member=member)
        servers.append(ServerProcess(command, port=port, name="nats-server"))
    return servers


async def _measure(
    servers: list[ServerProcess], buses: list[Bus], copies: int, seconds: float
) -> list[float]:
    """CPU microseconds per chunk; milliseconds from publishing to receiving, p50 and p99."""
    await buses[0].ensure_streams(StreamLimits(replicas=_SERVERS, tokens_replicas=copies))
    await asyncio.sleep(_SETTLE_S)
    waits: list[float] = []
    stream = await buses[1].open_stream(subjects.tokens("bench", "all"))
    await buses[1].flush()

    async def read() -> None:
        while True:
            sent = float((await stream.next(seconds + 60))[:20])
            waits.append(time.perf_counter() - sent)

    reading = asyncio.create_task(read())
    before, began, n = _cpu_s(servers), time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(_AT_ONCE):
            chunk = b"%020.9f" % time.perf_counter()
            await buses[n % _SERVERS].publish(subjects.tokens("bench", "all"), chunk.ljust(_BYTES))
            n += 1
        await asyncio.sleep(_PAUSE_S)
    spent = _cpu_s(servers) - before
    reading.cancel()
    stream.close()
    waits.sort()
    return [1e6 * spent / n, 1000 * percentile(waits, 0.5), 1000 * percentile(waits, 0.99)]


def _cpu_s(servers: list[ServerProcess]) -> float:
    return sum(sum(psutil.Process(server.pid).cpu_times()[:2]) for server in servers)


async def _run(options: Any, console: Console) -> None:
    with tempfile.TemporaryDirectory() as directory:
        servers = _cluster(Path(directory))
        try:
            for server in servers:
                server.start()
            for server in servers:
                server.wait_ready(_START_S)
            buses = [await Bus.connect(server.url, name="benchmark") for server in servers]
            table = Table("copies", "CPU µs per chunk", "received after ms, p50", "p99")
            for _ in range(options.rounds):
                for copies in _COPIES:
                    figures = await _measure(servers, buses, copies, options.seconds)
                    table.add_row(str(copies), *(f"{figure:.2f}" for figure in figures))
            console.print(table)
            for bus in buses:
                await bus.close()
        finally:
            for server in servers:
                server.kill()


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=positive, default=2)
    parser.add_argument("--seconds", type=float, default=6.0)
    uvloop.run(_run(parser.parse_args(arguments), Console()))


if __name__ == "__main__":
    main()
