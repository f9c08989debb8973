"""Measure scheduling on the real stack: urgency, fairness, what a kill costs, how fast a cancel frees.

    make bench-scheduling                                  all of it, about half an hour on two cores
    make bench-scheduling ARGS="--quick"                   one of everything, to see that it works
    make bench-scheduling ARGS="--only urgent_ttft_ratio --json urgent.json"

Figures go to benchmarks/results/scheduling.json, a key per row; those of a trial (--quick) to
scheduling-trial.json. Exit code 1 if a row could not be measured; a missed target is shown, and is no error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.load.command_line import make_parser
from benchmarks.rows import results
from benchmarks.rows.lab import LabError, need_bench_model
from benchmarks.rows.run import chosen, conclude, measure, warn_if_busy

from .ground import FULL, QUICK, Bench
from .rows import ROWS
from .scenarios import SCENARIOS


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__, prog="make bench-scheduling")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--quick", action="store_true", help="one of everything: a trial, no result")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there instead")
    return parser.parse_args(arguments)


def results_file(options: argparse.Namespace) -> Path:
    """Where the figures go: those of a trial are none to cite."""
    if options.json is not None:
        return Path(options.json)
    return results.SCHEDULING.with_name("scheduling-trial.json") if options.quick else results.SCHEDULING


async def run(options: argparse.Namespace, console: Console) -> bool:
    """Everything; returns whether all was measured."""
    warn_if_busy(console)
    need_bench_model()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
        bench = Bench(QUICK if options.quick else FULL, console, progress)
        scenarios = chosen(options.only, SCENARIOS)
        return await measure(bench, scenarios, results_file(options), console, ROWS)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options, console = parse(arguments), Console()
    out = results_file(options)
    return conclude(run(options, console), console, out, out, LabError, OSError)


if __name__ == "__main__":
    sys.exit(main())
