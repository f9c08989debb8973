"""Cancellation of a request whose reader leaves and that would go on without it."""

from __future__ import annotations

# Of one cancel, and between two.
LIMIT_S = 5.0
PAUSE_S = 0.3
# For a request that may be on its way to the scheduler still.
_EARLY_CANCELS = 4


def n_cancels(*, is_known: bool) -> int:
    """Number of tries to cancel a request: one when a chunk has come, else more while it is not found."""
    return 1 if is_known else _EARLY_CANCELS
