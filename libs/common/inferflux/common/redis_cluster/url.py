"""What a URL of a Redis Cluster says. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from .slots import Address

SCHEMES = {"redis-cluster": "redis", "rediss-cluster": "rediss"}
_FORM = "redis-cluster://[user:password@]host:port,host:port[/0]"
_PORT = 6379


class BadClusterUrl(Exception):
    """A URL that cannot be used; the text has nothing of its passwords."""


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
    """Whether a URL names servers of a cluster."""
    return url.partition("://")[0] in SCHEMES


def parse(url: str) -> ClusterUrl:
    """Read `redis-cluster://[user:password@]host:port,host:port[/0]`, `rediss-cluster://` for TLS. Options
    are as in a URL of one server.

    Raises:
        BadClusterUrl: says which part is wrong.
    """
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    servers, _, database = place.partition("/")
    login, _, hosts = servers.rpartition("@")
    if database not in ("", "0"):
        raise BadClusterUrl(f"a cluster has the database 0 alone: {_FORM}")
    return ClusterUrl(tuple(_address(host) for host in hosts.split(",")), SCHEMES[scheme], login, query)


def _address(text: str) -> Address:
    """One server's. What was not escaped in a password may be here, so nothing of it is told."""
    text = text.strip()
    has_port = ":" in text.rpartition("]")[2]
    host, _, port = text.rpartition(":") if has_port else (text, "", str(_PORT))
    if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise BadClusterUrl(f"a server is not host:port: {_FORM}")
    return host.removeprefix("[").removesuffix("]"), int(port)
