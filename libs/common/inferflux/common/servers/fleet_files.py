"""The configuration of servers that know each other: what `access_files` writes for containers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .servers import nats_cluster_lines
from .watched_servers import Watched, sentinel_lines, server_lines

_ROUTES_PORT = 6222


def nats_cluster(servers: Sequence[str], password: str) -> str:
    """Cluster configuration that each nats-server includes.

    Args:
        servers: host:port of each, as clients call it.
        password: with which they call each other.
    """
    routes = [f"{_parts(server)[0]}:{_ROUTES_PORT}" for server in servers]
    return "\n".join(nats_cluster_lines(f"0.0.0.0:{_ROUTES_PORT}", routes, password)) + "\n"


def watched(primary: str, *, user: str, password: str, of_sentinels: str) -> Watched:
    """Settings by which Redis servers and sentinels find each other.

    Args:
        primary: host:port of the primary at the start.
        user: may do everything on the servers.
    """
    return Watched(_parts(primary), password, of_sentinels, user)


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
