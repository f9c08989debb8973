"""Rounds of runs that other machines on the same host left alone.

A virtual machine's cores may be taken away for a while; Linux counts that as stolen time. Two threads that
wait for each other lose far more by it than one process alone, so a disturbed round says little of either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

Run = Callable[[], Awaitable[dict[str, Any]]]
Round = tuple[dict[str, Any], ...]

STOLEN = "stolen"
"""The key of a run's share of the cores' time that was stolen."""

# A round is made once more if more than this was stolen in one of its runs, ...
MOST_STOLEN = 0.02
# ... until this many were made for each that is wanted.
_TRIES = 3


class StolenTime:
    """Measures the stolen share of all cores' time since it was made."""

    def __init__(self, file: Path = Path("/proc/stat")) -> None:
        self._file = file
        self._began = self._read()

    def share(self) -> float:
        """Between 0 and 1; 0 where the system does not count it."""
        stolen, whole = (now - then for now, then in zip(self._read(), self._began, strict=True))
        return stolen / whole if whole > 0 else 0.0

    def _read(self) -> tuple[int, int]:
        """(stolen, all) clock ticks of all cores since the machine started."""
        try:
            words = self._file.read_text().split("\n", 1)[0].split()
        except OSError:
            return 0, 0
        # cpu user nice system idle iowait irq softirq steal; what guests took is in `user` already
        ticks = [int(word) for word in words[1:9]]
        return (ticks[7], sum(ticks)) if len(ticks) == 8 else (0, 0)


async def calm_rounds(n: int, runs: Iterable[Run], say: Callable[[str], None]) -> list[Round]:
    """Make all `runs`, one after the other, until `n` such rounds were calm or three times as many were made.

    Returns:
        The `n` calmest, in the order they were made.
    """
    each = tuple(runs)
    rounds: list[Round] = []
    calm = 0
    while calm < n and len(rounds) < _TRIES * n:
        rounds.append(tuple([await run() for run in each]))
        worst = disturbance(rounds[-1])
        if worst <= MOST_STOLEN:
            calm += 1
        else:
            say(f"  other machines took {worst:.0%} of the cores: once more")
    return calmest(n, rounds)


def calmest(n: int, rounds: list[Round]) -> list[Round]:
    """The `n` rounds with the least stolen time, in the order they were made."""
    by_calm = sorted(range(len(rounds)), key=lambda i: disturbance(rounds[i]))
    return [rounds[i] for i in sorted(by_calm[:n])]


def disturbance(runs: Round) -> float:
    """The largest share that was stolen in one of the runs."""
    return max((float(run.get(STOLEN, 0.0)) for run in runs), default=0.0)
