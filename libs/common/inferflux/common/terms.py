"""Which terms of leadership are believed (pure).

A term is the time in milliseconds at which its holder took the lead, or one more than the term before. One
far beyond the present was made up: a worker that believed it would refuse every true one after it.
"""

from __future__ import annotations

# Clocks that are wrong by less than this do no harm.
MAX_AHEAD_MS = 366 * 86_400_000


def latest(unix_ms: int) -> int:
    """The last term that is believed at this time, in ms since 1970."""
    return unix_ms + MAX_AHEAD_MS
