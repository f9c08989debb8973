"""Number of replicas of a stream. Decides; asks nothing."""

from __future__ import annotations

from inferflux.common.contract.requests.stream_limits import AUTO

# One of three may be lost, and what is left still agrees.
_OF_A_CLUSTER = 3


def wanted(asked: int, *, is_clustered: bool, present: int = 0) -> int:
    """Number of servers that a stream is to be kept on.

    Args:
        asked: by configuration; `AUTO`: three in a cluster, and one without.
        present: on how many it is kept already. `AUTO` never makes it fewer: a cluster of which some servers
            are down is still one.
    """
    if asked != AUTO:
        return asked
    return max(_OF_A_CLUSTER if is_clustered else 1, present)


def fallback(asked: int, *, present: int) -> int | None:
    """Number of replicas where there are too few servers; None: the stream has to wait for them."""
    return max(present, 1) if asked == AUTO else None
