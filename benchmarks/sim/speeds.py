"""Simulate workers of one model whose speeds differ: what requests wait, and what each worker gets.

    python -m benchmarks.sim.speeds             # a minute
    python -m benchmarks.sim.speeds --quick     # seconds: does it work at all

First requests that have nothing in common, then conversations whose prompts workers keep. The same seed gives
the same figures. To compare placement with that of another commit, run it in a worktree of each.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random

from rich.console import Console
from rich.table import Table

from benchmarks.load.command_line import add_json, make_parser, write_json

from .conversations import Conversation
from .figures import Waits, waits
from .traffic import Arrival, Class, Tenant, Traffic, arrive
from .worker import WorkerModel
from .world import START_S, Setup, World

# Requests that come sooner are not counted: the speeds of workers are not known from the start.
_BEGIN_S = 30.0
_MODEL = WorkerModel(slots=16, sequences=32, kv_cells=16_384)
_KIND = Class(0, 1.0, prompt_tokens=256, output_tokens=128)
_LOADS = (0.3, 0.6, 0.9, 1.1)
# For each worker of speed 1, and the cells of each worker: for all conversations, or a part.
_CONVERSATIONS = ((5, 1 << 17), (15, 1 << 17), (15, 1 << 20))
_TURNS = 12


@dataclass(frozen=True, slots=True)
class Fleet:
    """Workers of one model, by how many times as fast each is as a slow one."""

    name: str
    speeds: tuple[float, ...]


FLEETS = (
    Fleet("one of 10, three of 1", (10.0, 1.0, 1.0, 1.0)),
    Fleet("two of 10, two of 1", (10.0, 10.0, 1.0, 1.0)),
    Fleet("three of 3, three of 1", (3.0, 3.0, 3.0, 1.0, 1.0, 1.0)),
    Fleet("four of 1", (1.0, 1.0, 1.0, 1.0)),
)


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one run.

    Attributes:
        load: work that comes ÷ what all workers can do, or conversations and KV cells of a worker.
        first_token: seconds from arrival to the first token.
        whole: seconds from arrival to the end.
        tokens_per_s: generated, from the first arrival to the last end.
        fast_part: part of all tokens, computed and generated, that the workers of the highest speed had.
        due_part: their part of the speed of all workers.
        cached_part: part of the prompt tokens that workers had cached.
    """

    fleet: str
    load: str
    first_token: Waits
    whole: Waits
    tokens_per_s: float
    fast_part: float
    due_part: float
    cached_part: float


def run(fleet: Fleet, load: float, *, seconds: float, seed: int) -> Result:
    """Requests come for this many seconds of simulated time."""
    setup = Setup(workers=len(fleet.speeds), model=_MODEL, speeds=fleet.speeds)
    rate = load * sum(fleet.speeds) / _MODEL.service_s(_KIND.prompt_tokens, _KIND.output_tokens)
    traffic = Traffic(rate, _BEGIN_S + seconds, classes=(_KIND,), tenants=(Tenant("clients", 1.0),))
    world = World(setup, arrive(traffic, Random(f"{seed} {load}"), start_s=START_S)).run()
    return _result(fleet, f"{load:.1f}", world)


def converse(fleet: Fleet, conversations: int, kv_cells: int, *, turns: int, seed: int) -> Result:
    """Clients that begin within the first seconds go on with what was answered."""
    model = replace(_MODEL, slots=8, sequences=64, kv_cells=kv_cells, caches_prompts=True)
    setup = Setup(workers=len(fleet.speeds), model=model, speeds=fleet.speeds, has_hints=True)
    random = Random(f"{seed} conversations")
    made = [Conversation(number, turns, random) for number in range(conversations)]
    starts = sorted(random.uniform(0.0, _BEGIN_S / 3) for _ in made)
    first = [one.first(START_S + at_s) for one, at_s in zip(made, starts, strict=True)]
    world = World(setup, first, next_of=lambda ended: made[int(ended.name.split("-")[0])].next(ended)).run()
    return _result(fleet, f"{conversations} in {kv_cells:,} cells", world)


def _result(fleet: Fleet, load: str, world: World) -> Result:
    counted = [a for a in world.requests.values() if a.at_s >= START_S + _BEGIN_S]
    had = Counter[str]()
    for arrival in counted:
        had[arrival.worker_id] += arrival.prompt_tokens - arrival.cached + arrival.generated
    best = max(fleet.speeds)
    fast = [worker_id for worker_id, speed in zip(world.workers, fleet.speeds, strict=True) if speed == best]
    return Result(
        fleet=fleet.name,
        load=load,
        first_token=waits(a.first_token_wait_s for a in counted if a.first_token_wait_s is not None),
        whole=waits(_took_s(counted)),
        tokens_per_s=sum(a.generated for a in world.requests.values()) / (world.now - START_S),
        fast_part=sum(had[worker_id] for worker_id in fast) / max(1, had.total()),
        due_part=best * len(fast) / sum(fleet.speeds),
        cached_part=sum(a.cached for a in counted) / sum(a.prompt_tokens for a in counted),
    )


def _took_s(arrivals: Iterable[Arrival]) -> list[float]:
    return [a.ended_s - a.at_s for a in arrivals if a.ended_s is not None]


def table(results: Sequence[Result]) -> Table:
    """For the terminal."""
    shown = Table(title="Workers of different speeds", title_justify="left")
    columns = (
        "load",
        "first token p50 s",
        "p99 s",
        "request p50 s",
        "p99 s",
        "tokens/s",
        "fast had",
        "due",
        "cached",
    )
    shown.add_column("workers")
    for column in columns:
        shown.add_column(column, justify="right")
    for result in results:
        times = (of[quantile] for of in (result.first_token, result.whole) for quantile in ("p50", "p99"))
        shown.add_row(
            result.fleet,
            result.load,
            *(f"{time:.3f}" for time in times),
            f"{result.tokens_per_s:,.0f}",
            f"{result.fast_part:.0%}",
            f"{result.due_part:.0%}",
            f"{result.cached_part:.0%}",
        )
    return shown


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__, prog="python -m benchmarks.sim.speeds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a small trial; its figures are none to cite")
    add_json(parser, "every figure")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse(arguments)
    seconds, turns = (5.0, 4) if options.quick else (120.0, _TURNS)
    results = [run(fleet, load, seconds=seconds, seed=options.seed) for fleet in FLEETS for load in _LOADS]
    results += [
        converse(fleet, per_speed * round(sum(fleet.speeds)), cells, turns=turns, seed=options.seed)
        for fleet in FLEETS
        for per_speed, cells in _CONVERSATIONS
    ]
    Console(width=150).print(table(results))
    write_json(options, [asdict(result) for result in results])
    return 0


if __name__ == "__main__":
    sys.exit(main())
