"""The epochs of a request's attempts: 1 at first, one more with every retry."""

from __future__ import annotations

# An epoch rises by ten a second of a job's age when an earlier leader's epochs are not known. A job counts as
# a day old at most, so that no epoch passes this; a message with a higher one is not ours.
MAX_EPOCH = 1_000_000


def after(epoch: int) -> int:
    """The next epoch. The highest one is its own successor: attempts in it give the same tokens."""
    return min(epoch + 1, MAX_EPOCH)
