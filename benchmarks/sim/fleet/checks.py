"""Invariants of every history of a fleet (pure): the same as `tests/fleet` asks of processes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from .history import Ask, Dispatched, History, Lead


def breaches(history: History) -> list[str]:
    """All that is wrong; empty when nothing is."""
    found = [history.is_stuck] if history.is_stuck else []
    for ask in history.asks:
        found += [f"{ask.name}: {wrong}" for wrong in _of_request(ask)]
    return [*found, *_of_terms(history.dispatches), *_of_leaders(history.leads)]


def _of_request(ask: Ask) -> Iterator[str]:
    """Each accepted request ends exactly once, and its reader has each token once, in order."""
    yield from ask.wrongs
    if ask.ends != 1:
        yield f"ended {ask.ends} times"
    if ask.acks != 1:
        yield f"was taken off the queue {ask.acks} times"
    if ask.outcome not in ("stop", "length"):
        yield f"failed: {ask.outcome or 'no end'}"
    elif ask.generated != ask.wanted:
        yield f"has {ask.generated} tokens of {ask.wanted}"


def _of_terms(dispatches: list[Dispatched]) -> Iterator[str]:
    """One scheduler dispatches in a term, no term after a later one, and each only models of its own."""
    holders: dict[tuple[str, int], str] = {}
    latest: dict[str, int] = {}
    for one in sorted(dispatches, key=lambda each: each.sent_s):
        name = one.partition.name
        holder = holders.setdefault((name, one.term), one.scheduler)
        if holder != one.scheduler:
            yield f"{name}: {holder} and {one.scheduler} dispatched in term {one.term}"
        if one.term < latest.get(name, 0):
            yield f"{name}: term {one.term} dispatched after term {latest[name]}"
        latest[name] = max(latest.get(name, 0), one.term)
        if not one.partition.has(one.model):
            yield f"{name}: {one.scheduler} dispatched {one.model}"


def _of_leaders(leads: list[Lead]) -> Iterator[str]:
    """No two schedulers lead a partition at a time."""
    by_partition: dict[str, list[Lead]] = {}
    for lead in sorted(leads, key=lambda each: each.from_s):
        by_partition.setdefault(lead.partition.name, []).append(lead)
    for name, in_order in by_partition.items():
        for before, after in pairwise(in_order):
            if before.to_s is None or before.to_s > after.from_s:
                yield f"{name}: {before.scheduler} and {after.scheduler} led at a time"
