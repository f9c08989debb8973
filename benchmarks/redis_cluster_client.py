"""The client of a Redis Cluster beside the library's own: what one server, or one slot, does to all others.

    python -m benchmarks.redis_cluster_client [--seconds 4] [--callers 8] [--rounds 3] [--json FILE]

Three primaries, and callers that count with a script, one call after the other, each for a key of one of
them; a call gets 0.5 s, as policy's do. First undisturbed. Then one server stands still: counted are calls
for keys of the other two, and all errors. Then the slot of one key moves to another server and on, key by
key, again and again: counted are calls for this key.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import redis.asyncio
import redis.asyncio.cluster
import redis.exceptions
import uvloop
from rich.console import Console
from rich.table import Table

from inferflux.common.redis import store
from inferflux.common.servers.cluster_servers import PASSWORD, ClusterServers
from inferflux.common.servers.servers import LOOPBACK
from inferflux.common.servers.slot_move import SlotMove

from .command_line import add_json, make_parser, positive, write_json

KEYS = ("a", "b", "c")
_CALL_LIMIT_S = 0.5
# Between two steps of a slot's move.
_STEP_S = 0.05
_COUNT = "return redis.call('HINCRBY', KEYS[1], 'n', 1)"


@dataclass(frozen=True, slots=True)
class Row:
    """What callers saw.

    Attributes:
        cpu_us: of this process, for each call of any kind.
        longest_ms: of the calls that were answered.
        refused: calls that ended not in time, or as a client of Redis says that a server is away.
        broken: calls that ended with any other error.
        lost: calls that were answered, and that the key does not have.
    """

    client: str
    case: str
    calls: int
    cpu_us: float
    longest_ms: float
    refused: int
    broken: int
    lost: int


class Callers:
    """Count without a pause, until they are told to end."""

    def __init__(self, client: redis.asyncio.Redis, keys: Sequence[str], n: int) -> None:
        self._client = client
        self._script = client.register_script(_COUNT)
        self._keys, self._n = keys, n
        self._is_over = False
        self.answered = dict.fromkeys(keys, 0)
        self.refused = self.broken = 0
        self.longest_s = 0.0

    async def run(self, seconds: float, meanwhile: Any = None) -> None:
        tasks = [asyncio.create_task(self._call_on(key)) for key in self._keys for _ in range(self._n)]
        beside = None if meanwhile is None else asyncio.create_task(meanwhile())
        await asyncio.sleep(seconds)
        self._is_over = True
        await asyncio.gather(*tasks)
        if beside is not None:
            await beside

    async def _call_on(self, key: str) -> None:
        while not self._is_over:
            began = time.perf_counter()
            try:
                async with asyncio.timeout(_CALL_LIMIT_S):
                    await self._script([key])
            except (redis.exceptions.RedisError, OSError, TimeoutError):
                self.refused += 1
                await asyncio.sleep(0.01)
            except Exception:  # noqa: BLE001  # whatever a client raises
                self.broken += 1
                await asyncio.sleep(0.01)
            else:
                self.answered[key] += 1
                self.longest_s = max(self.longest_s, time.perf_counter() - began)


@contextlib.asynccontextmanager
async def opened(kind: str, servers: ClusterServers) -> AsyncIterator[redis.asyncio.Redis]:
    if kind == "ours":
        client = store.connect(servers.url)
    else:
        nodes = [redis.asyncio.cluster.ClusterNode(LOOPBACK, each.port) for each in servers.servers]
        made = redis.asyncio.RedisCluster(
            startup_nodes=nodes,
            password=PASSWORD,
            socket_timeout=2.0,
            socket_connect_timeout=2.0,
            max_connections=store.POOL_SIZE,
        )
        client = cast("redis.asyncio.Redis", made)
    try:
        for key in KEYS:
            await client.unlink(key)
        yield client
    finally:
        await client.aclose()


async def measured(kind: str, case: str, servers: ClusterServers, options: argparse.Namespace) -> Row:
    async with opened(kind, servers) as client:
        keys = {"one stands still": KEYS[1:], "its slot moves": KEYS[:1]}.get(case, KEYS)
        stopped = servers.servers[await servers.primary_of(KEYS[0])]
        stuck = Callers(client, KEYS[:1], options.callers)
        meanwhile = {
            "one stands still": partial(stuck.run, options.seconds),
            "its slot moves": partial(move_about, servers, options.seconds),
        }.get(case)
        for key in KEYS:  # each server has answered before
            await client.hget(key, "n")
        if case == "one stands still":
            stopped.pause()
        callers = Callers(client, keys, options.callers)
        began_s = time.process_time()
        try:
            await callers.run(options.seconds, meanwhile)
        finally:
            if case == "one stands still":
                stopped.resume()
        spent_s = time.process_time() - began_s
        counted = {key: int(cast("bytes", await client.hget(key, "n")) or 0) for key in keys}
    n_calls = sum(callers.answered.values())
    return Row(
        kind,
        case,
        n_calls,
        spent_s / max(1, n_calls) * 1e6,
        callers.longest_s * 1000,
        callers.refused,
        callers.broken + stuck.broken,
        sum(max(0, callers.answered[key] - counted[key]) for key in keys),
    )


async def move_about(servers: ClusterServers, seconds: float) -> None:
    """Move the slot of the first key from one server to the next, again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        source = await servers.primary_of(KEYS[0])
        move = SlotMove(servers, KEYS[0], source=source, target=(source + 1) % 3)
        for step in (move.begin, move.move_all, move.end):
            await step()
            await asyncio.sleep(_STEP_S)


async def measure(options: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="inferflux-cluster-") as folder:
        async with ClusterServers(Path(folder), node_timeout_ms=15_000) as servers:
            return [
                await measured(kind, case, servers, options)
                for _ in range(options.rounds)
                for case in ("undisturbed", "one stands still", "its slot moves")
                for kind in ("ours", "the library's")
            ]


def show(rows: Sequence[Row]) -> Table:
    table = Table("client", "case", "calls", "CPU", "longest", "refused", "broken", "lost")
    for row in rows:
        counts = (f"{n:,}" for n in (row.refused, row.broken, row.lost))
        times = (f"{row.cpu_us:.0f} µs", f"{row.longest_ms:.0f} ms")
        table.add_row(row.client, row.case, f"{row.calls:,}", *times, *counts)
    return table


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each case")
    parser.add_argument("--callers", type=positive, default=8, help="for each key")
    parser.add_argument("--rounds", type=positive, default=3, help="of all cases and clients in turn")
    add_json(parser)
    return parser.parse_args(arguments)


def main() -> int:
    """Run from the command line; returns the exit code."""
    options = parse()
    rows = uvloop.run(measure(options))
    Console().print(show(rows))
    write_json(options, {"rows": [asdict(row) for row in rows]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
