"""Host memory for KV state: one budget for all engines of a worker process (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Parts are whole multiples of this part of the budget.
_UNITS = 64


@dataclass(frozen=True, slots=True)
class Part:
    """An engine's part of the budget, in bytes.

    Attributes:
        granted: that it was told last to keep to.
        most: that it may hold until it has taken that; never less than `granted`.
        held: that it reported last to hold.
    """

    granted: int
    most: int
    held: int


def divide(budget: int, parts: Mapping[str, Part]) -> dict[str, int]:
    """Divide `budget` bytes anew among engines: half of it alike, half in proportion to what each holds.

    A part that would change by one unit stays. What one gets less, it is told at once. Others get that only
    when it may hold it no more. So all together never may hold more than the budget, unless they did before.

    Returns:
        The grant of each engine, by its name.
    """
    unit = max(budget // _UNITS, 1)
    held = sum(part.held for part in parts.values())
    is_within = sum(part.granted for part in parts.values()) <= budget

    def target(part: Part) -> int:
        alike = budget / len(parts)
        by_use = budget * part.held / held if held else alike
        new = int((alike + by_use) / 2) // unit * unit
        is_same = is_within and part.granted and abs(new - part.granted) <= unit
        return part.granted if is_same else new

    targets = {name: target(part) for name, part in parts.items()}
    granted = {name: min(part.granted, targets[name]) for name, part in parts.items()}
    left = budget - sum(part.most for part in parts.values())
    for name, part in parts.items():
        grown = min(targets[name], part.most + max(left, 0) // unit * unit)
        if grown > granted[name]:
            granted[name] = grown
            left -= max(grown - part.most, 0)
    return granted
