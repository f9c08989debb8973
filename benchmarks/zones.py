"""How many requests stay in their zone, and how long they wait, by what another zone counts for.

    python -m benchmarks.zones [--workers 8] [--seconds 300] [--seed 1] [--json FILE]

Simulated, with the scheduler's real core: workers in two zones, half in each, and requests of gateways in
both. `even`: half of the requests come from either zone. `uneven`: four of five come from one, which then has
more than its workers can do. With `--loads`, what is asked for as a part of what all workers can do.
Prints for each number of tokens that a worker of another zone counts as holding more (`FAR_TOKENS` of
`scheduler/core/workers/placement.py`; 0: zones count for nothing) the part of the requests that ran in their
zone, and the times from arrival to the first token, in milliseconds.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from random import Random
from unittest.mock import patch

from rich.console import Console
from rich.progress import track
from rich.table import Table

from inferflux.scheduler.core.workers import placement

from .command_line import add_json, make_parser, positive, write_json
from .sim.figures import waits
from .sim.traffic import Arrival, Class, Tenant, Traffic, arrive
from .sim.world import START_S, Setup, World

_ZONES = ("north", "south")
_EVEN, _UNEVEN = 0.5, 0.8
_COUNTED = (0, 512, placement.FAR_TOKENS, 8192)
_KIND = Class(0, 1.0)


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one run: `near` is a part of all requests, times are in milliseconds."""

    requests: str
    load: float
    far_tokens: int
    near: float
    first_token_p50_ms: float
    first_token_p99_ms: float


def requests_of(setup: Setup, load: float, north: float, seconds: float, seed: int) -> list[Arrival]:
    """Requests for `load` times what the workers can do, the part `north` of them from there."""
    random = Random(seed)
    served_s = setup.model.service_s(_KIND.prompt_tokens, _KIND.output_tokens)
    traffic = Traffic(
        load * setup.workers / served_s, seconds, classes=(_KIND,), tenants=(Tenant("acme", 1.0),)
    )
    arrivals = list(arrive(traffic, random, start_s=START_S))
    for arrival in arrivals:
        arrival.zone = _ZONES[random.random() >= north]
    return arrivals


def run(name: str, setup: Setup, arrivals: list[Arrival], load: float, far_tokens: int) -> Row:
    """Have the scheduler place these requests."""
    with patch.object(placement, "FAR_TOKENS", far_tokens):
        world = World(setup, arrivals).run()
    near = sum(setup.zone_of(arrival.worker_id) == arrival.zone for arrival in world.requests.values())
    found = waits(a.first_token_wait_s for a in arrivals if a.first_token_wait_s is not None)
    return Row(name, load, far_tokens, near / len(arrivals), 1000 * found["p50"], 1000 * found["p99"])


def parse() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__, prog="python -m benchmarks.zones")
    parser.add_argument("--workers", type=positive, default=8)
    parser.add_argument("--seconds", type=positive, default=300, help="simulated; default: %(default)s")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.4, 0.8])
    parser.add_argument("--seed", type=int, default=1)
    add_json(parser, "every figure")
    return parser.parse_args()


def main() -> None:
    options = parse()
    setup = Setup(workers=options.workers, zones=_ZONES)
    runs = [
        (name, north, load, far_tokens)
        for name, north in (("even", _EVEN), ("uneven", _UNEVEN))
        for load in options.loads
        for far_tokens in _COUNTED
    ]
    rows = [
        run(name, setup, requests_of(setup, load, north, options.seconds, options.seed), load, far_tokens)
        for name, north, load, far_tokens in track(runs, console=Console(stderr=True))
    ]
    table = Table("requests", "load", "counts as tokens", "in their zone", "first token p50", "p99")
    for row in rows:
        table.add_row(
            row.requests,
            f"{row.load:g}",
            f"{row.far_tokens:,}",
            f"{row.near:.0%}",
            f"{row.first_token_p50_ms:.0f} ms",
            f"{row.first_token_p99_ms:.0f} ms",
        )
    Console(width=110).print(table)
    write_json(options, {"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
