"""What the prefix index costs: hashing a prompt, finding its longest match, writing what workers have.

    python -m benchmarks.prefix_index [--workers 1 10 100] [--lookups 2000] [--json FILE]

A valkey-server of its own on a free port. For each number of workers they have 100,000 blocks together; each
prompt of 1,000 blocks begins like one that a worker has, as far as a random block. `lookup` is what a
scheduler waits for: the round trip on one connection with nothing else under way. `hash`, `client` and
`server` are processor time; the last two are means of a lookup.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import uvloop
from rich.console import Console
from rich.table import Table

from inferflux.common.prefixes.hashes import PrefixHasher, packed
from inferflux.common.prefixes.index import BLOCKS_AT_ONCE, CachedBlock, Change, Holder, PrefixIndex, Tier
from inferflux.common.redis import store
from inferflux.common.servers.servers import ServerProcess

from .command_line import add_json, make_parser, positive, write_json
from .stats import Summary, summary

if TYPE_CHECKING:
    from redis.asyncio import Redis

BLOCK_TOKENS = 16
PROMPT_BLOCKS = 1000
BLOCKS = 100_000
_CHANGES_AT_ONCE = 8
_SCOPE = "tenant/acme"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one number of workers; summaries in milliseconds.

    Attributes:
        write_s: seconds until all blocks were written.
        bytes_per_block: memory of the server.
        client_ms, server_ms: processor time of one lookup.
    """

    workers: int
    hash: Summary
    lookup: Summary
    write_s: float
    bytes_per_block: float
    client_ms: float
    server_ms: float


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=positive, nargs="+", default=[1, 10, 100])
    parser.add_argument("--lookups", type=positive, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    add_json(parser)
    return parser.parse_args(arguments)


class Fleet:
    """Workers that have cached prompts of `PROMPT_BLOCKS`, all different from their first token on.

    With more workers than prompts, one has a part of what another has.
    """

    def __init__(self, workers: int, random: Random) -> None:
        self._random = random
        self.hasher = PrefixHasher(random.randbytes(32), model_digest="d" * 64, block_tokens=BLOCK_TOKENS)
        self.holders = [Holder(f"w{number:04d}", "i") for number in range(workers)]
        self.prompts = [self._prompt() for _ in range(BLOCKS // PROMPT_BLOCKS)]

    def _prompt(self) -> list[int]:
        return [self._random.randrange(100_000) for _ in range(PROMPT_BLOCKS * BLOCK_TOKENS)]

    def changes(self, number: int) -> Iterator[Change]:
        """What a worker writes, at first."""
        share = BLOCKS // len(self.holders)
        whole, rest = divmod(share, PROMPT_BLOCKS)
        first = number * max(1, whole)
        version = 0
        for at in range(first, first + whole + (rest > 0)):
            hashes = self.hasher.of(packed(self.prompts[at % len(self.prompts)]), _SCOPE)
            cached = hashes if at < first + whole else hashes[:rest]
            for start in range(0, len(cached), BLOCKS_AT_ONCE):
                blocks = [
                    CachedBlock(each, Tier.DEVICE, 1, usable)
                    for usable, each in enumerate(cached[start : start + BLOCKS_AT_ONCE], start + 1)
                ]
                yield Change(version or None, version + 1, added=blocks)
                version += 1

    def ask(self) -> list[int]:
        """A prompt that begins as one that is cached."""
        known = self._random.choice(self.prompts)
        kept = self._random.randrange(PROMPT_BLOCKS) * BLOCK_TOKENS
        return known[:kept] + [-1] * (len(known) - kept)


async def measure(redis: Redis, workers: int, lookups: int, random: Random) -> Cost:
    """Fill the index anew, and ask it."""
    await redis.flushall()
    fleet, index = Fleet(workers, random), PrefixIndex(redis)
    pending = [list(fleet.changes(number)) for number in range(workers)]
    write_s = await _timed(lambda: _write(index, fleet, pending))
    memory = sum([await redis.memory_usage(key, samples=0) or 0 async for key in redis.scan_iter()])
    hash_s: list[float] = []
    lookup_s: list[float] = []
    client_s, server_s = 0.0, await _processor_s(redis)
    for _ in range(lookups):
        prompt = packed(fleet.ask())
        began_s = time.process_time()
        hashes = fleet.hasher.of(prompt, _SCOPE)
        hash_s.append(time.process_time() - began_s)
        began_s = time.process_time()
        lookup_s.append(await _timed(lambda: index.longest([(fleet.holders, hashes)])))  # noqa: B023
        client_s += time.process_time() - began_s
    server_s = await _processor_s(redis) - server_s
    return Cost(
        workers,
        summary(hash_s),
        summary(lookup_s),
        write_s=round(write_s, 3),
        bytes_per_block=round(memory / BLOCKS, 1),
        client_ms=round(client_s / lookups * 1000, 3),
        server_ms=round(server_s / lookups * 1000, 3),
    )


async def _write(index: PrefixIndex, fleet: Fleet, pending: list[list[Change]]) -> None:
    for holder, changes in zip(fleet.holders, pending, strict=True):
        for start in range(0, len(changes), _CHANGES_AT_ONCE):
            if not await index.write(holder, changes[start : start + _CHANGES_AT_ONCE]):
                raise RuntimeError(f"the part of {holder} is not as it was written")


async def _timed(do: Callable[[], Awaitable[object]]) -> float:
    began_s = time.perf_counter()
    await do()
    return time.perf_counter() - began_s


async def _processor_s(redis: Redis) -> float:
    used = await redis.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


async def run(options: argparse.Namespace, url: str) -> list[Cost]:
    """All numbers of workers, one after the other."""
    redis = store.connect(url)
    try:
        random = Random(options.seed)
        return [await measure(redis, workers, options.lookups, random) for workers in options.workers]
    finally:
        await redis.aclose()


def to_table(found: list[Cost]) -> Table:
    title = f"{BLOCKS:,} blocks, prompts of {PROMPT_BLOCKS:,}; milliseconds"
    table = Table(title=title, title_justify="left")
    columns = (
        "workers",
        "lookup p50",
        "p99",
        "max",
        "client",
        "server",
        "hash p50",
        "write all s",
        "bytes/block",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for one in found:
        lookup = [f"{one.lookup[name]}" for name in ("p50", "p99", "max")]
        figures = one.client_ms, one.server_ms, one.hash["p50"], one.write_s, one.bytes_per_block
        table.add_row(str(one.workers), *lookup, *map(str, figures))
    return table


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as directory:
        server = ServerProcess.valkey(Path(directory))
        server.start()
        try:
            server.wait_ready()
            found = uvloop.run(run(options, server.url))
        finally:
            server.kill()
    Console().print(to_table(found))
    write_json(options, [asdict(one) for one in found])
    return 0


if __name__ == "__main__":
    sys.exit(main())
