"""Stop a worker with streams on it, and see how long they wait until another worker goes on with them.

    python -m benchmarks.handover                       # SmolLM2, 8 streams of 2,000 tokens
    python -m benchmarks.handover --ways killed --prompt-tokens 200 --pairs 5

Two workers of one machine. One is drained, and hands its requests over at once, or gets kill -9, or its
engine does: that one has room for half of the streams, and is killed once some are preempted. In turn: what
it has computed goes along through shared memory, or is computed again (`INFERFLUX_WORKER_SHM_BYTES=0`).
It prints the longest gap of the streams, and which part of their tokens was not computed again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.load.command_line import add_json, make_parser, positive
from benchmarks.load.grpc_target import generate_request
from benchmarks.load.prompts import Prompts
from benchmarks.load.stats import median
from benchmarks.rows.lab import LabError
from benchmarks.rows.measured import measured
from benchmarks.scheduling.figures import Window, longest_gap_s
from benchmarks.scheduling.ground import Ground, ground, ready_workers, until, until_so
from benchmarks.scheduling.streams import Stream, failures, hang_up
from inferflux.cli.stack import StackOptions

WAYS = ("drained", "killed", "engine killed")
_SMOLLM2 = Path.home() / ".cache/inferflux/models/smollm2/smollm2.gguf"
_STREAMS = 8
# Of each: more than come until the last one has begun, and then until all go on.
_MAX_TOKENS = 1500
_AFTER_TOKENS = 16
_LIMIT_S = 300.0
# Requests in host memory when an engine is killed.
_PREEMPTED = 2
_FOR_EVER_S = 1e9
# Ids of words, in each vocabulary.
_TOKENS = (300, 1900)
_ENGINE = WAYS[-1]
_VICTIM, _SPARE = "worker-0", "worker-1"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, default=_SMOLLM2, help="default: SmolLM2")
    parser.add_argument("--prompt-tokens", type=positive, default=2000, metavar="N")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--pairs", type=positive, default=3, metavar="N")
    add_json(parser)
    return parser.parse_args(arguments)


async def gap_of(options: argparse.Namespace, way: str, *, goes_along: bool) -> tuple[float, float]:
    """(longest gap of the streams in seconds, the part of their tokens that was not computed again).

    Raises:
        LabError: a stream failed.
    """
    made = StackOptions(
        model=options.model.resolve(),
        workers=2,
        slots=_STREAMS,
        kv_cells=_STREAMS * (options.prompt_tokens + _MAX_TOKENS) // (2 if way == _ENGINE else 1),
        restarts=False,
        env={} if goes_along else {"INFERFLUX_WORKER_SHM_BYTES": "0"},
    )
    async with ground(made) as on:
        await on.drain(_SPARE)
        prompts = Prompts(options.prompt_tokens, _TOKENS)
        asked = (generate_request(on.model, prompts[i], _MAX_TOKENS) for i in range(_STREAMS))
        underway = [on.caller.send(request) for request in asked]
        streams: Sequence[Stream] = [one.stream for one in underway]
        await until(lambda: all(s.tokens for s in streams), patience_s=_LIMIT_S)
        if way == _ENGINE:
            await until_so(lambda: _has_preempted(on), patience_s=_LIMIT_S)
        await on.admin.undrain(_SPARE)
        await on.until_scheduler(lambda s: _SPARE in ready_workers(s))
        at_s = time.perf_counter()
        had = [s.tokens for s in streams]
        await _stop(on, way)
        # An engine that is started again may have some of them.
        moved = [s for s in streams if way != _ENGINE]
        await until(lambda: _go_on(streams, had, moved), patience_s=_LIMIT_S)
        if failures(streams) or any(s.ended_s or s.workers[:2] != [_VICTIM, _SPARE] for s in moved):
            raise LabError(f"a stream failed, or ended too early: {failures(streams)[:1]}")
        gauges = [await on.gauges(worker) for worker in (_VICTIM, _SPARE) if moved == [] or worker == _SPARE]
        await hang_up(one.task for one in underway)
    found, tokens = (
        sum(each[f"inferflux_retried_{name}_total"] for each in gauges) for name in ("found_tokens", "tokens")
    )
    return longest_gap_s(streams, Window(at_s, _FOR_EVER_S)), found / tokens


async def _has_preempted(on: Ground) -> bool:
    return (await on.gauges(_VICTIM))["inferflux_worker_swapped_requests"] >= _PREEMPTED


def _go_on(streams: Sequence[Stream], had: Sequence[int], moved: Sequence[Stream]) -> bool:
    is_moved = all(s.workers[:2] == [_VICTIM, _SPARE] or s.ended_s for s in moved)
    return is_moved and all(
        s.tokens >= n + _AFTER_TOKENS or s.ended_s for s, n in zip(streams, had, strict=True)
    )


async def _stop(on: Ground, way: str) -> None:
    if way == "killed":
        await on.stack.kill(_VICTIM)
        return
    if way == _ENGINE:
        for child in psutil.Process(on.stack.processes[_VICTIM].pid).children():
            if "inferflux.worker.engine" in child.cmdline():
                child.kill()
        return
    async for _ in on.admin.drain(_VICTIM, hand_over_after_ms=0):
        pass


async def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Gaps and found parts, by way and by whether state goes along."""
    figures: dict[str, Any] = {}
    for way in options.ways:
        sides: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for _ in range(options.pairs):
            for goes_along, found in sides.items():
                found.append(await gap_of(options, way, goes_along=goes_along))
                console.print(f"{way}, state goes along: {goes_along}: {found[-1][0]:.2f} s", style="dim")
        figures[way] = {
            "gaps_s": [gap for gap, _ in sides[True]],
            "computed_again_gaps_s": [gap for gap, _ in sides[False]],
            "found": [found for _, found in sides[True]],
        }
    return figures


def table_of(figures: dict[str, Any]) -> Table:
    """The figures for the terminal."""
    table = Table(title="longest gap of the streams, s", title_justify="left")
    for column in ("the worker is", "state goes along", "computed again", "ratio of medians", "found"):
        table.add_column(column)
    for way, figure in figures.items():
        gaps, others = figure["gaps_s"], figure["computed_again_gaps_s"]
        cells = (", ".join(f"{gap:.2f}" for gap in each) for each in (gaps, others))
        table.add_row(way, *cells, f"{median(gaps) / median(others):.3f}", f"{min(figure['found']):.2f}")
    return table


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options, console = parse(arguments), Console()
    return measured(options, console, measure(options, console), table_of)


if __name__ == "__main__":
    sys.exit(main())
