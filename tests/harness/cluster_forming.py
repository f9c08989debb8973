"""Makes servers that run, each by itself, a Redis Cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, cast

import redis.asyncio

from inferflux.common.redis.redis_cluster.slots import N_SLOTS

_LIMIT_S = 30.0
_POLL_S = 0.05


class Member(NamedTuple):
    """A server, and where the others of its cluster call it."""

    host: str
    port: int
    bus_port: int


async def form(servers: Sequence[Member], *, n_primaries: int, **login: str) -> None:
    """Return when the cluster serves all slots and every replica follows its primary.

    Args:
        servers: the primaries, then their replicas, in the order of the primaries. All are empty.
        login: `username` and `password` of one who may do everything.

    Raises:
        TimeoutError: that takes too long.
    """
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(redis.asyncio.Redis(host=host, port=port, **cast("Any", login)))
            for host, port, _ in servers
        ]
        async with asyncio.timeout(_LIMIT_S):
            await _form(servers, clients, n_primaries)


async def _form(servers: Sequence[Member], clients: Sequence[redis.asyncio.Redis], n_primaries: int) -> None:
    await _divide_slots(clients[:n_primaries])
    for member in servers[1:]:
        await _say(clients[0], "MEET", *member)
    await _all_become(clients, lambda client: _knows(client, len(clients)))
    for index, replica in enumerate(clients[n_primaries:]):
        primary = await _say(clients[index % n_primaries], "MYID")
        await _say(replica, "REPLICATE", primary)
    await _all_become(clients, _is_well)


async def _divide_slots(primaries: Sequence[redis.asyncio.Redis]) -> None:
    n = len(primaries)
    for index, client in enumerate(primaries):
        # Equal epochs would be told apart later, one after the other.
        await _say(client, "SET-CONFIG-EPOCH", index + 1)
        first, end = (N_SLOTS * each // n for each in (index, index + 1))
        await _say(client, "ADDSLOTSRANGE", first, end - 1)


async def _all_become(
    clients: Sequence[redis.asyncio.Redis], is_so: Callable[[redis.asyncio.Redis], Awaitable[bool]]
) -> None:
    for client in clients:
        while not await is_so(client):  # of another process
            await asyncio.sleep(_POLL_S)


async def _knows(client: redis.asyncio.Redis, n_servers: int) -> bool:
    lines = cast("bytes", await _say(client, "NODES")).decode().splitlines()
    flags = [line.split(" ")[2].split(",") for line in lines]
    return len(flags) == n_servers and not any({"handshake", "noaddr", "fail", "fail?"} & {*f} for f in flags)


async def _is_well(client: redis.asyncio.Redis) -> bool:
    state = await _info(client)
    replication = await client.info("replication")
    is_complete = (state["cluster_state"], state["cluster_slots_ok"]) == ("ok", str(N_SLOTS))
    return is_complete and replication.get("master_link_status", "up") == "up"


async def _info(client: redis.asyncio.Redis) -> dict[str, str]:
    lines = cast("bytes", await _say(client, "INFO")).decode().splitlines()
    return dict(cast("tuple[str, str]", tuple(line.split(":", 1))) for line in lines if ":" in line)


async def _say(client: redis.asyncio.Redis, *words: object) -> object:
    # As words of their own: the library would make something else of the answers.
    return await client.execute_command("CLUSTER", *words)  # type: ignore[no-untyped-call]
