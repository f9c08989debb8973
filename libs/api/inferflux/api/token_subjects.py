"""Where the tokens of a request are published on NATS."""

from __future__ import annotations

import re

TOKENS_PREFIX = "inferflux.v1.tokens."
# The JetStream stream that keeps them for some minutes.
TOKENS_STREAM = "INFERFLUX_TOKENS"

_SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_safe_token(text: str) -> bool:
    """Whether `text` can stand in a subject as it is: 1-64 of A-Z a-z 0-9 _ -."""
    return _SAFE.fullmatch(text) is not None


def tokens(tenant: str, request_id: str) -> str:
    """The subject of a request's token chunks."""
    return f"{TOKENS_PREFIX}{tenant}.{request_id}"
