"""The configuration of servers that know each other: what `access_files` writes for containers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from inferflux.common.servers import NATS_CLUSTER

SERVICE = "policy-store"
"""What sentinels call the servers that they watch."""

_ROUTES_PORT = 6222
# A primary that does not answer for this long is taken as lost.
_DOWN_AFTER_MS = 2000


def nats_cluster(servers: Sequence[str], password: str) -> str:
    """What each nats-server includes.

    Args:
        servers: host:port of each, as clients call it.
        password: with which they call each other.
    """
    hosts = (server.rpartition(":")[0] for server in servers)
    routes = (f'"nats://{NATS_CLUSTER}:{password}@{host}:{_ROUTES_PORT}"' for host in hosts)
    lines = [
        "cluster {",
        f"  name: {NATS_CLUSTER}",
        f'  listen: "0.0.0.0:{_ROUTES_PORT}"',
        # A server that stands still is given up by the others, too.
        "  ping_interval: 2s",
        f'  authorization {{user: {NATS_CLUSTER}, password: "{password}"}}',
        f"  routes: [{', '.join(routes)}]",
        "}",
    ]
    return "\n".join(lines) + "\n"


def valkey_server(address: str, *, primary: str, user: str, password: str) -> str:
    """Of one that sentinels watch; they rewrite it when another one becomes the primary.

    Args:
        address: host:port of it.
        primary: the same of the primary at the start.
        user: may do everything on the others.
    """
    (host, _, port), of_primary = address.rpartition(":"), primary.replace(":", " ")
    lines = [
        f"port {port}",
        "appendonly yes",
        "appendfsync everysec",
        'save ""',
        f"masteruser {user}",
        f"masterauth {password}",
        f"replica-announce-ip {host}",
        f"replica-announce-port {port}",
        # A replica that comes gets its copy at once.
        "repl-diskless-sync-delay 0",
        *([] if address == primary else [f"replicaof {of_primary}"]),
    ]
    return "\n".join(lines) + "\n"


def sentinel(address: str, *, primary: str, user: str, password: str, own_password: str) -> str:
    """Of one of three sentinels; it rewrites it.

    Args:
        address: host:port of it.
        primary: the same of the primary at the start.
        user: may do everything on the servers.
        own_password: of all sentinels.
    """
    (host, _, port), of_primary = address.rpartition(":"), primary.replace(":", " ")
    lines = [
        f"port {port}",
        f"requirepass {own_password}",
        f"sentinel sentinel-pass {own_password}",
        # Containers get other addresses when they start again.
        "sentinel resolve-hostnames yes",
        "sentinel announce-hostnames yes",
        f"sentinel announce-ip {host}",
        f"sentinel announce-port {port}",
        f"sentinel monitor {SERVICE} {of_primary} 2",
        f"sentinel auth-user {SERVICE} {user}",
        f"sentinel auth-pass {SERVICE} {password}",
        f"sentinel down-after-milliseconds {SERVICE} {_DOWN_AFTER_MS}",
        # A sentinel that was not elected waits for twice this long before it tries again.
        f"sentinel failover-timeout {SERVICE} {2 * _DOWN_AFTER_MS}",
    ]
    return "\n".join(lines) + "\n"
