"""Measure the table of docs/performance.md here: ours and the other in turn, the median of their ratios.

    make bench                                     all of it (about half an hour on two cores)
    make bench ARGS="--quick"                      one pair of everything, to see that it works
    make bench ARGS="--only shared_c8 rss_mb_gateway"
    make bench ARGS="--only shared_c8 --pairs 9"   where the machine's speed changes from minute to minute

Figures go to benchmarks/results/latest.json, a key per row; those of a trial (--quick) to trial.json. Exit
code 1 if a row could not be measured; a missed target is shown, and is no error.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.load.command_line import make_parser, positive
from benchmarks.rows import results
from benchmarks.rows.lab import FULL, QUICK, Lab, LabError, Plan, need_bench_model
from benchmarks.rows.peers import ROOT, PeerError
from benchmarks.rows.scenarios import SCENARIOS, Scenario, Setup
from benchmarks.rows.show import rows_table
from benchmarks.rows.table import ROWS, Row
from inferflux.cli.reach.errors import CommandError
from inferflux.cli.stack import StartError

_BUSY_LOAD = 0.5


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__, prog="make bench")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--quick", action="store_true", help="one pair and few requests: a trial, no result")
    parser.add_argument(
        "--pairs", type=positive, metavar="N", help="run ours and the other in turn so often (default: 3)"
    )
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> Plan:
    """How much is measured."""
    plan = QUICK if options.quick else FULL
    return replace(plan, pairs=options.pairs) if options.pairs else plan


def results_file(options: argparse.Namespace) -> Path:
    """Where the figures go: those of a trial are none to cite."""
    return results.TRIAL if options.quick else results.LATEST


def chosen(only: list[str] | None, among: Sequence[Scenario[Setup]]) -> list[Scenario[Setup]]:
    """The scenarios that give these rows; all when none is named."""
    return [one for one in among if only is None or set(one.keys) & set(only)]


async def measure(
    setup: Setup,
    scenarios: Sequence[Scenario[Setup]],
    out: Path,
    console: Console,
    table: Mapping[str, Row] = ROWS,
) -> bool:
    """Measure and store; False if something could not be measured. SIGTERM cancels it."""
    if (task := asyncio.current_task()) is not None:
        # As Ctrl-C, which a benchmark in the background of a shell does not get.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    measured_on = results.environment(ROOT)
    is_whole = True
    for scenario in scenarios:
        console.rule(", ".join(scenario.keys), style="dim")
        try:
            async for reading in scenario.measure(setup):
                results.store(reading, measured_on=measured_on, path=out, table=table)
                console.print(f"  {reading.row.title}: [bold]{reading.value:.3f}[/] {reading.row.unit}")
        except (LabError, PeerError, CommandError) as error:
            is_whole = False
            console.print(str(error), style="red", markup=False)
            if isinstance(error, StartError):
                console.print("\n".join(error.log_tail), style="dim", markup=False)
    return is_whole


def warn_if_busy(console: Console) -> None:
    """Say it when something else runs on this machine."""
    busy = os.getloadavg()[0]
    if busy > _BUSY_LOAD:
        console.print(f"This machine is busy (load {busy:.1f}): the figures will be off.", style="yellow")


async def run(options: argparse.Namespace, console: Console) -> bool:
    """Everything; returns whether all was measured."""
    warn_if_busy(console)
    need_bench_model()
    lab = Lab(plan_of(options), console)
    return await measure(lab, chosen(options.only, SCENARIOS), results_file(options), console)


def conclude(
    measuring: Coroutine[Any, Any, bool], console: Console, out: Path, shown: Path, *failures: type[Exception]
) -> int:
    """Measure to the end and show what is in the file; returns the exit code.

    Args:
        out: the file that the figures go to. shown: what it is called in the terminal.
        failures: what ends a benchmark with a line that says why.
    """
    try:
        is_whole = asyncio.run(measuring)
    except failures as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:
        return 143
    console.print(rows_table(results.load(out)))
    console.print(f"figures: {shown}", style="dim")
    return 0 if is_whole else 1


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options, console = parse(arguments), Console()
    out = results_file(options)
    return conclude(run(options, console), console, out, out.relative_to(ROOT), LabError)


if __name__ == "__main__":
    sys.exit(main())
