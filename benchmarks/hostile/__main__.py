"""Attack a gateway as strangers can, while a client streams; then send it 1,000 requests at once.

    make hostile                                        all of it, about seven minutes
    make hostile ARGS="--only slow headers --rounds 5"

Each row: the longest gap between two chunks of the client's stream in calm windows and in windows of the
same length under attack, in turn, and by how much the gateway's memory (RSS) grew at most since the first of
them. A gap is the median of its windows, as any other process on the machine can lengthen a single one.

Strangers have machines of their own. Here they share the cores, so they run at the lowest priority there is:
in a scheduling group of their own, as niceness counts only within a group. The first row is a control. Its
strangers send nothing and only compute, as many as there are cores: what it shows is the machine's. The
engine has one thread, as two would wait for each other whenever something else has a core. How many cores
the gateway took under attack tells how much of an attack came through.

Exit code 1 if a gap grew by more than 100 ms, memory by more than 64 MB, a request of the client's failed, or
one of the burst was refused. A gap is not judged where the calm windows' is above 100 ms already, as the
machine is busy: exit code 3 if nothing else was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum

import psutil
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from benchmarks.load.command_line import make_parser
from inferflux.cli.reach.errors import CommandError
from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.contract.address import split

from .burst import Burst, burst
from .client import WatchingClient
from .strangers import ATTACKS, CONTROL

MAX_GAP_GROWTH_S = 0.1
MAX_CALM_GAP_S = 0.1
MAX_MEMORY_GROWTH_BYTES = 64 << 20
_SAMPLE_EVERY_S = 0.02
_START_LIMIT_S = 60.0
_BUILD_UP_S = 1.0
# What an attack leaves behind (open connections, calls that end) belongs to no calm window.
_SETTLE_S = 1.0


class Verdict(IntEnum):
    """The result of a row or a run: the larger the worse."""

    MET = 0
    NOT_JUDGED = 1
    MISSED = 2


_EXIT_CODES = {Verdict.MET: 0, Verdict.MISSED: 1, Verdict.NOT_JUDGED: 3}


@dataclass(frozen=True, slots=True)
class Windows:
    """In which an attack is looked at.

    Attributes:
        seconds: the length of each.
        rounds: one calm and one attacked window each.
    """

    seconds: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one attack.

    Attributes:
        calm_s, attacked_s: the median of the windows' longest gaps.
        memory_bytes: the most the gateway had over its memory before.
        busy: cores that the gateway took under attack, all it does for the client included.
    """

    what: str
    calm_s: float
    attacked_s: float
    memory_bytes: int
    failures: tuple[str, ...]
    busy: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """The gap says nothing on a machine that is busy without the attack."""
        if self.failures or self.memory_bytes > MAX_MEMORY_GROWTH_BYTES:
            return Verdict.MISSED
        if self.calm_s > MAX_CALM_GAP_S:
            return Verdict.NOT_JUDGED
        return Verdict.MISSED if self.attacked_s - self.calm_s > MAX_GAP_GROWTH_S else Verdict.MET

    def __str__(self) -> str:
        if self.verdict is Verdict.NOT_JUDGED:
            return "[yellow]not judged: the machine is busy[/yellow]"
        failure = f": {escape(self.failures[0])}" if self.failures else ""
        return "ok" if self.verdict is Verdict.MET else f"[red]missed[/red]{failure}"


