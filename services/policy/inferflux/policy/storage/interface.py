"""The storage of what administrators set, whichever it is."""

from __future__ import annotations

from typing import Protocol

from inferflux.policy.decide.guardrails.store import GuardrailStore
from inferflux.policy.decide.key_store import KeyStore
from inferflux.policy.decide.limits.store import RateLimitStore


class Storage(Protocol):
    """Keys, roles, limits and guardrails. Redis always has the counters of limits and usage."""

    @property
    def keys(self) -> KeyStore: ...

    @property
    def rate_limits(self) -> RateLimitStore: ...

    @property
    def guardrails(self) -> GuardrailStore: ...

    async def open(self) -> None:
        """Find out whether it can be used, before anything else is asked of it.

        Raises:
            InvalidArgument: it cannot; the field is the variable to change. Nothing was written.
        """
        ...

    async def check(self) -> None:
        """Raises:
        Unavailable: it cannot be used now.
        """
        ...

    async def aclose(self) -> None: ...
