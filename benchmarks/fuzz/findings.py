"""Results of the calls: statuses, and what must not be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(slots=True)
class Findings:
    """Findings of all calls together.

    Attributes:
        answered: calls that a server has ended and that need an audit line, by request id.
    """

    codes: Counter[str] = field(default_factory=Counter)
    internal: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    answered: dict[str, str] = field(default_factory=dict)

    def unaudited(self, audited: Collection[str]) -> list[str]:
        """Calls without an audit line.

        Args:
            audited: request ids that have one.
        """
        return [
            f"{request_id}: {what}" for request_id, what in self.answered.items() if request_id not in audited
        ]
