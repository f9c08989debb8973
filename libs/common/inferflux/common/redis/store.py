"""The Redis (or Valkey) client, and its errors in our terms."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import redis.asyncio
import redis.exceptions
from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.process.tls import ClientTls, TlsFiles
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection
from redis.backoff import ExponentialWithJitterBackoff

from . import redis_url, sentinel
from .redis_cluster import url as cluster
from .redis_cluster.client import ClusterRedis

POOL_SIZE = 64
WHOLE_SLOT = "whole-slot"
"""After a prefix, a name that nothing is ever stored under. A script that touches keys whose names it finds
out itself gets it beside another key. So a cluster refuses the script while it moves their slot key by key:
otherwise the script would run where some of the keys are not any more."""

_CONNECT_TIMEOUT_S = 2.0
_ANSWER_TIMEOUT_S = 2.0
# A server that is there and cannot serve: a full disk, too few replicas, a script that does not end. Or one
# that a URL should not name: without the database, a sentinel. The client has no classes for these.
_REFUSALS = (
    *("MISCONF", "NOREPLICAS", "BUSY "),
    *("DB index is out of range", "SELECT is not allowed in cluster mode", "unknown command"),
)
# What an optional use of Redis goes on without: it is away, too slow, or answers with an error.
FAILURES = (redis.exceptions.RedisError, OSError, TimeoutError)
# How uvloop's RuntimeError for a write to a closed transport ends.
_CLOSED_TRANSPORT = "the handler is closed"


class _Connection(AbstractConnection):
    """A connection whose writes after a reset by its peer fail as the client expects of a lost connection.
    It loses no cancellation.

    A reset closes the transport before the client reads again. asyncio then raises ConnectionResetError,
    uvloop a bare RuntimeError, for which the client neither retries nor has a class.

    The client writes within `asyncio.wait_for`. Before Python 3.12 that loses a cancellation that comes as
    the write ends: a task that was to end would go on for ever.
    """

    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        task = asyncio.current_task()
        cancelled_before = task.cancelling() if task else 0
        try:
            await super().send_packed_command(command, check_health)
        except RuntimeError as error:
            if not str(error).endswith(_CLOSED_TRANSPORT):
                raise
            raise redis.exceptions.ConnectionError("the connection was reset") from error
        if task and task.cancelling() > cancelled_before:
            await self.disconnect(nowait=True)  # the answer will not be read
            raise asyncio.CancelledError


class _TlsConnection(SSLConnection):
    """Takes its certificates from files that may be renewed."""

    def __init__(self, *, tls: ClientTls, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._tls = tls

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "ssl": self._tls.context()}


def connect(url: str, *, tls: TlsFiles | None = None) -> redis.asyncio.Redis:
    """A client with a bounded pool and bounded waits. It connects on its first command.

    Args:
        url: of one server, of sentinels that know which server is the primary (`sentinel.parse`), or of
            servers of a cluster (`cluster.parse`).
        tls: how to speak it with servers at a URL of `rediss://` that has no options of its own for that.

    Raises:
        InvalidArgument: the URL is not one, or a file of `tls` cannot be used.
    """
    try:
        redis_url.check(url)
        if cluster.is_of_cluster(url):
            target = cluster.parse(url)
            return ClusterRedis(target.seeds, lambda address: _one(target.of_server(address), tls))
        if sentinel.is_of_sentinels(url):
            return _over(_pool_of_sentinels(sentinel.parse(url), tls))
        return _one(url, tls)
    except redis_url.BadRedisUrl as error:
        raise _refused(str(error)) from None
    except (ValueError, TypeError, redis.exceptions.RedisError) as error:
        # Scheme, addresses and names of options are right. What is left are values of options.
        raise _refused(f"a value of an option: {error}") from None


async def has_replicas(client: redis.asyncio.Redis, key: str) -> bool:
    """True if the server that has a key may be replaced by a replica: one that sentinels watch, or of a
    cluster.

    Raises:
        redis.exceptions.ConnectionError: no server of the cluster answers.
    """
    if isinstance(client, ClusterRedis):
        return await client.has_replicas(key)
    return isinstance(client.connection_pool, sentinel.SentinelPool)


def _one(url: str, tls: TlsFiles | None) -> redis.asyncio.Redis:
    return _over(_pool_of_one(url, tls))


def _over(pool: redis.asyncio.BlockingConnectionPool) -> redis.asyncio.Redis:
    if issubclass(pool.connection_class, Connection):
        pool.connection_kwargs["socket_keepalive"] = True
    pool.connection_class(**pool.connection_kwargs)  # refuses options that it does not know
    return redis.asyncio.Redis.from_pool(pool)


def _pool_of_one(url: str, tls: TlsFiles | None) -> redis.asyncio.BlockingConnectionPool:
    pool = redis.asyncio.BlockingConnectionPool.from_url(url, **_arguments())
    # The URL has chosen between TCP, TLS and a Unix socket, and may hold any option.
    bases: tuple[type[AbstractConnection], ...] = (_Connection, pool.connection_class)
    has_own_options = any(name.startswith("ssl_") for name in pool.connection_kwargs)
    if issubclass(pool.connection_class, SSLConnection) and not has_own_options:
        bases = (_TlsConnection, *bases)
        pool.connection_kwargs["tls"] = ClientTls(tls or TlsFiles())
    pool.connection_class = type("Connection", bases, {})
    return pool


def _pool_of_sentinels(target: sentinel.SentinelUrl, tls: TlsFiles | None) -> sentinel.SentinelPool:
    own = (_TlsConnection,) if target.has_tls and "ssl_" not in target.server_url else ()
    managed = SentinelManagedSSLConnection if target.has_tls else SentinelManagedConnection
    plain = SSLConnection if target.has_tls else Connection
    return sentinel.open_pool(
        target,
        server_class=type("Connection", (_Connection, *own, managed), {}),
        sentinel_class=type("Connection", (_Connection, *own, plain), {}),
        tls={"tls": ClientTls(tls or TlsFiles())} if own else {},
        **_arguments(),
    )


def _arguments() -> dict[str, Any]:
    """Arguments of a pool and of its connections."""
    return {
        "max_connections": POOL_SIZE,
        "timeout": _ANSWER_TIMEOUT_S,
        "socket_connect_timeout": _CONNECT_TIMEOUT_S,
        "socket_timeout": _ANSWER_TIMEOUT_S,
        "health_check_interval": 15,
        # One retry: a connection that a restarted server had closed is replaced unseen.
        "retry": Retry(ExponentialWithJitterBackoff(cap=0.1, base=0.01), 1),
    }


def _refused(why: str) -> InvalidArgument:
    return InvalidArgument(f"INFERFLUX_REDIS_URL: {why}", field="INFERFLUX_REDIS_URL")


@contextmanager
def store_errors() -> Iterator[None]:
    """Raise Unavailable for errors that mean "the store is away".

    Any other Redis error (a wrong type, a script that fails) is a defect of ours and passes as it is.
    """
    try:
        yield
    except (
        redis.exceptions.ConnectionError,
        redis.exceptions.TimeoutError,
        redis.exceptions.ReadOnlyError,
        redis.exceptions.OutOfMemoryError,
        redis.exceptions.ClusterDownError,  # and MasterDownError, its child
        redis.exceptions.MovedError,  # a URL of one server names one of a cluster
        redis.exceptions.TryAgainError,
        redis.exceptions.NoPermissionError,
        TimeoutError,
        OSError,
    ) as error:
        raise _away(error) from error
    except redis.exceptions.ResponseError as error:
        if not str(error).startswith(_REFUSALS):
            raise
        raise _away(error) from error


def _away(error: Exception) -> Unavailable:
    return Unavailable("the policy store does not answer", reason="STORE_UNAVAILABLE", detail=str(error))
