"""Attack a gateway as strangers can, while a client streams; then send it 1,000 requests at once.

    make hostile                                        all of it, about five minutes
    make hostile ARGS="--only slow headers --seconds 5"

Each row: the longest gap between two chunks of the client's stream in a calm window and in one of the same
length under attack, and by how much the gateway's memory (RSS) grew at most. Attackers run on this machine
at low priority. Exit code 1 if a gap grew by more than 100 ms, memory by more than 64 MB, a request of the
client's failed, or one of the burst was refused. A gap is not judged where the calm window's is above 100 ms
already, as the machine is busy: exit code 3 if nothing else was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum

import psutil
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from inferflux.cli.errors import CommandError
from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.address import split

from .burst import Burst, burst
from .client import WatchingClient
from .strangers import ATTACKS

MAX_GAP_GROWTH_S = 0.1
MAX_CALM_GAP_S = 0.1
MAX_MEMORY_GROWTH_BYTES = 64 << 20
_SAMPLE_EVERY_S = 0.02
# An attack's memory is looked at for longer than it lasts: what it left behind counts as well.
_BUILD_UP_S = 1.0


class Verdict(IntEnum):
    """What a row or a run came to: the larger the worse."""

    MET = 0
    NOT_JUDGED = 1
    MISSED = 2


_EXIT_CODES = {Verdict.MET: 0, Verdict.MISSED: 1, Verdict.NOT_JUDGED: 3}


@dataclass(frozen=True, slots=True)
class Row:
    """What one attack did."""

    what: str
    calm_s: float
    attacked_s: float
    memory_bytes: int
    failures: tuple[str, ...]

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


class Memory:
    """The most memory a process had since the last `restart`."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.restart()

    def restart(self) -> None:
        self._before = self._most = self._process.memory_info().rss

    @property
    def growth(self) -> int:
        return self._most - self._before

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
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.hostile.strangers", name, str(port), str(metrics)
    )
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def measure(name: str, stack: Stack, client: WatchingClient, memory: Memory, seconds: float) -> Row:
    """One attack, after a calm window."""
    what, _ = ATTACKS[name]
    calm_s = await client.longest_gap_s(seconds)
    client.failures.clear()
    memory.restart()
    async with strangers(name, stack):
        await asyncio.sleep(_BUILD_UP_S)
        attacked_s = await client.longest_gap_s(seconds)
    return Row(what, calm_s, attacked_s, memory.growth, tuple(client.failures))


def table(rows: list[Row]) -> Table:
    made = Table(
        "strangers send", title="The longest gap of another client's stream, and the gateway's memory"
    )
    for title in ("calm", "attacked", "÷", "memory", ""):
        made.add_column(title, justify="right")
    for row in rows:
        made.add_row(
            row.what,
            f"{row.calm_s * 1000:.0f} ms",
            f"{row.attacked_s * 1000:.0f} ms",
            f"{row.attacked_s / row.calm_s:.1f}" if row.calm_s else "",
            f"+{row.memory_bytes / 1e6:.0f} MB",
            str(row),
        )
    return made


async def run(options: argparse.Namespace, console: Console) -> Verdict:
    """Everything; returns the worst verdict."""
    names = options.only or list(ATTACKS)
    rows: list[Row] = []
    async with Stack(StackOptions(restarts=False)) as stack:
        pid = stack.processes["gateway"].pid
        memory = Memory(pid)
        watching = asyncio.create_task(memory.watch())
        with Progress(console=console, transient=True, refresh_per_second=2) as progress:
            bar = progress.add_task("attacks", total=len(names))
            async with WatchingClient(stack) as client:
                await client.longest_gap_s(2.0)
                for name in names:
                    progress.update(bar, description=name)
                    rows.append(await measure(name, stack, client, memory, options.seconds))
                    progress.advance(bar)
        console.print(table(rows))
        sent = await burst(stack, options.burst) if options.burst else None
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
    parser = argparse.ArgumentParser(
        prog="make hostile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="ATTACK", choices=list(ATTACKS), help=", ".join(ATTACKS))
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each window")
    parser.add_argument("--burst", type=int, default=1000, help="requests at once in the end; 0: none")
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
