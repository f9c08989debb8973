"""Times at which a waiting job is told its position and expected wait again (pure).

A look at a job costs a lookup in the queue, and most looks find nothing new. So a job is looked at again only
when about a quarter of its expected wait has passed, which is soon for those near the front and rare far
behind, and no more than a bounded number is looked at per call: however many wait, each is looked at in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from .jobs import Job, RequestKey
from .timers import Timers

# Per job: between two announcements at least, between two looks at most.
LEAST_INTERVAL_S = 2.0
_MOST_INTERVAL_S = 60.0
_WAIT_SHARE = 0.25
_MUCH = 0.5
_LEAST_WAIT_CHANGE_S = 1.0
_SKIPPED_PER_LOOK = 16


@dataclass(frozen=True, slots=True)
class Outlook:
    """Position and expected wait that a waiting job is told."""

    # How many are served before it.
    position: int
    expected_wait_s: float

    def differs_much_from(self, told: Outlook) -> bool:
        """True if it differs by half of what was told or more, in position, or in a wait that changed by a
        second at least."""
        moved = abs(self.position - told.position)
        shifted_s = abs(self.expected_wait_s - told.expected_wait_s)
        has_moved = moved > 0 and moved >= _MUCH * told.position
        has_shifted = shifted_s >= _LEAST_WAIT_CHANGE_S and shifted_s > _MUCH * told.expected_wait_s
        return has_moved or has_shifted


@dataclass(slots=True)
class _Told:
    job: Job
    outlook: Outlook
    look_id: int


class Announcements:
    """Outlook that each waiting job was told last.

    Args:
        looks_per_call: jobs that one call of `due` looks at, at most.
    """

    def __init__(self, looks_per_call: int = 256) -> None:
        self._looks_per_call = looks_per_call
        self._told: dict[RequestKey, _Told] = {}
        # Holds no job: one that has ended should not stay in memory until it falls due.
        self._looks: Timers[tuple[RequestKey, int]] = Timers()
        self._look_id = 0

    def __len__(self) -> int:
        """Jobs that are looked after."""
        return len(self._told)

    def tell(self, job: Job, outlook: Outlook, now: float) -> None:
        """Note what a job is told now; from now on, it is looked at again."""
        told = _Told(job, outlook, 0)
        self._told[job.key] = told
        self._look_later(told, now)

    def forget(self, job: Job) -> None:
        """Forget a job that does not wait any more. Without this, it is found out when it would be looked
        at."""
        told = self._told.get(job.key)
        if told is not None and told.job is job:
            del self._told[job.key]

    def due(self, now: float, look: Callable[[Job], Outlook]) -> list[tuple[Job, Outlook]]:
        """The jobs to tell again, and what: it counts as told.

        Args:
            look: what a job that is queued is to be told now.
        """
        out: list[tuple[Job, Outlook]] = []
        for told in islice(self._to_look_at(now), self._looks_per_call):
            if not told.job.is_queued:
                del self._told[told.job.key]
                continue
            outlook = look(told.job)
            if outlook.differs_much_from(told.outlook):
                told.outlook = outlook
                out.append((told.job, outlook))
            self._look_later(told, now)
        return out

    def _to_look_at(self, now: float) -> Iterator[_Told]:
        """Skips what was forgotten or told anew, also a bounded number of times."""
        for key, look_id in islice(self._looks.due(now), _SKIPPED_PER_LOOK * self._looks_per_call):
            told = self._told.get(key)
            if told is not None and told.look_id == look_id:
                yield told

    def _look_later(self, told: _Told, now: float) -> None:
        self._look_id += 1
        told.look_id = self._look_id
        share_s = _WAIT_SHARE * told.outlook.expected_wait_s
        interval_s = min(_MOST_INTERVAL_S, max(LEAST_INTERVAL_S, share_s))
        self._looks.add(now + interval_s, (told.job.key, told.look_id))
