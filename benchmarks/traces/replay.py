"""A trace at another rate: sped up, and several copies of it side by side (pure)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile

from .request import TraceError, TraceRequest

# Requests of a trace that are held at once: 100 MB.
MOST_HELD = 200_000


def hold(requests: Iterable[TraceRequest]) -> list[TraceRequest]:
    """All of them, in order of time.

    Raises:
        TraceError: there are none, or too many.
    """
    held = list(islice(requests, MOST_HELD + 1))
    if not held:
        raise TraceError("the trace is empty")
    if len(held) > MOST_HELD:
        raise TraceError(f"the trace has more than {MOST_HELD:,} requests")
    return sorted(held, key=lambda request: request.at_s)


def rate_of(requests: Sequence[TraceRequest]) -> float:
    """Requests per second of a trace, in the mean."""
    span_s = requests[-1].at_s - requests[0].at_s
    return len(requests) / span_s if span_s > 0 else float(len(requests))


def replay(
    requests: Sequence[TraceRequest], *, rate: float, speed: float, seconds: float
) -> Iterator[TraceRequest]:
    """Yield what comes within `seconds`, in order of time.

    As many copies run side by side, `speed` times as fast as the trace, as make `rate` requests a second.
    The rest to a whole copy is made up by the speed. No copy shares a block with another, and each begins at
    a place of its own in the trace, at whose end it goes on with the beginning.

    Args:
        requests: of the trace, in order of time.
        rate: requests per second, in the mean of the whole trace.
    """
    copies = max(1, round(rate / (rate_of(requests) * speed)))
    speed = rate / (rate_of(requests) * copies)
    streams = [_copy(requests, copy, copies, speed) for copy in range(copies)]
    merged = heapq.merge(*streams, key=lambda request: request.at_s)
    return takewhile(lambda request: request.at_s < seconds, merged)


def _copy(requests: Sequence[TraceRequest], copy: int, copies: int, speed: float) -> Iterator[TraceRequest]:
    first = len(requests) * copy // copies
    start_s, span_s = requests[first].at_s, requests[-1].at_s - requests[0].at_s
    # Traces tell times in steps of seconds: copies are not to keep step.
    step_s = span_s / len({request.at_s for request in requests})
    shift_s = step_s * copy / copies
    turn = 0
    while True:
        for request in requests[first:] if not turn else requests:
            at_s = request.at_s - start_s + turn * (span_s + step_s)
            yield request.of_copy(copy + turn * copies, (at_s + shift_s) / speed)
        turn += 1
