"""How many prompts find their prefix when host memory evicts by last use, and when it evicts by clock.

    python -m benchmarks.tier_order [--requests 20000] [--device 10] [--host 30] [--json FILE]

Simulated, with the rule that the worker has (`engine/tiers/space.py`): a KV cache that has room for
`--device` prefixes and evicts by last use, and host memory for `--host`, which gets what leaves the KV cache.
Requests ask for one of 200 prefixes, of equal size, by Zipf's law: always the same ones are popular; others
become popular every 1,000 requests; and with prompts between them that come once. Prints the part of the
requests that found their prefix in either, and that part over the one of Belady's rule, which knows what
comes, with as much memory in all.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections import OrderedDict
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from inferflux.worker.engine.tiers.space import Eviction, Space

from .command_line import add_json, make_parser, positive, write_json

_PREFIXES = 200
_SHIFT_EVERY = 1000
_SHIFT = 20
_ONCE = 0.3


def zipf(n: int, exponent: float, rng: random.Random) -> list[int]:
    """`n` prefixes, the first the most popular."""
    weights = [1 / (rank + 1) ** exponent for rank in range(_PREFIXES)]
    return rng.choices(range(_PREFIXES), weights, k=n)


def shifting(n: int, rng: random.Random) -> list[int]:
    """The same, but the popular ones are others every now and then."""
    return [(prefix + i // _SHIFT_EVERY * _SHIFT) % _PREFIXES for i, prefix in enumerate(zipf(n, 1.0, rng))]


def with_others(requests: list[int], rng: random.Random) -> Iterator[int]:
    """`requests`, and between them some that come once."""
    others = itertools.count(_PREFIXES)
    for request in requests:
        while rng.random() < _ONCE:
            yield next(others)
        yield request


def workloads(n: int, seed: int) -> dict[str, list[int]]:
    rng = random.Random(seed)
    return {
        "Zipf(1.0)": zipf(n, 1.0, rng),
        "Zipf(0.7)": zipf(n, 0.7, rng),
        "Zipf(1.0), others popular every 1,000": shifting(n, rng),
        "Zipf(1.0), and 30 % that come once": list(with_others(zipf(n, 1.0, rng), rng)),
    }


def hits(requests: list[int], device: int, host: int, eviction: Eviction) -> int:
    """Requests that found their prefix in the KV cache or in host memory."""
    cache: OrderedDict[int, None] = OrderedDict()
    space: Space[int] = Space(host, eviction)
    found = 0
    for request in requests:
        if request in cache:
            cache.move_to_end(request)
            found += 1
            continue
        if request in space:
            space.use(request)
            found += 1
        if len(cache) == device:
            evicted, _ = cache.popitem(last=False)
            if evicted not in space:
                space.evict(space.losers(1) or [])
                space.hold(evicted, 1)
        cache[request] = None
    return found


def belady(requests: list[int], room: int) -> int:
    """The same of a memory that always evicts what comes again last, or never, a new one included."""
    following: list[int] = [0] * len(requests)
    last: dict[int, int] = {}
    for i in range(len(requests) - 1, -1, -1):
        following[i] = last.get(requests[i], len(requests))
        last[requests[i]] = i
    held: dict[int, int] = {}
    found = 0
    for request, comes_again in zip(requests, following, strict=True):
        found += request in held
        held[request] = comes_again
        if len(held) > room:
            del held[max(held, key=held.__getitem__)]
    return found


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=positive, default=20_000)
    parser.add_argument("--device", type=positive, default=10, help="prefixes in the KV cache")
    parser.add_argument("--host", type=positive, default=30, help="prefixes in host memory")
    parser.add_argument("--seed", type=int, default=0)
    add_json(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    table = Table(
        "requests", *[each.value for each in Eviction], "Belady", *[f"{e.value} ÷" for e in Eviction]
    )
    figures: dict[str, dict[str, float]] = {}
    for name, requests in workloads(options.requests, options.seed).items():
        n = len(requests)
        best = belady(requests, options.device + options.host)
        found = {each: hits(requests, options.device, options.host, each) for each in Eviction}
        figures[name] = {each.value: of / n for each, of in found.items()} | {"belady": best / n}
        parts = [f"{part:.3f}" for part in figures[name].values()]
        table.add_row(name, *parts, *[f"{of / best:.3f}" for of in found.values()])
    Console().print(table)
    write_json(options, figures)


if __name__ == "__main__":
    main()
