"""Attempt ids: they tell submissions under one request id apart, and a call that is sent again from another.

The first part is drawn for each submission, so that each is counted for itself. A second part, where there is
one, is the same each time that one caller sends the same under the same idempotency key (pure but for the
drawing).
"""

from __future__ import annotations

import hashlib
import secrets

_BYTES = 8


def new(*, caller: str = "", idempotency_key: str = "", asked: bytes = b"") -> str:
    """The id of a submission.

    Args:
        caller: whose it is: no other caller's is the same, whatever its key.
        idempotency_key: what the caller sends along each time it sends the call; "" for none.
        asked: what the call asks for: under the same key, something else is another call.
    """
    drawn = secrets.token_hex(_BYTES)
    if not idempotency_key:
        return drawn
    digest = hashlib.sha256()
    for part in (caller.encode(), idempotency_key.encode(), asked):
        digest.update(len(part).to_bytes(_BYTES) + part)
    return f"{drawn}-{digest.hexdigest()[: 2 * _BYTES]}"


def is_same(one: str, other: str) -> bool:
    """True if two submissions under one request id are the same call."""
    calls = one.partition("-")[2], other.partition("-")[2]
    return one == other or (calls[0] != "" and calls[0] == calls[1])


def may_be_sent_again(attempt: str) -> bool:
    """True if the call would be known again."""
    return "-" in attempt
