"""Urgent requests first, as long as the others keep their share (pure).

Urgent requests are a class of their own: however long others have waited, the next place goes to an urgent
one. Otherwise, in lasting overload, those that have waited longest would be as urgent as any newcomer. So
that no request starves, others are guaranteed a share of the slots: while fewer of them run, they go first.

On a worker, and where there is no second slot to guarantee, the class is worth a lead of `URGENT_LEAD_S`.
There, too, every request comes before those that arrive long after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from inferflux.scheduler.core.types.jobs import Job

from .queue_policy import QueuePolicy
from .running import Running

# How much earlier an urgent request counts as having come than another of its effective priority.
URGENT_LEAD_S = 60.0


class UrgentFirst(QueuePolicy):
    """The policy `priority`: the order of urgent requests, and that of the others.

    Args:
        urgent: an empty order for urgent requests.
        ordinary: an empty order for the others.
        running: running requests of the model.
        is_urgent: whether a job is urgent. When that changes, jobs that wait are to be pushed again.
    """

    def __init__(
        self, urgent: QueuePolicy, ordinary: QueuePolicy, running: Running, is_urgent: Callable[[Job], bool]
    ) -> None:
        self._urgent = urgent
        self._ordinary = ordinary
        self._running = running
        self._is_urgent = is_urgent
        # Those that wait among the urgent.
        self._waiting_urgent: set[Job] = set()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._ordinary)

    def __iter__(self) -> Iterator[Job]:
        return chain(self._urgent, self._ordinary)

    def urgency_key(self, job: Job) -> float:
        """Effective priority as a point in time, which waiting does not change; urgent ones have a lead."""
        key = self._ordinary.urgency_key(job)
        return key - URGENT_LEAD_S if self._is_urgent(job) else key

    def precedes(self, job: Job, running: Job) -> bool:
        is_above_it = self._is_urgent(job) and not self._is_urgent(running)
        if is_above_it and self._running.guaranteed:
            return True
        return self.urgency_key(job) < self.urgency_key(running)

    def push(self, job: Job) -> None:
        if self._is_urgent(job):
            self._waiting_urgent.add(job)
        self._order_of(job).push(job)

    def put_back(self, job: Job) -> None:
        if self._is_urgent(job):
            self._waiting_urgent.add(job)
        self._order_of(job).put_back(job)

    def _order_of(self, job: Job) -> QueuePolicy:
        return self._urgent if job in self._waiting_urgent else self._ordinary

    def first(self) -> Job | None:
        urgent, ordinary = self._urgent.first(), self._ordinary.first()
        if urgent is None or ordinary is None:
            return ordinary if urgent is None else urgent
        return self._first_of_two(urgent, ordinary)

    def first_of(self, jobs: Sequence[Job]) -> Job:
        urgent = [job for job in jobs if self._is_urgent(job)]
        ordinary = [job for job in jobs if not self._is_urgent(job)]
        if not (urgent and ordinary):
            return self._ordinary.first_of(jobs)
        return self._first_of_two(self._urgent.first_of(urgent), self._ordinary.first_of(ordinary))

    def _first_of_two(self, urgent: Job, ordinary: Job) -> Job:
        if self._running.guaranteed:
            return ordinary if self._running.is_ordinary_due else urgent
        return min(urgent, ordinary, key=self.urgency_key)

    def discard(self, job: Job) -> None:
        self._order_of(job).discard(job)
        self._waiting_urgent.discard(job)

    def position(self, job: Job) -> int:
        """Position as if all urgent requests were served before the others."""
        if self._is_urgent(job):
            return self._urgent.position(job)
        return len(self._urgent) + self._ordinary.position(job)

    def on_running(self, tenant: str) -> None:
        self._urgent.on_running(tenant)
        self._ordinary.on_running(tenant)
