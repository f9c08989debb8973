"""The configuration of servers that know each other: what `access_files` writes for containers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

SERVICE = "policy-store"
"""Name under which sentinels watch the servers."""
_NATS_CLUSTER = "inferflux"
_ROUTES_PORT = 6222
# Of three sentinels.
_QUORUM = 2


@dataclass(frozen=True, slots=True)
class Watched:
    """Servers and their sentinels.

    Attributes:
        primary: host and port of the primary at the start.
        password: with which servers call each other, and sentinels the servers.
        of_sentinels: the password of the sentinels.
        user: as whom; empty: `password` is that of `requirepass`.
        down_after_ms: a primary that does not answer for this long is taken as lost.
    """

    primary: tuple[str, int]
    password: str = field(repr=False)
    of_sentinels: str = field(repr=False)
    user: str = ""
    down_after_ms: int = 2000


def nats_cluster(servers: Sequence[str], password: str) -> str:
    """Cluster configuration that each nats-server includes.

    Args:
        servers: host:port of each, as clients call it.
        password: with which they call each other.
    """
    routes = [f"{_parts(server)[0]}:{_ROUTES_PORT}" for server in servers]
    return "\n".join(nats_cluster_lines(f"0.0.0.0:{_ROUTES_PORT}", routes, password)) + "\n"


def nats_cluster_lines(listen: str, others: Iterable[str], password: str) -> list[str]:
    """Configuration lines by which a nats-server and the others of its cluster find each other.

    Args:
        listen: where the others call it, host:port.
        others: where it calls them; itself may be among them.
        password: with which they call.
    """
    routes = (f'"nats://{_NATS_CLUSTER}:{password}@{other}"' for other in others)
    return [
        "cluster {",
        f"  name: {_NATS_CLUSTER}",
        f'  listen: "{listen}"',
        # A server that stands still is given up by the others, too.
        "  ping_interval: 2s",
        f'  authorization {{user: {_NATS_CLUSTER}, password: "{password}"}}',
        f"  routes: [{', '.join(routes)}]",
        "}",
    ]


def watched(primary: str, *, user: str, password: str, of_sentinels: str) -> Watched:
    """Settings by which Redis servers and sentinels find each other.

    Args:
        primary: host:port of the primary at the start.
        user: may do everything on the servers.
    """
    return Watched(_parts(primary), password, of_sentinels, user)


def server_lines(told: Watched, own: tuple[str, int]) -> list[str]:
    """Configuration lines of a server. The server rewrites them when another one becomes the primary.

    Args:
        own: its host and port.
    """
    host, port = told.primary
    return [
        *([f"masteruser {told.user}"] if told.user else []),
        f'masterauth "{told.password}"',
        # A replica that comes gets its copy at once.
        "repl-diskless-sync-delay 0",
        *([] if own == told.primary else [f"replicaof {host} {port}"]),
    ]


def sentinel_lines(told: Watched) -> list[str]:
    """Configuration lines of a sentinel. The sentinel rewrites them."""
    host, port = told.primary
    down_after_ms = told.down_after_ms
    return [
        f"requirepass {told.of_sentinels}",
        f"sentinel sentinel-pass {told.of_sentinels}",
        f"sentinel monitor {SERVICE} {host} {port} {_QUORUM}",
        *([f"sentinel auth-user {SERVICE} {told.user}"] if told.user else []),
        f"sentinel auth-pass {SERVICE} {told.password}",
        f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}",
        # A sentinel that was not elected waits for twice this long before it tries again.
        f"sentinel failover-timeout {SERVICE} {2 * down_after_ms}",
    ]


def valkey_server(address: str, told: Watched) -> str:
    """Configuration of a valkey-server that sentinels watch; they rewrite it when the primary changes.

    Args:
        address: host:port of it.
    """
    host, port = _parts(address)
    lines = [
        f"port {port}",
        "appendonly yes",
        "appendfsync everysec",
        'save ""',
        f"replica-announce-ip {host}",
        f"replica-announce-port {port}",
        *server_lines(told, (host, port)),
    ]
    return "\n".join(lines) + "\n"


def sentinel(address: str, told: Watched) -> str:
    """Configuration of one of three sentinels; the sentinel rewrites it.

    Args:
        address: host:port of it.
    """
    host, port = _parts(address)
    lines = [
        f"port {port}",
        # Containers get other addresses when they start again.
        "sentinel resolve-hostnames yes",
        "sentinel announce-hostnames yes",
        f"sentinel announce-ip {host}",
        f"sentinel announce-port {port}",
        *sentinel_lines(told),
    ]
    return "\n".join(lines) + "\n"


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
