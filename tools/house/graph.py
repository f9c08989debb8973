"""Rooms as a graph (pure): an arrow leads from a room to one that it imports."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

Arrow = tuple[str, str]


def rooms_of(arrows: Iterable[Arrow]) -> list[str]:
    """The rooms at either end of an arrow, sorted."""
    return sorted({room for arrow in arrows for room in arrow})


def ordered(arrows: Mapping[Arrow, int]) -> list[str]:
    """Rooms from the top down, so that few imports point up; none does where there is no circle.

    The greedy order of Eades, Lin and Smyth (1993), whose rooms then move while fewer imports point up.

    Args:
        arrows: with the number of imports behind each.
    """
    left, rooms = dict(arrows), rooms_of(arrows)
    top: list[str] = []
    bottom: list[str] = []
    while rooms:
        leaving: Counter[str] = Counter()
        coming: Counter[str] = Counter()
        for (importer, imported), number in left.items():
            leaving[importer] += number
            coming[imported] += number
        if sinks := [room for room in rooms if not leaving[room]]:
            taken, bottom = sinks, sinks + bottom
        else:
            sources = [room for room in rooms if not coming[room]]
            taken = sources or [max(rooms, key=lambda room: leaving[room] - coming[room])]
            top += taken
        rooms = [room for room in rooms if room not in taken]
        left = {arrow: number for arrow, number in left.items() if not {*arrow} & {*taken}}
    order, before = top + bottom, None
    while order != before:
        before = order
        for room in before:
            order = _moved(room, order, arrows)
    return order


def _moved(room: str, order: list[str], arrows: Mapping[Arrow, int]) -> list[str]:
    """The order with ``room`` where the fewest imports point up; as it was where no place is better."""
    others = [other for other in order if other != room]
    up = [sum(arrows.get((other, room), 0) for other in others)]
    for other in others:
        up.append(up[-1] + arrows.get((room, other), 0) - arrows.get((other, room), 0))
    place = order.index(room)
    best = place if up[place] == min(up) else up.index(min(up))
    return [*others[:best], room, *others[best:]]


def pointing_up(arrows: Iterable[Arrow], order: list[str]) -> set[Arrow]:
    """The arrows whose importer stands below what it imports."""
    place = {room: number for number, room in enumerate(order)}
    return {(importer, imported) for importer, imported in arrows if place[importer] > place[imported]}


def circles(arrows: Iterable[Arrow]) -> list[set[str]]:
    """The largest groups of rooms that import each other, directly or through others."""
    imported = defaultdict(set)
    for importer, room in arrows:
        imported[importer].add(room)
    reached = {room: _reachable(room, imported) for room in list(imported)}
    groups = {
        frozenset(other for other in found if room in reached.get(other, ()))
        for room, found in reached.items()
    }
    return [set(group) for group in sorted(groups, key=sorted) if len(group) > 1]


def _reachable(start: str, imported: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = imported.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found
