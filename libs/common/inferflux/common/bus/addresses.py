"""The addresses of nats-servers."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from inferflux.common.contract.errors import InvalidArgument


def parse_servers(url: str) -> list[str]:
    """The servers of a comma-separated list, each `nats://host:port` or `tls://...`, the scheme optional.

    Raises:
        InvalidArgument: one of them is no address.
    """
    servers = [part.strip() for part in url.split(",") if part.strip()]
    for server in servers or [""]:
        try:
            parts = urlsplit(server if "://" in server else f"nats://{server}")
            is_address = parts.scheme in ("nats", "tls") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address or any(character.isspace() for character in server):
            raise InvalidArgument(_refusal(server, url), field="INFERFLUX_NATS_URL")
    return servers


def without_password(url: str) -> str:
    """The same, without users and passwords: for logs and errors."""
    return re.sub(r"(^|//|,)[^/,]*@", r"\1", url)


def _refusal(server: str, url: str) -> str:
    if "@" not in url:
        return f"INFERFLUX_NATS_URL: {server!r} is not an address like nats://127.0.0.1:4222"
    # Each part may be one of a password.
    return (
        "INFERFLUX_NATS_URL: an address is not like nats://user:password@127.0.0.1:4222. A user and a "
        "password are taken as they are written, and / ? # , cannot be in them"
    )
