"""What Redis or Valkey says to the user of a URL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, TypeVar

import redis.asyncio
import redis.exceptions

from inferflux.cli.doctor.seen import Failure, Redis
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process.tls import TlsFiles
from inferflux.common.redis import store
from inferflux.common.redis.redis_cluster import url as cluster

_ANSWER_S = 3.0
_PORT = 6379
# Keys that are never written: to delete one changes nothing, and a replica refuses it. Each kind of user may
# write one of them.
_NO_KEYS = ("inferflux:{prefixes}:doctor", "inferflux:{answers}:doctor", "inferflux:doctor")
_T = TypeVar("_T")


async def look(url: str, tls: TlsFiles, *, keeps_policy: bool) -> Redis:
    """Ask the server, or the one that sentinels name, in bounded time."""
    found = Redis(_address(url), keeps_policy=keeps_policy)
    try:
        client = store.connect(url, tls=tls)
        one = store.connect(_url_of_one(url), tls=tls)
    except InvalidArgument as error:
        return replace(found, failure=Failure.URL, detail=error.message)
    try:
        return await _ask(client, one, found)
    finally:
        await client.aclose()
        await one.aclose()


def _url_of_one(url: str) -> str:
    """The same; of a cluster, the URL of the first server that it names."""
    if not cluster.is_of_cluster(url):
        return url
    target = cluster.parse(url)
    return target.of_server(target.seeds[0])


async def _ask(client: redis.asyncio.Redis, one: redis.asyncio.Redis, found: Redis) -> Redis:
    """Ask the servers of the URL, and one of them what a cluster cannot be asked."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            await client.ping()
    except redis.exceptions.NoPermissionError:
        pass  # it knows this user
    except (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError) as error:
        return replace(found, failure=Failure.LOGIN, detail=str(error))
    except (TimeoutError, redis.exceptions.TimeoutError):
        return replace(found, failure=Failure.SILENT)
    except (redis.exceptions.RedisError, OSError) as error:
        return replace(found, failure=_failure_of(error), detail=str(error))
    memory = await _answer(one.info("memory"))
    clock_s, now = time.time(), await _answer(one.time())
    ahead_s = None if now is None else now[0] + now[1] / 1e6 - (clock_s + time.time()) / 2
    return replace(
        found,
        is_read_only=await _is_read_only(client),
        max_memory=None if memory is None else int(memory.get("maxmemory", 0)),
        eviction="" if memory is None else str(memory.get("maxmemory_policy", "")),
        ahead_s=ahead_s,
    )


async def _is_read_only(client: redis.asyncio.Redis) -> bool | None:
    for key in _NO_KEYS:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await client.delete(key)
        except redis.exceptions.ReadOnlyError:
            return True
        except redis.exceptions.NoPermissionError:
            continue
        except (redis.exceptions.RedisError, OSError, TimeoutError):
            return None
        return False
    return None


async def _answer(asked: Awaitable[_T] | Any) -> Any:
    """The answer; None where there is none, or this user may not ask."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await asked
    except (redis.exceptions.RedisError, OSError, TimeoutError, TypeError):
        return None


def _failure_of(error: Exception) -> Failure:
    said = str(error).lower()
    if "ssl" in said or "certificate" in said:
        return Failure.TLS
    if "wrongpass" in said or "noauth" in said or "authentication" in said or "username-password" in said:
        return Failure.LOGIN
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return Failure.REFUSED
        cause = cause.__cause__ or cause.__context__
    return Failure.UNREACHABLE


def _address(url: str) -> str:
    """Where it is, without users and passwords: a port as well, where one server is named."""
    place = url.partition("://")[2].partition("?")[0].rpartition("@")[2].partition("/")[0]
    return place if ":" in place or not place else f"{place}:{_PORT}"