class Watched:
    """A process: its time of cores, and the most memory it had since the last `restart`."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.restart()

    def restart(self) -> None:
        self._before = self._most = self._process.memory_info().rss

    @property
    def growth(self) -> int:
        return self._most - self._before

    @property
    def cpu_s(self) -> float:
        """Seconds of a core, since the process began."""
        times = self._process.cpu_times()
        return times.user + times.system

    async def watch(self) -> None:
        with suppress(psutil.NoSuchProcess):
            while True:
                self._most = max(self._most, self._process.memory_info().rss)
                await asyncio.sleep(_SAMPLE_EVERY_S)


@asynccontextmanager
async def strangers(name: str, stack: Stack) -> AsyncIterator[None]:
    """The attack runs inside."""
    _, port = split(stack.endpoint, "endpoint")
    _, metrics = split(stack.metrics["gateway"], "metrics")
    async with AsyncExitStack() as processes:
        for _ in range((os.cpu_count() or 1) if name == CONTROL else 1):
            await processes.enter_async_context(_stranger(name, str(port), str(metrics)))
        yield


@asynccontextmanager
async def _stranger(*arguments: str) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.hostile.strangers",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        # At its priority it may be seconds before it sends.
        async with asyncio.timeout(_START_LIMIT_S):
            if process.stdout is None or not await process.stdout.readline():
                raise CommandError(f"the attack {arguments[0]} ended before it began")
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def measure(name: str, stack: Stack, client: WatchingClient, gateway: Watched, windows: Windows) -> Row:
    """One attack: calm windows and attacked ones in turn."""
    what, _ = ATTACKS[name]
    calm_s: list[float] = []
    attacked_s: list[float] = []
    busy: list[float] = []
    client.failures.clear()
    gateway.restart()
    for _ in range(windows.rounds):
        calm_s.append(await client.longest_gap_s(windows.seconds))
        async with strangers(name, stack):
            await asyncio.sleep(_BUILD_UP_S)
            before_s = gateway.cpu_s
            attacked_s.append(await client.longest_gap_s(windows.seconds))
            busy.append((gateway.cpu_s - before_s) / windows.seconds)
        await asyncio.sleep(_SETTLE_S)
    return Row(
        what,
        statistics.median(calm_s),
        statistics.median(attacked_s),
        gateway.growth,
        tuple(client.failures),
        statistics.median(busy),
    )


def table(rows: list[Row]) -> Table:
    made = Table(
        "strangers send", title="The longest gap of another client's stream, and the gateway's memory"
    )
    for title in ("calm", "attacked", "gateway", "memory", ""):
        made.add_column(title, justify="right")
    for row in rows:
        made.add_row(
            row.what,
            f"{row.calm_s * 1000:.0f} ms",
            f"{row.attacked_s * 1000:.0f} ms",
            f"{row.busy:.2f} cores",
            f"+{row.memory_bytes / 1e6:.0f} MB",
            str(row),
        )
    return made


async def run(options: argparse.Namespace, console: Console) -> Verdict:
    """Everything; returns the worst verdict."""
    names = [CONTROL, *(name for name in options.only or ATTACKS if name != CONTROL)]
    windows = Windows(options.seconds, options.rounds)
    rows: list[Row] = []
    async with Stack(StackOptions(restarts=False, threads=1)) as stack:
        pid = stack.processes["gateway"].pid
        gateway = Watched(pid)
        watching = asyncio.create_task(gateway.watch())
        with Progress(console=console, transient=True, refresh_per_second=2) as progress:
            bar = progress.add_task("attacks", total=len(names))
            async with WatchingClient(stack) as client:
                await client.longest_gap_s(2.0)
                for name in names:
                    progress.update(bar, description=name)
                    rows.append(await measure(name, stack, client, gateway, windows))
                    progress.advance(bar)
        console.print(table(rows))
        sent = await burst(stack, options.burst, options.deadline) if options.burst else None
        watching.cancel()
        is_same = stack.processes["gateway"].pid == pid and psutil.pid_exists(pid)
    if sent is not None:
        show(sent, console)
    if not is_same or (sent is not None and sent.n_refused):
        return Verdict.MISSED
    return max(row.verdict for row in rows)


def show(sent: Burst, console: Console) -> None:
    total = sum(sent.outcomes.values())
    console.print(
        f"{total} requests at once: {sent.n_refused} refused, {sent.seconds:.1f} s until the last one"
    )
    for outcome, count in sent.outcomes.items():
        if outcome != "ok":
            console.print(f"  {count} times {outcome}", markup=False)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__, prog="make hostile")
    parser.add_argument("--only", nargs="+", metavar="ATTACK", choices=list(ATTACKS), help=", ".join(ATTACKS))
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each window")
    parser.add_argument("--rounds", type=int, default=3, help="one calm and one attacked window each")
    parser.add_argument("--burst", type=int, default=1000, help="requests at once in the end; 0: none")
    parser.add_argument("--deadline", type=float, help="of the burst's requests, in seconds; without it none")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options, console = parse(arguments), Console()
    try:
        return _EXIT_CODES[asyncio.run(run(options, console))]
    except KeyboardInterrupt:
        return 130
    except (CommandError, OSError) as error:
        console.print(f"{error}", style="red", markup=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
