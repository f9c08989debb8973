"""Who calls, as policy knows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of an admitted API key.

    Attributes:
        max_priority: the most urgent priority of the caller's requests; None where policy sets no ceiling.
        cache_scope: the name of the scope of cached prefixes that they share with other tenants; "" for none.
        skips_answer_cache: whether their answers are neither taken from the answer cache nor kept there.
    """

    tenant: str
    key_id: str
    max_priority: int | None = None
    cache_scope: str = ""
    skips_answer_cache: bool = False

    def capped(self, priority: int) -> int:
        """The priority a request gets that asks for this one."""
        return priority if self.max_priority is None else min(priority, self.max_priority)
