"""Configuration of Redis servers and of the sentinels that watch them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SERVICE = "policy-store"
"""Name under which sentinels watch the servers."""

N_SENTINELS, QUORUM = 3, 2


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


def server_lines(watched: Watched, own: tuple[str, int]) -> list[str]:
    """Configuration lines of a server. The server rewrites them when another one becomes the primary.

    Args:
        own: its host and port.
    """
    host, port = watched.primary
    return [
        *([f"masteruser {watched.user}"] if watched.user else []),
        f'masterauth "{watched.password}"',
        # A replica that comes gets its copy at once.
        "repl-diskless-sync-delay 0",
        *([] if own == watched.primary else [f"replicaof {host} {port}"]),
    ]


def sentinel_lines(watched: Watched) -> list[str]:
    """Configuration lines of a sentinel. The sentinel rewrites them."""
    host, port = watched.primary
    down_after_ms = watched.down_after_ms
    return [
        f"requirepass {watched.of_sentinels}",
        f"sentinel sentinel-pass {watched.of_sentinels}",
        f"sentinel monitor {SERVICE} {host} {port} {QUORUM}",
        *([f"sentinel auth-user {SERVICE} {watched.user}"] if watched.user else []),
        f"sentinel auth-pass {SERVICE} {watched.password}",
        f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}",
        # A sentinel that was not elected waits for twice this long before it tries again.
        f"sentinel failover-timeout {SERVICE} {2 * down_after_ms}",
    ]


def last_primary(sentinels: Sequence[Path], servers: Mapping[str, Path]) -> str | None:
    """Name of the last primary before all servers ended, by the sentinel that was told last.

    Args:
        sentinels: the configuration of each, as it rewrote it.
        servers: that of each server, by name.

    Returns:
        None: no sentinel has run, or none knows one of these servers.
    """
    told: list[tuple[int, str]] = []
    for path in sentinels:
        text = path.read_text() if path.exists() else ""
        monitored = re.search(rf"^sentinel monitor {SERVICE} \S+ (\d+)", text, re.MULTILINE)
        if monitored is not None:
            epoch = re.search(rf"^sentinel config-epoch {SERVICE} (\d+)", text, re.MULTILINE)
            told.append((int(epoch[1]) if epoch else 0, monitored[1]))
    port = max(told)[1] if told else ""
    for name, path in servers.items():
        own = re.search(r"^port (\d+)", path.read_text() if path.exists() else "", re.MULTILINE)
        if own and own[1] == port:
            return name
    return None
