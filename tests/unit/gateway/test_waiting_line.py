"""The order in which calls are admitted that wait."""

from __future__ import annotations

from inferflux.gateway.policy.waiting_line import WaitingLine


def order(line: WaitingLine[str]) -> list[str]:
    """All that wait, the first first."""
    names = []
    while (name := line.pop()) is not None:
        names.append(name)
    return names


def test_the_most_urgent_goes_first_and_equals_in_the_order_they_came() -> None:
    line = WaitingLine[str](10)
    for name, priority in (("a", 0), ("b", 0), ("low", -5), ("urgent", 100), ("c", 0), ("urgent-too", 100)):
        line.join(name, priority=priority, now=7.0)
    assert order(line) == ["urgent", "urgent-too", "a", "b", "c", "low"]


def test_waiting_makes_up_for_priority() -> None:
    line = WaitingLine[str](10)
    line.join("waits", priority=0, now=0.0)
    line.join("soon-after", priority=4, now=7.9)
    line.join("later", priority=4, now=8.1)
    assert order(line) == ["soon-after", "waits", "later"]


def test_who_does_not_fit_pushes_the_least_urgent_out_or_has_no_place() -> None:
    line = WaitingLine[str](2)
    assert line.join("a", priority=0, now=0.0)[1] is None
    assert line.join("b", priority=0, now=0.0)[1] is None
    assert line.join("c", priority=0, now=0.0)[1] == "c"
    assert line.join("urgent", priority=9, now=0.0)[1] == "b"
    assert len(line) == 2
    assert order(line) == ["urgent", "a"]


def test_who_leaves_frees_its_place_once() -> None:
    line = WaitingLine[str](2)
    first, _ = line.join("same", priority=0, now=0.0)
    line.join("same", priority=0, now=0.0)
    line.leave(first)
    line.leave(first)
    assert line.join("urgent", priority=1, now=0.0)[1] is None
    assert order(line) == ["urgent", "same"]
    line.leave(first)
    assert len(line) == 0
