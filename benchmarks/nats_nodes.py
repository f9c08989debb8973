"""What clients see when nats-servers of a cluster of three die or stand still under load.

    python -m benchmarks.nats_nodes [--faults killed stopped two] [--json FILE]

Eight streams run, and three clients ask for short answers without a pause. One server after the other is
killed (SIGKILL, started again 8 s later), and stopped (SIGSTOP) for 10 s; then two at once are stopped for
30 s. Prints, for each: failed requests, tokens lost or doubled, the longest gap of a stream, and the longest
wait of a short request for its first token. Short requests that end UNAVAILABLE are counted as refused, not
as failed: their clients are told to come again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.command_line import add_json, make_parser, write_json
from benchmarks.scheduling.figures import Window, longest_gap_s, lost_or_doubled
from benchmarks.scheduling.ground import Ground, Load, ground, until
from benchmarks.scheduling.streams import Request, Stream, ends
from inferflux.cli.stack import Stack, StackOptions

_SERVERS = 3
_STREAMS = 8
_LONG_TOKENS = 1200
_CLIENTS = 3
_SHORT_PROMPT, _SHORT_TOKENS = 32, 4
_BEFORE_S = 1.0
_DOWN_S, _STOPPED_S, _TWO_STOPPED_S = 8.0, 10.0, 30.0
_AFTER_S = 3.0
_LIMIT_S = 240.0
_FAULTS = ("killed", "stopped", "two")


@dataclass(frozen=True, slots=True)
class Seen:
    """What clients saw of one fault.

    Attributes:
        refused: short requests that ended UNAVAILABLE.
        failed: errors of streams, and of short requests other than that.
        longest_wait_s: of a short request for its first token.
    """

    fault: str
    streams: int
    requests: int
    failed: list[str]
    refused: int
    lost_or_doubled: int
    longest_gap_s: float
    longest_wait_s: float


def _signal(stack: Stack, names: Sequence[str], number: signal.Signals) -> None:
    for name in names:
        stack.processes[name].signal(number)


async def _inflict(on: Ground, fault: str, names: Sequence[str]) -> None:
    if fault == "killed":
        for name in names:
            await on.stack.kill(name)
        await asyncio.sleep(_DOWN_S)
        for name in names:
            await on.stack.restart(name)
        return
    _signal(on.stack, names, signal.SIGSTOP)
    try:
        await asyncio.sleep(_STOPPED_S if len(names) == 1 else _TWO_STOPPED_S)
    finally:
        _signal(on.stack, names, signal.SIGCONT)


async def _watch(on: Ground, fault: str, names: Sequence[str]) -> Seen:
    def short(_: int) -> Request:
        return on.request(prompt_tokens=_SHORT_PROMPT, max_tokens=_SHORT_TOKENS)

    def long(_: int) -> Request:
        return on.request(max_tokens=_LONG_TOKENS)

    async with Load(on.caller, short, _CLIENTS) as asking, Load(on.caller, long, _STREAMS) as running:
        await until(lambda: len([s for s in running.streams if s.tokens]) >= _STREAMS)
        await asyncio.sleep(_BEFORE_S)
        began_s = time.perf_counter()
        await _inflict(on, fault, names)
        await asyncio.sleep(_AFTER_S)
        await asking.finish(_LIMIT_S)
        await running.finish(_LIMIT_S)
    return _seen(f"{fault}: {', '.join(names)}", running.streams, asking.streams, began_s)


def _seen(fault: str, running: list[Stream], asked: list[Stream], began_s: float) -> Seen:
    refused = [s for s in asked if s.error.startswith("UNAVAILABLE")]
    failed = [s.error for s in (*running, *asked) if s.has_failed and s not in refused]
    waits = [s.ttft_s for s in asked if s.arrivals_s]
    return Seen(
        fault=fault,
        streams=len(running),
        requests=len(asked),
        failed=failed,
        refused=len(refused),
        lost_or_doubled=lost_or_doubled([*running, *asked]),
        longest_gap_s=longest_gap_s(running, Window(began_s, began_s + 1e9)),
        longest_wait_s=max(waits, default=0.0),
    )


async def _measure(faults: Sequence[str], console: Console) -> list[Seen]:
    options = StackOptions(nats_servers=_SERVERS, workers=2, schedulers=2, slots=8, threads=1, restarts=False)
    servers = [f"nats-{index}" for index in range(_SERVERS)]
    cases = [(fault, [name]) for fault in faults if fault != "two" for name in servers]
    cases += [("stopped", servers[:2])] if "two" in faults else []
    found = []
    async with ground(options) as on:
        await ends([on.caller.send(on.request())], _LIMIT_S)
        for fault, names in cases:
            found.append(await _watch(on, fault, names))
            console.print(f"  {found[-1]}", style="dim", markup=False, highlight=False, soft_wrap=True)
            await on.until_idle()
    return found


def _table(found: Sequence[Seen]) -> Table:
    table = Table(
        "fault", "requests", "failed", "refused", "lost or doubled", "longest gap s", "longest wait s"
    )
    for one in found:
        table.add_row(
            one.fault,
            str(one.streams + one.requests),
            str(len(one.failed)),
            str(one.refused),
            str(one.lost_or_doubled),
            f"{one.longest_gap_s:.2f}",
            f"{one.longest_wait_s:.2f}",
        )
    return table


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--faults", nargs="+", choices=_FAULTS, default=_FAULTS)
    add_json(parser)
    options: Any = parser.parse_args(arguments)
    console = Console()
    found = uvloop.run(_measure(options.faults, console))
    console.print(_table(found))
    write_json(options, [asdict(one) for one in found])


if __name__ == "__main__":
    main()
