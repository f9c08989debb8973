"""Simulate 1,000 workers with roles on Mooncake's conversation trace.

    python -m benchmarks.sim.roles             # a quarter of an hour of one core; --parts: some of it
    python -m benchmarks.sim.roles --quick     # less than a minute: does it work at all

Told is what it gives that some compute prompts and others answers. The scheduler's own core decides.
Modelled workers (`study.py` says how fast) compute, and send each other KV state over links of a given rate.
Copies of the trace run side by side, four times as fast as it was taken.

Effective capacity is the largest rate at which 90 % of the requests have their first token within 30 s, and a
mean of the longest tenth of the gaps between their tokens of at most 200 ms, while first tokens come as fast
as requests do. It is searched with few workers, and looked for with all of them. The hit rate is the part of
the prompt tokens that no worker computed; the ideal one is that of a cache that loses nothing, and of the
same requests. The same commit gives the same figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.load.command_line import add_json, make_parser, positive, write_json
from benchmarks.traces import mooncake
from benchmarks.traces.replay import hold
from benchmarks.traces.request import TraceError, ideal

from .study import Run, Shape, Study

# What a command tells: see `study_of`.
_PARTS = ("few", "tight", "many", "whole")
# Requests per second and worker from which the search goes on.
_GUESS, _TIGHT_GUESS = 0.4, 0.33
# The rate that all workers begin with, and by how much lower the next one is that they try.
_MANY, _LOWER, _TRIES = 0.4, 0.94, 3
# Their runs are so much shorter.
_SHORTER = 2 / 3
# A stricter limit, and how many tokens of prompts a step may have beside decodes to keep it.
_TIGHT_S, _TIGHT_CHUNK = 0.1, 192


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__, prog="python -m benchmarks.sim.roles")
    parser.add_argument("--trace", type=Path, default=mooncake.CONVERSATION, metavar="FILE")
    parser.add_argument("--workers", type=positive, default=1000)
    parser.add_argument("--few", type=positive, default=24, help="workers to search with (default: 24)")
    parser.add_argument("--seconds", type=positive, default=120, help="simulated, of a run (default: 120)")
    parser.add_argument("--prefill", type=_part, nargs="*", default=[0.5, 0.7], metavar="PART")
    parser.add_argument(
        "--gb-per-s",
        type=float,
        nargs="+",
        default=[12.5, 3.125],
        help="of a link; the first for every split",
    )
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS, help="some of the tables")
    parser.add_argument("--quick", action="store_true", help="a small trial; its figures are none to cite")
    add_json(parser, "every figure")
    return parser.parse_args(arguments)


def _part(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError("a part of the workers is between 0 and 1")
    return value


def shapes_of(options: argparse.Namespace) -> list[Shape]:
    """Unified workers first; slower links with the last split alone."""
    fastest, *slower = options.gb_per_s
    splits = [Shape(part, fastest) for part in options.prefill]
    return [Shape(), *splits, *(Shape(part, rate) for part in options.prefill[-1:] for rate in slower)]


def study_of(
    study: Study, shapes: list[Shape], *, parts: Collection[str], few: int, workers: int
) -> Iterator[tuple[str, list[Run]]]:
    """Yield titles of tables, and what is in them."""
    fastest = max(shape.gb_per_s for shape in shapes)
    pair = [shapes[0], *[shape for shape in shapes if shape.gb_per_s == fastest > 0][-1:]]
    if "few" in parts:
        yield f"Effective capacity, {few} workers", _capacities(study, shapes, few, _GUESS)
    if "tight" in parts:
        tight = replace(study, slow_gap_s=_TIGHT_S)
        narrow = [replace(shape, chunk=_TIGHT_CHUNK) for shape in pair]
        yield (
            f"The same, slow gaps of {1000 * _TIGHT_S:.0f} ms",
            _capacities(tight, narrow, few, _TIGHT_GUESS),
        )
    if "many" in parts:
        shorter = replace(study, seconds=study.seconds * _SHORTER)
        yield f"{workers:,} workers", [_try_lower(shorter, shape, workers) for shape in pair]
    if "whole" in parts:
        yield f"The whole trace once, {workers:,} workers", [study.run_whole(one, workers) for one in pair]


def _capacities(study: Study, shapes: list[Shape], few: int, guess: float) -> list[Run]:
    found = (study.capacity(shape, few, guess * few) for shape in shapes)
    return [run for run in found if run is not None]


def trial_of(study: Study, shapes: list[Shape]) -> Iterator[tuple[str, list[Run]]]:
    """As `study_of`, of a few workers at one rate."""
    yield "A trial", [study.run(shape, 10, 0.3 * 10) for shape in shapes]


def _try_lower(study: Study, shape: Shape, workers: int) -> Run:
    """The run at the first rate that this number of workers can do, from a high one on down."""
    rate = _MANY * workers
    for _ in range(_TRIES):
        run = study.run(shape, workers, rate)
        if run.is_done:
            break
        rate *= _LOWER
    return run


_COLUMNS = (
    "fleet",
    "workers",
    "link GB/s",
    "requests/s",
    "÷ unified",
    "served well",
    "kept up",
    "first token p50 s",
    "p90",
    "p99",
    "slow gaps p99 ms",
    "hit rate",
    "ideal",
    "hit ÷ ideal",
    "÷ that of its memory",
    "moved",
    "sent TB",
    "failed",
)


def rows(runs: list[Run]) -> Iterator[tuple[str, ...]]:
    """A table's rows."""
    unified = next((run.rate / run.workers for run in runs if not run.shape.prefill), 0.0)
    for run in runs:
        yield (
            run.shape.name,
            f"{run.workers:,}",
            f"{run.shape.gb_per_s:g}" if run.shape.gb_per_s else "",
            f"{run.rate:.1f}",
            f"{run.rate / run.workers / unified:.2f}" if unified else "",
            f"{run.served_well:.1%}",
            f"{run.kept_up:.2f}",
            *(f"{run.first_token.get(name, 0.0):.1f}" for name in ("p50", "p90", "p99")),
            f"{1000 * run.slow_gap.get('p99', 0.0):.0f}",
            f"{run.hit_rate:.3f}",
            f"{run.ideal.tokens:.3f}",
            f"{run.part_of_ideal:.2f}",
            f"{run.part_of_memory:.2f}",
            f"{run.moved:,}",
            f"{run.sent_gb / 1000:.1f}",
            f"{run.failed_fetches:,}",
        )


def _table(title: str, runs: list[Run]) -> Table:
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(_COLUMNS):
        table.add_column(column, justify="right" if index else "left")
    for row in rows(runs):
        table.add_row(*row)
    return table


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse(arguments)
    console = Console(width=200)
    try:
        trace = hold(mooncake.read(options.trace))
    except TraceError as error:
        print(error, file=sys.stderr)
        return 1
    whole = ideal(trace)
    console.print(
        f"{len(trace):,} requests; ideal: {whole.blocks:.3f} of blocks, {whole.tokens:.3f} of tokens"
    )
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=1.0)
        study = Study(
            trace,
            20.0 if options.quick else float(options.seconds),
            on_progress=lambda what, part: progress.update(task, description=what, completed=part),
        )
        shapes = shapes_of(options)
        whole_study = study_of(study, shapes, parts=options.parts, few=options.few, workers=options.workers)
        for title, runs in trial_of(study, shapes[:2]) if options.quick else whole_study:
            console.print(_table(title, runs))
    write_json(options, [asdict(run) for run in study.runs])
    return 0


if __name__ == "__main__":
    sys.exit(main())
