"""Acceptance of terms of leadership (pure).

A term is the time in milliseconds at which its holder took the lead, or one more than the term before. One
far beyond the present was made up: a worker that believed it would refuse every true one after it.
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_TERMS = 1024
"""Most partitions whose terms are kept, those of earlier divisions of the models included."""
# Clocks that are wrong by less than this do no harm.
MAX_AHEAD_MS = 366 * 86_400_000


def latest(unix_ms: int) -> int:
    """The last term that is believed at this time, in ms since 1970."""
    return unix_ms + MAX_AHEAD_MS


class SeenTerms:
    """The latest term that was seen of each partition of models: what was sent under an older one does not
    count."""

    def __init__(self) -> None:
        self._terms: dict[str, int] = {}

    @property
    def by_partition(self) -> Mapping[str, int]:
        return self._terms

    def accepts(self, partition: str, term: int, unix_ms: int) -> bool:
        """True if what was sent under a term counts. If so, older terms of that partition are refused from
        now on. A term far beyond the present never counts.

        Args:
            unix_ms: the time, in ms since 1970.
        """
        is_new = partition not in self._terms
        if not self._terms.get(partition, 0) <= term <= latest(unix_ms) or (
            is_new and len(self._terms) >= MAX_TERMS
        ):
            return False
        self._terms[partition] = term
        return True
