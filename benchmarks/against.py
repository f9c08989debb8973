"""Measure this checkout against another one of InferFlux: both serve, and are loaded in turn.

    git worktree add ../before HEAD~20 && make -C ../before .venv/.runtime
    python -m benchmarks.against ../before
    python -m benchmarks.against ../before --pairs 9 --model FILE --json against.json
    python -m benchmarks.against ../before --sampled

Told are the ratios of tokens/s, how much later the first token comes at idle, and the ratios of the CPU time
that each service takes per request. Each is the median over the pairs; disturbed rounds are made again
(`calm`). On a machine that is not alone tokens/s vary most: judge by the CPU time (`cpu_cost`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.load.command_line import add_json, make_parser, positive
from benchmarks.load.stats import median
from benchmarks.rows.calm import Run
from benchmarks.rows.cpu_cost import CPU_MS, with_cpu
from benchmarks.rows.lab import DEMO_MODEL, FULL, SLOTS, Lab, LabError
from benchmarks.rows.measured import measured
from benchmarks.rows.pairs import SAMPLED, Word, in_turn, load_of, ratio
from benchmarks.rows.peers import ROOT
from inferflux.cli.reach.state_dir import StackState, StateDir

_START_LIMIT_S = 90.0
_POLL_S = 0.1
_IDLE_WARMUP = 8
_IDLE = ("--concurrency", 1, "--prompt-tokens", 32, "--max-tokens", 2)
# Not the worker: how long its engine's threads wait actively depends on what else runs.
_SERVICES = ("gateway", "scheduler", "policy", "nats")

Result = dict[str, Any]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("other", type=Path, help="another checkout, with its .venv")
    parser.add_argument("--pairs", type=positive, default=FULL.pairs, metavar="N")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="default: the demo model")
    parser.add_argument("--waves", type=positive, default=32, help="times the concurrency: requests of a run")
    parser.add_argument(
        "--sampled",
        action="store_true",
        help="tokens/s of sampled answers (temperature 0.8, top-k 40, top-p 0.95); default: greedy",
    )
    parser.add_argument("--threads", type=int, default=0, help="of each engine; default: all cores")
    add_json(parser, "every figure")
    return parser.parse_args(arguments)


def program_of(checkout: Path) -> Path:
    """`inferctl` of a checkout.

    Raises:
        LabError: it has no .venv.
    """
    program = checkout / ".venv" / "bin" / "inferctl"
    if not program.exists():
        raise LabError(f"{program} is not there: run `make .venv/.runtime` in {checkout}")
    return program


@asynccontextmanager
async def stack_of(checkout: Path, model: Path, threads: int = 0) -> AsyncIterator[StackState]:
    """The stack of a checkout, started by its own `inferctl up` on free ports.

    Raises:
        LabError: it has no .venv, or does not come up.
    """
    program = program_of(checkout)
    with tempfile.TemporaryDirectory(prefix="inferflux-against-") as folder:
        free = ("--gateway-port", "--policy-port", "--nats-port", "--redis-port")
        process = await asyncio.create_subprocess_exec(
            program,
            *(
                "up",
                "--model",
                model,
                "--slots",
                str(SLOTS),
                "--threads",
                str(threads),
                "--state-dir",
                folder,
            ),
            *(word for option in free for word in (option, "0")),
            cwd=checkout,
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            yield await _until_up(StateDir(Path(folder)), process, checkout)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _until_up(state_dir: StateDir, process: asyncio.subprocess.Process, checkout: Path) -> StackState:
    async with asyncio.timeout(_START_LIMIT_S):
        while (state := state_dir.running()) is None:
            if process.returncode is not None:
                raise LabError(f"the stack of {checkout} did not come up")
            await asyncio.sleep(_POLL_S)
    return state


def load(lab: Lab, stack: StackState, *words: Word, warmup: int) -> Run:
    """A run of serve.py on a stack, with the CPU time that its processes take."""
    where = ("--url", stack.endpoint, "--model", stack.model)
    run = partial(lab.serve, *where, *words, "--warmup", warmup, api_key=stack.api_key)
    return with_cpu(run, stack.processes, also_sent=warmup)


async def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Every figure, and the runs it comes from."""
    lab = Lab(replace(FULL, pairs=options.pairs), console)
    model = options.model.resolve()
    figures: dict[str, Any] = {}
    async with AsyncExitStack() as exits:
        ours = await exits.enter_async_context(stack_of(ROOT, model, options.threads))
        theirs = await exits.enter_async_context(stack_of(options.other.resolve(), model, options.threads))
        for n in (8, 16):
            words = (*load_of(n, n * options.waves), *(SAMPLED if options.sampled else ()))
            mine, others = await in_turn(
                lab, load(lab, ours, *words, warmup=n), load(lab, theirs, *words, warmup=n)
            )
            key = f"tokens/s ÷ the other's, {n} concurrent"
            figures[key] = _figure(ratio(mine, others), mine, others, _tokens_per_s, places=0)
            figures.update(_cpu_figures(mine, others, f"{n} concurrent"))
        words = (*_IDLE, "--requests", lab.plan.single_requests)
        mine, others = await in_turn(
            lab, *(load(lab, stack, *words, warmup=_IDLE_WARMUP) for stack in (ours, theirs))
        )
        for name in ("p50", "p99"):
            read = partial(_ttft_ms, name)
            added = median(read(a) - read(b) for a, b in zip(mine, others, strict=True))
            key = f"time to first token at idle minus the other's, {name}, ms"
            figures[key] = _figure(added, mine, others, read, places=2)
        figures.update(_cpu_figures(mine, others, "one at a time"))
    return figures


def _cpu_figures(mine: Sequence[Result], others: Sequence[Result], when: str) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for service in _SERVICES:
        read = partial(_cpu_ms, service)
        pairs = zip(mine, others, strict=True)
        value = median(read(a) / read(b) for a, b in pairs if read(b))
        key = f"CPU ms per request ÷ the other's, {service}, {when}"
        figures[key] = _figure(value, mine, others, read, places=2)
    return figures


def _figure(
    value: float,
    mine: Sequence[Result],
    others: Sequence[Result],
    read: Callable[[Result], float],
    *,
    places: int,
) -> dict[str, Any]:
    """A figure, the runs it comes from, and what `read` finds in each, as it is shown."""
    sides = {"ours": list(mine), "other": list(others)}
    shown = {side: [f"{read(run):.{places}f}" for run in runs] for side, runs in sides.items()}
    return {"value": value, "shown": shown, **sides}


def _tokens_per_s(run: Result) -> float:
    return float(run["tokens_per_s"])


def _ttft_ms(name: str, run: Result) -> float:
    return float(run["ttft_ms"][name])


def _cpu_ms(service: str, run: Result) -> float:
    return float(run[CPU_MS][service])


def table_of(figures: dict[str, Any]) -> Table:
    """The figures for the terminal, with what each side had in each round."""
    table = Table(title="this checkout against the other", title_justify="left")
    for column in ("what", "median", "ours", "the other's"):
        table.add_column(column)
    for key, figure in figures.items():
        sides = (", ".join(figure["shown"][side]) for side in ("ours", "other"))
        table.add_row(key, f"{figure['value']:.3f}", *sides)
    return table


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options, console = parse(arguments), Console()
    return measured(options, console, measure(options, console), table_of)


if __name__ == "__main__":
    sys.exit(main())
