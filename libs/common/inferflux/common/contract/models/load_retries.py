"""Retries of a model that could not be loaded (pure)."""

from __future__ import annotations

_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0
_MOST_DOUBLINGS = 10


def pause_s(failures: int) -> float:
    """Seconds to wait after this many loads, at least one, have failed one after the other."""
    return min(_FIRST_PAUSE_S * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), _LONGEST_PAUSE_S)
