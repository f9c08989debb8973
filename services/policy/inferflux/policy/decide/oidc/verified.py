"""Tokens whose signatures were checked before. No I/O, no clock."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .key_set import VerifyingKey
from .tokens import Unverified

MAX_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Verified:
    """A token that this key has signed. Its claims are to be checked with each call."""

    token: Unverified
    key: VerifyingKey
    claims: Mapping[str, Any]


class VerifiedTokens:
    """Remembers tokens by their hashes: checking a signature costs more than checking claims.

    Args:
        most: tokens that are remembered; those that were used last stay.
    """

    def __init__(self, most: int = MAX_TOKENS) -> None:
        self._most = most
        self._tokens: OrderedDict[bytes, Verified] = OrderedDict()

    def find(self, text: str) -> Verified | None:
        digest = _digest(text)
        found = self._tokens.get(digest)
        if found is not None:
            self._tokens.move_to_end(digest)
        return found

    def add(self, text: str, verified: Verified) -> None:
        self._tokens[_digest(text)] = verified
        if len(self._tokens) > self._most:
            self._tokens.popitem(last=False)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
