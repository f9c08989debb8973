"""Simulate a fleet: 10 schedulers, 10 partitions, 10,000 workers in three zones, and what happens to them.

    python -m benchmarks.fleet_sim             # minutes
    python -m benchmarks.fleet_sim --quick     # seconds: does it work at all

Schedulers join, leave and are killed, workers are replaced all the time, a zone is lost with all that is in
it and comes back, and then some tenants ask for more than all workers can do. What decides is the
scheduler's own: which scheduler is to lead which partition, the leases, the core of each partition.
Workers are modelled, and so is a network of constant delay. NATS loses nothing and never stands still.

Afterwards the history is held against what must be: each request ends once, each stream has every token
once and in order, one scheduler dispatches in a term. The exit code is 1 if anything is not so. The same
seed gives the same figures, but for those of cost: processor time of this machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inferflux.common.process.machine import heap

from .load.command_line import add_json, make_parser, positive, write_json
from .sim.figures import Waits
from .sim.fleet.setup import LEAST_SCHEDULERS, QUICK, Fleet
from .sim.fleet.study import Found, run
from .sim.studies import POLICIES

# Breaches that are printed.
_TOLD = 20


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__, prog="python -m benchmarks.fleet_sim")
    parser.add_argument("--workers", type=positive)
    parser.add_argument("--models", type=positive)
    parser.add_argument("--schedulers", type=positive, help=f"{LEAST_SCHEDULERS} or more")
    parser.add_argument("--partitions", type=positive)
    parser.add_argument("--seconds", type=positive, help="for which requests come, simulated")
    parser.add_argument(
        "--policy", choices=POLICIES, default="priority", help="of the queues (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--unshared", action="store_true", help="leaders do not tell each other what they have served"
    )
    parser.add_argument("--quick", action="store_true", help="a small trial; its figures are none to cite")
    add_json(parser, "every figure")
    return parser.parse_args(arguments)


def fleet_of(options: argparse.Namespace) -> Fleet:
    """Return the fleet that the command line asks for.

    Raises:
        ValueError: there are too few schedulers, or workers for the models.
    """
    base = QUICK if options.quick else Fleet()
    asked = {
        name: value
        for name in ("workers", "models", "schedulers", "partitions", "seconds")
        if (value := getattr(options, name)) is not None
    }
    return replace(
        base, policy=options.policy, seed=options.seed, are_shares_exchanged=not options.unshared, **asked
    )


def tables(found: Found, wall_s: float) -> Iterator[Table]:
    """For the terminal."""
    yield _summary(found, wall_s)
    yield _waits(found)
    yield _shares(found)
    yield _takeovers(found)
    yield _moves(found)
    yield _costs(found)
    yield _schedulers(found)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def _summary(found: Found, wall_s: float) -> Table:
    table = _table("The run", "figure", "value")
    fleet = found.fleet
    told = {
        "workers, models, partitions, schedulers": f"{fleet.workers:,}, {fleet.models}, {fleet.partitions}, "
        f"{fleet.schedulers}",
        "requests, batches": f"{found.requests:,}, {found.batches:,}",
        "simulated": f"{found.simulated_s:.0f} s",
        "took": f"{wall_s:.0f} s",
        "memory, all of it": f"{found.peak_bytes / 2**20:,.0f} MiB",
        "streams cut by the lost zone": f"{found.zone_pause['n']:,}",
        "they paused for, p50, p99, max": _times(found.zone_pause, "p50", "p99", "max"),
        "tokens computed again for them": f"{found.zone_recomputed:,}",
        "breaches": str(len(found.breaches)),
    }
    for name, value in (told | {name: f"{n:,}" for name, n in found.counts.items()}).items():
        table.add_row(name, value)
    return table


def _waits(found: Found) -> Table:
    table = _table(
        "From arrival to the first token", "came while", "priority", "requests", "p50 s", "p99 s", "max s"
    )
    for phase, by_class in found.waits.items():
        for priority, of_class in by_class.items():
            times = (_figure(of_class, name) for name in ("p50", "p99", "max"))
            table.add_row(phase, priority, f"{of_class['n']:,.0f}", *times)
    return table


def _shares(found: Found) -> Table:
    table = _table(
        "Service per weight in the rush, of tenants that ask for more than their share", "tenant", "÷ mean"
    )
    for tenant, share in found.shares.items():
        table.add_row(tenant, f"{share:.3f}")
    index = found.jain_index
    table.add_row("Jain's index", "-" if index is None else f"{index:.4f}")
    return table


def _takeovers(found: Found) -> Table:
    table = _table(
        "Partitions without a leader",
        "the last one",
        "times",
        "until another leads p50, max s",
        "dispatches p50, max s",
        "has all jobs p50, max s",
    )
    for one in found.takeovers:
        spans = (_times(each, "p50", "max") for each in (one.leaderless, one.dispatch, one.known))
        table.add_row(one.end or "leads on", str(one.leaderless["n"]), *spans)
    return table


def _moves(found: Found) -> Table:
    table = _table("Models that move to another scheduler", "what", "schedulers then", "part of the models")
    for move in found.moves:
        table.add_row(move.what, str(move.schedulers), f"{move.part:.3f}")
    for each in found.movements:
        what = f"one of {each.schedulers} {each.what}, random names: mean, most; expected"
        table.add_row(what, "", f"{each.mean:.3f}, {each.most:.3f}; {each.expected:.3f}")
    return table


def _costs(found: Found) -> Table:
    table = _table("Processor time of a decision", "about", "calls", "p50 µs", "p99 µs", "max µs", "all s")
    for cost in found.costs:
        figures = (f"{us:,.0f}" for us in (cost.p50_us, cost.p99_us, cost.max_us))
        table.add_row(cost.name, f"{cost.calls:,}", *figures, f"{cost.total_s:.1f}")
    return table


def _schedulers(found: Found) -> Table:
    table = _table("The same by scheduler", "scheduler", "calls", "p50 µs", "p99 µs", "of one core")
    for cost in found.schedulers:
        figures = (f"{us:,.0f}" for us in (cost.p50_us, cost.p99_us))
        table.add_row(cost.name, f"{cost.calls:,}", *figures, f"{found.busy[cost.name]:.0%}")
    return table


def _figure(of: Waits, name: str) -> str:
    return f"{of[name]:.2f}" if name in of else "-"


def _times(of: Waits, *names: str) -> str:
    return ", ".join(_figure(of, name) for name in names)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse(arguments)
    try:
        fleet = fleet_of(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    console = Console()
    began_s = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulated", total=fleet.seconds + 3.0)
        heap.set_apart()
        found = run(fleet, lambda second: progress.update(task, completed=second))
    for table in tables(found, time.monotonic() - began_s):
        console.print(table)
    for breach in found.breaches[:_TOLD]:
        print(breach, file=sys.stderr)
    write_json(options, found.to_json())
    return 1 if found.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
