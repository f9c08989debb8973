"""The times of a request, from one host's clock to another's.

A request says when it was queued and when its client gives up, both by the clock of the process that sent it.
Clocks of hosts may be minutes apart, so the process that receives it sets both to its own clock first.
"""

from __future__ import annotations

import math
import time

from inferflux.v1 import scheduler_pb2

_LATEST_MS = 2**63 - 1


def stamp(request: scheduler_pb2.InferenceRequest, *, deadline_at: float) -> None:
    """Say that a request is queued now, and when its client gives up.

    Args:
        deadline_at: by the monotonic clock, in seconds; infinite where it does not.
    """
    now_ms = time.time_ns() // 1_000_000
    request.enqueued_unix_ms = now_ms
    left_s = deadline_at - time.monotonic()
    request.deadline_unix_ms = 0 if left_s == math.inf else max(1, now_ms + round(left_s * 1000))


def monotonic_s(unix_ms: int, *, now_s: float, unix_s: float) -> float:
    """A moment by the monotonic clock, which is never set.

    Args:
        unix_ms: the moment, by our wall clock.
        now_s, unix_s: the present, by our monotonic and by our wall clock.
    """
    return now_s + unix_ms / 1000 - unix_s


def deadline_s(request: scheduler_pb2.InferenceRequest, *, now_s: float, unix_s: float) -> float:
    """Time at which a request's client gives up, in monotonic seconds; infinite where it does not."""
    at_ms = request.deadline_unix_ms
    return monotonic_s(at_ms, now_s=now_s, unix_s=unix_s) if at_ms else math.inf


def queue_ms(request: scheduler_pb2.InferenceRequest, *, unix_s: float) -> float:
    """Milliseconds that a request has waited until now, by our wall clock; never negative."""
    return max(unix_s - request.enqueued_unix_ms / 1000, 0.0) * 1000


def set_clock(request: scheduler_pb2.InferenceRequest, *, theirs_ms: int, ours_ms: int) -> None:
    """Set the times of a request to our clock.

    Args:
        theirs_ms: Unix time of a moment, in ms, by the clock of the process that sent the request.
        ours_ms: the same moment by ours.
    """
    ahead_ms = ours_ms - theirs_ms
    request.enqueued_unix_ms = min(max(request.enqueued_unix_ms + ahead_ms, -_LATEST_MS), _LATEST_MS)
    if request.deadline_unix_ms:
        # 0 would mean that there is none.
        request.deadline_unix_ms = min(max(request.deadline_unix_ms + ahead_ms, 1), _LATEST_MS)
