"""Redis behind sentinels: which servers a URL names, and connections that follow the primary.

Sentinels watch a primary and its replicas, and make a replica the primary when theirs is lost. Each new
connection asks one of them which server that is.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlencode

import redis.asyncio
import redis.exceptions
from redis.asyncio.connection import AbstractConnection, BlockingConnectionPool, ConnectionPool, parse_url
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel

from .redis_url import OF_SENTINELS, BadRedisUrl, hosts_and_ports

_FORM = "redis+sentinel://[user:password@]host:port,host:port/service[/db]"
_PORT = 26379
# A sentinel that does not answer is passed by for the next one.
_ASK_LIMIT_S = 0.3


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """Parsed URL of sentinels.

    Attributes:
        sentinels: host and port of each.
        service: what they call the servers that they watch.
        server_url: of the servers, but for host and port: user, password, database and options.
        login: `username` and `password` for the sentinels themselves, those that are given.
        has_tls: whether servers and sentinels speak TLS.
    """

    sentinels: tuple[tuple[str, int], ...]
    service: str
    server_url: str = field(repr=False)
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    has_tls: bool = False


def is_of_sentinels(url: str) -> bool:
    """True if a URL names sentinels."""
    return url.partition("://")[0] in OF_SENTINELS


def parse(url: str) -> SentinelUrl:
    """Read `redis+sentinel://[user:password@]host:port,host:port/service[/db]`, `rediss+sentinel://` for TLS.

    User and password are of the servers. Those of the sentinels are the options `sentinel_username` and
    `sentinel_password`; other options are as in a URL of one server.

    Raises:
        BadRedisUrl: says which part is wrong.
    """
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    servers, _, path = place.partition("/")
    login, _, hosts = servers.rpartition("@")
    service, _, database = path.removesuffix("/").partition("/")
    if not service:
        raise BadRedisUrl(f"the name of the service that the sentinels watch is missing: {_FORM}")
    if database and not (database.isascii() and database.isdecimal()):
        raise BadRedisUrl(f"after the service comes the number of a database: {_FORM}")
    options = parse_qsl(query, keep_blank_values=True)
    own = {name: value for name, value in options if name.startswith("sentinel_")}
    known = {"sentinel_username": "username", "sentinel_password": "password"}
    scheme = scheme.removesuffix("+sentinel")
    others = urlencode([(name, value) for name, value in options if name not in own])
    return SentinelUrl(
        sentinels=hosts_and_ports(hosts, _PORT, what="a sentinel", form=_FORM),
        service=unquote(service),
        server_url=f"{scheme}://{login}{'@' if login else ''}primary/{database or 0}?{others}",
        login={known[name]: value for name, value in own.items()},
        has_tls=scheme == "rediss",
    )


class _Asked(redis.asyncio.Redis):
    """A sentinel that is asked for the primary.

    Attributes:
        failed: why its last answer told nothing; empty where it did.
    """

    failed = ""

    async def sentinel_masters(self, *arguments: Any, **options: Any) -> Any:
        """Primaries that the sentinel watches.

        Raises:
            redis.exceptions.ConnectionError, redis.exceptions.TimeoutError: it does not tell. The next one is
                asked, also where this one is no sentinel.
        """
        try:
            watched = await super().sentinel_masters(*arguments, **options)
        except redis.exceptions.RedisError as error:
            self.failed = str(error)
            if isinstance(error, redis.exceptions.ResponseError):
                raise redis.exceptions.ConnectionError(self.failed) from error
            raise
        self.failed = ""
        return watched


class SentinelPool(BlockingConnectionPool):
    """A bounded pool whose connections lead to the primary, as `SentinelManagedConnection` asks for it.

    Args:
        target: what the URL says.
        sentinel_pools: of each sentinel.
        arguments: of a `BlockingConnectionPool`.
    """

    is_master = True
    check_connection = False

    def __init__(
        self, target: SentinelUrl, sentinel_pools: Iterable[ConnectionPool], **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._service = target.service
        self._sentinels = Sentinel(())  # type: ignore[no-untyped-call]
        self._asked = [cast("_Asked", _Asked.from_pool(pool)) for pool in sentinel_pools]
        self._sentinels.sentinels = [*self._asked]
        self._primary: tuple[str, int] | None = None
        self.connection_kwargs["connection_pool"] = weakref.proxy(self)

    async def get_master_address(self) -> tuple[str, int]:
        """Address of the primary. When it is another one than before, idle connections are closed.

        Raises:
            redis.exceptions.ConnectionError: no sentinel answers, or none knows one.
        """
        try:
            host, port = await self._sentinels.discover_master(self._service)
        except MasterNotFoundError:  # its text has what clients were made with
            raise redis.exceptions.ConnectionError(self._why_none()) from None
        primary = (host, int(port))
        if self._primary not in (None, primary):
            await self.disconnect(inuse_connections=False)
        self._primary = primary
        return primary

    def _why_none(self) -> str:
        """Why no sentinel has told the primary."""
        failures = [sentinel.failed for sentinel in self._asked]
        said = "; ".join(sorted({failure for failure in failures if failure}))
        if all(failures):
            return f"no sentinel answers: {said}"
        unknown = f"no sentinel that answers knows a primary of {self._service!r} that lives"
        return f"{unknown}; others do not answer: {said}" if said else unknown

    async def release(self, connection: Any) -> None:
        """Take a connection back; one to a server that is not the primary any more is closed."""
        if self._primary is not None and (connection.host, connection.port) != self._primary:
            connection.mark_for_reconnect()
        await super().release(connection)

    async def aclose(self) -> None:
        await super().aclose()
        await self._sentinels.aclose()


def open_pool(
    target: SentinelUrl,
    *,
    server_class: type[AbstractConnection],
    sentinel_class: type[AbstractConnection],
    tls: Mapping[str, Any],
    **arguments: Any,
) -> SentinelPool:
    """A pool of connections to the primary. Nothing is connected yet.

    Args:
        server_class: connects to servers: a `SentinelManagedConnection`.
        tls: arguments of both classes.
        arguments: of the pool, and of connections to servers.

    Raises:
        ValueError: the URL has a wrong option.
    """
    said: dict[str, Any] = {**parse_url(target.server_url)}
    for name in ("host", "port", "connection_class"):
        said.pop(name, None)
    of_tls = {**tls, **{name: value for name, value in said.items() if name.startswith("ssl_")}}
    limits = {"socket_connect_timeout": _ASK_LIMIT_S, "socket_timeout": _ASK_LIMIT_S}
    asking = {"connection_class": sentinel_class, **limits, **target.login, **of_tls}
    pools = [ConnectionPool(host=host, port=port, **asking) for host, port in target.sentinels]
    return SentinelPool(target, pools, **{**arguments, "connection_class": server_class, **said, **of_tls})
