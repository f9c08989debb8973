"""What the work queue loses in a power cut of all its nats-servers.

    python -m benchmarks.power_cut [--servers 3] [--sync 100ms] [--jobs 300] [--rounds 3] [--dir /var/tmp]

Jobs are queued one after the other, 10 ms apart. Then all servers are killed, and what they had not synced
is dropped from their files (`benchmarks.unsynced`, which needs strace). They are started again; one that does
not start is started without its files, as an operator would. Prints how many acknowledged jobs are gone, how
long before the cut the oldest of them was acknowledged, how many servers did not start, and after how long a
job is queued again. strace makes all of it slow: 20 to 50 ms a job.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.command_line import make_parser, positive
from benchmarks.lab import LabError
from benchmarks.store_sync import servers_of
from benchmarks.unsynced import PowerCut
from inferflux.common.bus import Bus, StreamLimits
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, Unavailable
from inferflux.common.servers.servers import ServerProcess

_APART_S = 0.01
_PATIENCE_S = 120.0
_LAST = b"last"


@dataclass(slots=True)
class Cut:
    """What one power cut took."""

    lost: int
    oldest_s: float
    not_started: int
    again_s: float


async def _cut(options: Any, directory: Path) -> Cut:
    servers = servers_of(options.sync, directory, options.servers)
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait_ready()
        bus = await Bus.connect(",".join(server.url for server in servers), name="benchmark")
        await bus.ensure_streams(StreamLimits())
        acknowledged: list[float] = []
        with PowerCut([server.pid for server in servers], directory) as power:
            for number in range(options.jobs):
                await bus.enqueue(subjects.jobs("bench"), b"%d" % number, msg_id=f"{number}")
                acknowledged.append(time.perf_counter())
                await asyncio.sleep(_APART_S)
            cut_s = time.perf_counter()
            power.happen()
        began_s = time.perf_counter()
        not_started = sum([await _start_again(server, directory) for server in servers])
        await _enqueue_last(bus)
        again_s = time.perf_counter() - began_s
        there = await _take_all(bus)
        await bus.close()
    finally:
        for server in servers:
            server.kill()
    lost = [at for number, at in enumerate(acknowledged) if b"%d" % number not in there]
    return Cut(len(lost), cut_s - min(lost, default=cut_s), not_started, again_s)


async def _start_again(server: ServerProcess, directory: Path) -> bool:
    """Start a server; whether it had to be without its files."""
    server.kill()
    server.start()
    try:
        await asyncio.to_thread(server.wait_ready, 20.0)
    except Unavailable:
        server.kill()
        store = Path(server.command[-1]).parent / "jetstream"
        store.rename(directory / secrets.token_hex(4))
        server.start()
        return True
    return False


async def _enqueue_last(bus: Bus) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                await bus.ensure_streams(StreamLimits())
                await bus.enqueue(subjects.jobs("bench"), _LAST, msg_id="last")
            except InferFluxError:
                await asyncio.sleep(0.2)
                continue
            return


async def _take_all(bus: Bus) -> set[bytes]:
    """All jobs, up to the last."""
    there: set[bytes] = set()
    async with asyncio.timeout(_PATIENCE_S):
        while _LAST not in there:
            try:
                consumer = await bus.consume_jobs(max_outstanding=10_000)
            except (Unavailable, DeadlineExceeded):
                await asyncio.sleep(0.5)
                continue
            async for job in consumer:
                there.add(job.data)
                if job.data == _LAST:
                    break
            await consumer.close()
    return there


async def _measure(options: Any, console: Console) -> None:
    if why := PowerCut.why_not():
        raise LabError(f"no power cut can be had: {why}")
    table = Table("jobs", "lost", "oldest, s before the cut", "did not start", "queued again after s")
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.dir) as own:
            directory = Path(own) / "store"
            directory.mkdir()
            cut = await _cut(options, directory)
        cells = (cut.lost, f"{cut.oldest_s:.2f}", cut.not_started, f"{cut.again_s:.1f}")
        table.add_row(str(options.jobs), *map(str, cells))
    console.print(table)


def main() -> None:
    """Measure, and print a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--servers", type=int, choices=(1, 3), default=3, help="of nats-server")
    parser.add_argument("--sync", default="100ms", help="sync_interval, as nats-server takes it")
    parser.add_argument("--jobs", type=positive, default=300)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="on the disk to try")  # noqa: S108
    uvloop.run(_measure(parser.parse_args(), Console()))


if __name__ == "__main__":
    main()
