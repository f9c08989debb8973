"""Authentication of services to policy: a secret that all of them share, or, with mutual TLS, a
certificate. No I/O.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Sequence

from inferflux.common.contract.errors import InvalidArgument, Unauthenticated

SERVICE = "service"
"""Stands in a method's rule where a scope does: services alone call it."""

VARIABLE = "INFERFLUX_SERVICE_KEY"
MIN_LENGTH = 16

# What gRPC metadata can carry, without the comma that separates keys.
_KEY = re.compile(r"[!-+\--~]{16,256}")


def parse_service_keys(text: str, *, needs_one: bool = True) -> tuple[str, ...]:
    """The keys of a setting, comma-separated: the first is sent, each is accepted, so that keys can be
    changed one service after another.

    Args:
        needs_one: False where certificates can prove what a key proves.

    Raises:
        InvalidArgument: there is none and one is needed, or there is one that cannot be used.
    """
    keys = tuple(part.strip() for part in text.split(",") if part.strip())
    if not keys and needs_one:
        message = (
            f"{VARIABLE} must be set: a secret of {MIN_LENGTH} characters or more, the same for all services"
        )
        raise InvalidArgument(message, field=VARIABLE)
    if any(_KEY.fullmatch(key) is None for key in keys):
        message = f"{VARIABLE}: a key is {MIN_LENGTH} to 256 printable ASCII characters without blanks"
        raise InvalidArgument(message, field=VARIABLE)
    return keys


class ServiceKeys:
    """Recognises services.

    Args:
        keys: those that are accepted.
        certificates: common names: who shows a verified certificate of one of them needs no key.
    """

    def __init__(self, keys: Sequence[str], *, certificates: Collection[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys]
        self._certificates = frozenset(certificates) - {""}

    def check(self, given: str, *, certificate: str = "") -> None:
        """Let a service pass.

        Args:
            given: the key that it sent.
            certificate: the common name of the certificate that it has shown; "" without one.

        Raises:
            Unauthenticated: it is none of the keys, and the name is none of ours. How long that takes tells
                nothing about the keys.
        """
        if certificate in self._certificates:
            return
        if not given:
            raise Unauthenticated("services alone may call this", reason="NO_SERVICE_KEY")
        digest = _digest(given)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise Unauthenticated("this service key is wrong", reason="WRONG_SERVICE_KEY")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
