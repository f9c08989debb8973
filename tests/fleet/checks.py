"""What a history must not have (pure)."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from .history import Dispatch, History, Served

# A request that ended so shortly before a gateway or the primary of Redis was lost may be missing from the
# counters: its settlement was on its way, or not copied yet.
_SETTLING_S = 2.0

Found = list[tuple[str, str]]


def streams(served: Iterable[Served], *, may_refuse_s: float | None = None) -> Found:
    """Each accepted request ends once, with every token once, in order, and of no older epoch.

    Args:
        may_refuse_s: a request that began no earlier may end UNAVAILABLE before anything of it has come.
            None: none may.
    """
    found: Found = []
    for each in served:
        transcript = each.transcript
        if may_refuse_s is not None and each.is_refused and transcript.began_s >= may_refuse_s:
            continue
        found += [
            (each.ask.request_id, f"{what} ({transcript.describe()})") for what in transcript.breaches()
        ]
        if not each.ask.is_due and each.is_whole:
            found.append((each.ask.request_id, "went on beyond its deadline"))
    return found


def once(served: Sequence[Served]) -> Found:
    """No request is in the history twice."""
    times = Counter(each.ask.request_id for each in served)
    return [(request_id, f"is there {n} times") for request_id, n in times.items() if n > 1]


def terms(dispatches: Iterable[Dispatch]) -> Found:
    """In each term one scheduler alone dispatches."""
    senders: defaultdict[int, set[str]] = defaultdict(set)
    for each in dispatches:
        senders[each.term].add(each.sender)
    return [
        (f"term {term}", f"{len(found)} schedulers dispatched: {', '.join(sorted(found))}")
        for term, found in sorted(senders.items())
        if len(found) > 1
    ]


def settlements(history: History) -> Found:
    """No request counts twice, and none is missing but for those that a loss may have taken."""
    found: Found = []
    served = history.served
    counted = history.counted("requests")
    if counted > len(served):
        found.append(("usage", f"{counted} requests were counted of {len(served)} that were sent"))
    tokens, most = history.counted("completion_tokens"), sum(each.ask.n_tokens for each in served)
    if tokens > most:
        found.append(("usage", f"{tokens} tokens were counted of {most} that there were at most"))
    lost = _may_be_lost(history)
    whole = [each for each in served if each.is_whole]
    if counted < len(whole) - len(lost):
        found.append(
            ("usage", f"{counted} requests were counted, {len(whole)} ended, {len(lost)} may be lost")
        )
    fewest = sum(each.ask.n_tokens for each in whole) - sum(each.ask.n_tokens for each in lost)
    if tokens < fewest:
        found.append(("usage", f"{tokens} tokens were counted, and there were {fewest} that none may lose"))
    return found


def is_settled(history: History) -> bool:
    """Whether every request that ended is counted."""
    return history.counted("requests") >= sum(each.is_whole for each in history.served)


def _may_be_lost(history: History) -> list[Served]:
    windows = [(_unsettled_since_s(history, at), at) for at in history.losses_s]
    return [
        each
        for each in history.served
        if each.is_whole and any(since <= each.ended_s <= at for since, at in windows)
    ]


def _unsettled_since_s(history: History, lost_s: float) -> float:
    """The earliest end of a request that may not have been settled at a loss. While Redis is away,
    settlements wait at their gateways.
    """
    began = [begin for begin, end in history.away_s if begin <= lost_s <= end]
    return min([lost_s, *began]) - _SETTLING_S


def longest_gap_s(served: Iterable[Served], since_s: float) -> float:
    """Between two tokens of a stream, after a moment."""
    longest = 0.0
    for each in served:
        times = [at for at, _, _ in each.received_s]
        for before, after in itertools.pairwise(times):
            if after >= since_s:
                longest = max(longest, after - before)
    return longest


def longest_wait_s(served: Iterable[Served], since_s: float) -> float:
    """Of a request for its first token, where that came after a moment."""
    return max((each.wait_s for each in served if each.first_s >= since_s), default=0.0)
