"""NATS subjects of a request's tokens, and of the replies to a reader."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

TOKENS_PREFIX = "inferflux.v1.tokens."
# The JetStream stream that keeps them for some minutes.
TOKENS_STREAM = "INFERFLUX_TOKENS"

_SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_safe_token(text: str) -> bool:
    """True if `text` can stand in a subject as it is: 1-64 of A-Z a-z 0-9 _ -."""
    return _SAFE.fullmatch(text) is not None


def tokens(tenant: str, request_id: str) -> str:
    """The subject of a request's token chunks."""
    return f"{TOKENS_PREFIX}{tenant}.{request_id}"


def inbox_prefix(servers: str | Sequence[str]) -> str:
    """Below which subject the replies to a client come in.

    Each user of NATS has a prefix of its own, `_INBOX_<user>`, and may read no other's replies. Without a
    user it is NATS's own, `_INBOX`.

    Args:
        servers: as `nats://user:password@host:port`, several as a list or with commas.
    """
    listed = servers.split(",") if isinstance(servers, str) else servers
    for server in listed:
        address = server.strip()
        user = urlsplit(address if "://" in address else f"nats://{address}").username
        if user:
            return inbox_prefix_of(unquote(user))
    return "_INBOX"


def inbox_prefix_of(user: str) -> str:
    """Below which subject the replies to a user come in."""
    return f"_INBOX_{re.sub(r'[^A-Za-z0-9_-]', '_', user)}"
