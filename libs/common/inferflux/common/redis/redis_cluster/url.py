"""Parsing of a Redis Cluster's URL. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferflux.common.redis.redis_url import OF_CLUSTER, BadRedisUrl, hosts_and_ports

from .slots import Address

_FORM = "redis-cluster://[user:password@]host:port,host:port[/0]"
_PORT = 6379


@dataclass(frozen=True, slots=True)
class ClusterUrl:
    """The servers that are asked first, and how each of the cluster is called.

    Attributes:
        seeds: some servers of the cluster: they tell of the others.
    """

    seeds: tuple[Address, ...]
    _scheme: str
    _login: str = field(repr=False)
    _query: str = field(repr=False)

    def of_server(self, address: Address) -> str:
        """The URL of one server."""
        host, port = address
        host = f"[{host}]" if ":" in host else host
        login = f"{self._login}@" if self._login else ""
        return f"{self._scheme}://{login}{host}:{port}/0{'?' if self._query else ''}{self._query}"


def is_of_cluster(url: str) -> bool:
    """True if a URL names servers of a cluster."""
    return url.partition("://")[0] in OF_CLUSTER


def parse(url: str) -> ClusterUrl:
    """Read `redis-cluster://[user:password@]host:port,host:port[/0]`, `rediss-cluster://` for TLS. Options
    are as in a URL of one server.

    Raises:
        BadRedisUrl: says which part is wrong.
    """
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    servers, _, database = place.partition("/")
    login, _, hosts = servers.rpartition("@")
    if database not in ("", "0"):
        raise BadRedisUrl(f"a cluster has the database 0 alone: {_FORM}")
    seeds = hosts_and_ports(hosts, _PORT, what="a server", form=_FORM)
    return ClusterUrl(seeds, scheme.removesuffix("-cluster"), login, query)
