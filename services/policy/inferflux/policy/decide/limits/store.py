"""Where limits are kept, as policy asks for them. What counts against them is the limiter's."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from .rules import RateLimit


class RateLimitStore(Protocol):
    """Limits by subject. What one process writes, others read within 0.25 s. Every method raises
    Unavailable when the store does not answer in time.
    """

    async def rules(self) -> list[RateLimit]:
        """Limits of all subjects, by name."""
        ...

    async def find_rules(self, subjects: Collection[str]) -> list[RateLimit]:
        """The limits that these subjects have themselves."""
        ...

    async def limits_models(self) -> bool:
        """True if there may be limits of any model."""
        ...

    async def set_rule(self, rule: RateLimit) -> RateLimit | None:
        """Write the limits of a subject, and return them with their new version.

        Args:
            rule: with version 0, whatever is stored is replaced. Else nothing is written, and None returned,
                unless the stored ones have this version.
        """
        ...

    async def delete_rule(self, subject: str, *, version: int = 0) -> bool:
        """Remove the limits of a subject; False if it has none of its own, or they are of another version.

        Args:
            version: 0: whichever they have.
        """
        ...
