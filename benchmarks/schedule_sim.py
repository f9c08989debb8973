"""Simulate the scheduler: its real core against modelled workers, in simulated time.

    make sim                                    everything, some minutes
    make sim ARGS="--quick"                     seconds: does it work at all
    make sim ARGS="--policy fair --arrivals bursty --seed 7 --json sim.json"

Told are waiting times per class and policy, Jain's fairness index, whether aging keeps its bound, what
preemption and timeslices give and take, what hints of cached prompts save, and what decisions cost as the
queue grows. The same seed gives the same figures, but for those of cost: these are processor time of this
machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.load.command_line import add_json, make_parser, write_json
from benchmarks.report import ReportError, insert
from benchmarks.sim import studies
from benchmarks.sim.findings import Findings, Grid
from benchmarks.sim.studies import MODES, POLICIES, QUICK, Scope
from benchmarks.sim.traffic import Tenant

BEGIN = "<!-- results: written by benchmarks/schedule_sim.py -->"
END = "<!-- end of results -->"

_WEIGHTED = (Tenant("heavy", 10.0, weight=2.0), Tenant("light", 1.0))

Step = Callable[[str], None]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__, prog="make sim")
    parser.add_argument("--policy", choices=["all", *POLICIES], default="all")
    parser.add_argument("--arrivals", choices=["poisson", "bursty"], default="poisson")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=_within(1, 10_000), help="of the part about cost (default: 1000)")
    parser.add_argument(
        "--queued", type=_within(100, 1_000_000), help="of the part about cost (default: 100000)"
    )
    parser.add_argument("--quick", action="store_true", help="a small trial; its figures are none to cite")
    add_json(parser, "every figure")
    parser.add_argument(
        "--write", type=Path, metavar="DOCUMENT", help="put the tables into it, and pictures beside it"
    )
    return parser.parse_args(arguments)


def _within(least: int, most: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{number} is not within {least} and {most}")
        return number

    return count


def scope_of(options: argparse.Namespace) -> Scope:
    """Return the scope that the command line asks for."""
    scope = QUICK if options.quick else Scope()
    queued = options.queued or scope.queued
    lengths = tuple(length for length in scope.lengths if length < queued)[-4:]
    return replace(
        scope,
        policies=POLICIES if options.policy == "all" else (options.policy,),
        arrivals=options.arrivals,
        seed=options.seed,
        workers=options.workers or scope.workers,
        queued=queued,
        lengths=(*(lengths or (queued // 10,)), queued),
    )


def n_steps(scope: Scope) -> int:
    """How often `study` calls `on_step`."""
    overloads = len(studies.URGENT_PARTS) * len(studies.SHARES)
    return 2 * len(scope.policies) + 1 + 2 * len(MODES) + overloads + 2


def study(scope: Scope, on_step: Step = lambda _what: None) -> Findings:
    """Run everything.

    Raises:
        Stuck: simulated requests were lost, doubled or never ended.
    """
    found = Findings(scope)
    for policy in scope.policies:
        on_step(f"waits and shares, {policy}")
        found.policies.append(studies.compare_policy(policy, scope))
        found.floods.append(studies.flood(policy, scope))
    on_step("shares by weight")
    if "fair" in scope.policies:
        found.weighted = studies.overload("fair", _WEIGHTED, scope)
    for mode in MODES:
        on_step(f"starvation, preemption {mode.name}")
        found.starvation.append(studies.starvation(mode, scope))
    for mode in MODES:
        on_step(f"urgent requests, preemption {mode.name}")
        found.modes.append(studies.compare_mode(mode, scope))
    for urgent in studies.URGENT_PARTS:
        for share in studies.SHARES:
            on_step(f"lasting overload, {urgent:.0%} urgent, {share:.0%} guaranteed to others")
            found.overloads.append(studies.lasting_overload(urgent, share, scope))
    for setup in studies.CONVERSATION_SETUPS:
        on_step(f"conversations, {setup.slots} slots, waits of {setup.prefix_wait_s:g} s")
        found.conversations.append(studies.conversations(setup, scope))
    for policy in scope.policies:
        on_step(f"cost of decisions, {policy}")
        found.scales.append(studies.scale(policy, scope))
    return found


def to_table(grid: Grid) -> Table:
    """For the terminal."""
    table = Table(title=grid.title, title_justify="left")
    for index, column in enumerate(grid.columns):
        table.add_column(column, justify="right" if index else "left")
    for row in grid.rows:
        table.add_row(*row)
    return table


def to_markdown(grid: Grid) -> str:
    """For a document."""
    lines = [f"| {' | '.join(grid.columns)} |", "|---|" + "---:|" * (len(grid.columns) - 1)]
    lines += [f"| {' | '.join(row)} |" for row in grid.rows]
    return "\n".join([f"**{grid.title}**", "", *lines])


def write(found: Findings, document: Path) -> None:
    """Put the tables between the document's markers, and the pictures beside it.

    Raises:
        ReportError: the document has no markers.
        OSError: it cannot be read or written.
    """
    tables = "\n\n".join(to_markdown(grid) for grid in found.grids())
    document.write_text(insert(document.read_text(), tables, begin=BEGIN, end=END))
    for name, picture in found.pictures().items():
        document.with_name(name).write_text(picture)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse(arguments)
    scope = scope_of(options)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=n_steps(scope))

        def on_step(what: str) -> None:
            progress.update(task, description=what)
            progress.advance(task)

        found = study(scope, on_step)
    for grid in found.grids():
        console.print(to_table(grid))
    try:
        write_json(options, found.to_json())
        if options.write is not None:
            write(found, options.write)
    except (ReportError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
