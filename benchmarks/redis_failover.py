"""The primary of policy's Redis is lost: how long calls are refused, and what is lost of what was settled.

    python -m benchmarks.redis_failover [--cluster] [--rounds 3] [--down-after-ms 1000] [--json FILE]

A primary, a replica and three sentinels, and one policy process. With `--cluster`, a Redis Cluster of three
primaries with a replica each; the primary is lost that has keys, limits, and the counters of the tenant.
Callers ask for Admit and Settle, one after the other, as gateways do. Meanwhile the primary is killed, or
stopped; then it is started again, and follows. Each request is settled under an id of its own, again and
again until policy takes it. In the end the tenant's counter tells how many were counted: more than were
settled is some twice, fewer is some lost.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from inferflux.common.calls import grpc_client
from inferflux.common.calls.calls import CallContext
from inferflux.common.contract.errors import InferFluxError, Unavailable
from inferflux.common.redis import store
from inferflux.common.servers.cluster_servers import ClusterServers
from inferflux.common.servers.sentinel_servers import SentinelServers
from inferflux.common.servers.servers import ServerProcess
from inferflux.gateway.policy.admission import Admission
from inferflux.policy.storage.redis.keys import INDEX
from inferflux.policy.storage.usage_store import UsageStore
from inferflux.v1 import generation_pb2, policy_pb2

from .admission import policy_process
from .command_line import add_json, make_parser, positive, write_json

Servers = SentinelServers | ClusterServers

_CALLERS = 8
_BEFORE_S, _AFTER_S = 1.0, 2.0
_PAUSE_S = 0.02
_LIMIT_S = 60.0
# In a cluster, its counters are on the server that is lost.
_TENANT = "lost"


@dataclass(slots=True)
class Round:
    """What became of one loss.

    Attributes:
        how: the primary was killed or stopped.
        refused_s: from the loss to the first call that was admitted again.
        refused: calls by the reason of their error.
        settled: requests that policy said were settled.
        counted: requests in the tenant's counter that were not there before.
    """

    how: str
    refused_s: float = 0.0
    admitted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    settled: int = 0
    counted: int = 0


class Load:
    """Callers of policy, until they are told to end."""

    def __init__(self, admission: Admission, secret: str, figures: Round) -> None:
        self._admission = admission
        self._secret = secret
        self._figures = figures
        self._is_over = False
        self.lost_at = self.back_at = 0.0
        self.is_back = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for caller in range(_CALLERS):
                group.create_task(self._admit_on(caller))
                group.create_task(self._settle_on())

    def end(self) -> None:
        self._is_over = True

    async def _admit_on(self, caller: int) -> None:
        while not self._is_over:
            began = time.perf_counter()
            try:
                await self._admission.admit("inference", CallContext(f"r{caller}", credential=self._secret))
            except InferFluxError as error:
                self._figures.refused[error.reason] += 1
            else:
                self._figures.admitted += 1
                if self.lost_at and not self.back_at and began > self.lost_at:
                    self.back_at = time.perf_counter()
                    self.is_back.set()
            await asyncio.sleep(_PAUSE_S)

    async def _settle_on(self) -> None:
        while not self._is_over:
            request = policy_pb2.SettleRequest(
                request_id=secrets.token_hex(12),
                attempt_id="a",
                tenant=_TENANT,
                key_id="key_" + "0" * 16,
                model="demo",
                outcome="stop",
                usage=generation_pb2.Usage(prompt_tokens=1, completion_tokens=1),
            )
            async with asyncio.timeout(_LIMIT_S):
                await self._settle(request)
            self._figures.settled += 1
            await asyncio.sleep(_PAUSE_S)

    async def _settle(self, request: policy_pb2.SettleRequest) -> None:
        while True:
            try:
                await self._admission.settle(request)
            except Unavailable:
                await asyncio.sleep(0.2)
            else:
                return


async def lose(how: str, servers: Servers, admission: Admission, secret: str) -> Round:
    """Lose the primary, and have it back as a replica."""
    figures = Round(how)
    index = await servers.primary_of(INDEX)
    counted_before = await _counted(servers.url)
    load = Load(admission, secret, figures)
    running = asyncio.create_task(load.run())
    await asyncio.sleep(_BEFORE_S)
    primary = servers.servers[index]
    end, back = _ways(how, primary)
    load.lost_at = time.perf_counter()
    end()
    async with asyncio.timeout(_LIMIT_S):
        await load.is_back.wait()
    await asyncio.sleep(_AFTER_S)
    back()
    await asyncio.to_thread(primary.wait_ready)
    await servers.replicates(index)
    load.end()
    await running
    figures.refused_s = load.back_at - load.lost_at
    figures.counted = await _counted(servers.url) - counted_before
    return figures


def _ways(how: str, primary: ServerProcess) -> tuple[Callable[[], None], Callable[[], None]]:
    """(what ends the primary, what has it back)."""
    return (primary.kill, primary.start) if how == "killed" else (primary.pause, primary.resume)


async def _counted(url: str) -> int:
    redis = store.connect(url)
    try:
        return (await UsageStore(redis, timeout_s=5).usage(_TENANT)).get("requests", 0)
    finally:
        await redis.aclose()


async def measure(options: argparse.Namespace) -> list[Round]:
    service_key, secret = secrets.token_urlsafe(32), f"ifx_{secrets.token_urlsafe(32)}"
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inferflux-failover-")))
        servers: Servers = SentinelServers(folder, down_after_ms=options.down_after_ms)
        if options.cluster:
            servers = ClusterServers(folder, n_replicas=1, node_timeout_ms=options.down_after_ms)
        await stack.enter_async_context(servers)
        process = policy_process(servers.url, service_key=service_key, admin_key=secret)
        address = await stack.enter_async_context(process)
        channel = await stack.enter_async_context(grpc_client.channel(address))
        admission = Admission(channel, service_key=service_key, timeout_s=2.0)
        ways = [how for how in ("killed", "stopped") for _ in range(options.rounds)]
        return [await lose(how, servers, admission, secret) for how in ways]


def show(rounds: list[Round]) -> Table:
    table = Table("primary", "refused for", "refused", "settled", "counted")
    for each in rounds:
        refused = ", ".join(f"{count} {reason}" for reason, count in each.refused.most_common())
        table.add_row(each.how, f"{each.refused_s:.1f} s", refused, f"{each.settled:,}", f"{each.counted:,}")
    return table


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=positive, default=3, help="of each kind of loss")
    parser.add_argument(
        "--down-after-ms", type=positive, default=1000, help="silence that is taken as a loss"
    )
    parser.add_argument("--cluster", action="store_true", help="a Redis Cluster instead of sentinels")
    add_json(parser)
    return parser.parse_args(arguments)


def main() -> int:
    """Run from the command line; returns the exit code: 1 if something was counted twice."""
    options = parse()
    rounds = uvloop.run(measure(options))
    Console().print(show(rounds))
    write_json(options, {"rounds": [asdict(each) for each in rounds]})
    return 1 if any(each.counted > each.settled for each in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
