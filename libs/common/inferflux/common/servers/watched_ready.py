"""Readiness of Redis servers and their sentinels for a failover."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast

import redis.asyncio

from .watched_servers import SERVICE, Watched

_POLL_S = 0.05


async def until_followed(
    watched: Watched, servers: Iterable[tuple[str, int]], *, limit_s: float = 30.0
) -> None:
    """Return when each of these servers has what the primary has, or is it.

    Raises:
        TimeoutError: that takes too long.
    """
    login = {"password": watched.password, "username": watched.user or None}
    async with asyncio.timeout(limit_s):
        for host, port in servers:
            async with redis.asyncio.Redis(host=host, port=port, **cast("Any", login)) as client:
                while (await client.info("replication")).get("master_link_status", "up") != "up":  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)


async def until_watched(
    watched: Watched, sentinels: Sequence[tuple[str, int]], *, n_replicas: int, limit_s: float = 30.0
) -> None:
    """Return when each sentinel knows the others and all replicas: from then on a replica can take over.

    Raises:
        TimeoutError: that takes too long.
    """
    wanted = (len(sentinels) - 1, n_replicas)
    async with asyncio.timeout(limit_s):
        for host, port in sentinels:
            async with redis.asyncio.Redis(host=host, port=port, password=watched.of_sentinels) as client:
                while await _known(client) != wanted:  # noqa: ASYNC110  # of another process
                    await asyncio.sleep(_POLL_S)


async def primary_port(watched: Watched, sentinel: tuple[str, int]) -> int:
    """Port of the primary, as a sentinel reports it."""
    host, port = sentinel
    async with redis.asyncio.Redis(host=host, port=port, password=watched.of_sentinels) as client:
        masters: Any = await client.sentinel_masters()
    return int(masters[SERVICE]["port"])


async def _known(sentinel: redis.asyncio.Redis) -> tuple[int, int]:
    """Number of other sentinels and number of replicas that a sentinel knows."""
    masters: Any = await sentinel.sentinel_masters()
    state = masters[SERVICE]
    return int(state["num-other-sentinels"]), int(state["num-slaves"])
