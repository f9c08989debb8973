"""The jobs that wait, per model (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from .jobs import Job, JobState
from .policies import Policy

_SMOOTHING = 0.1


class ModelQueue:
    """One model's queue: a policy's order, and how fast it moves."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._oldest: list[tuple[float, int, Job]] = []
        self._last_departure_s: float | None = None
        # Smoothed time between two departures while others wait; 0 until known.
        self.departure_interval_s = 0.0

    def __len__(self) -> int:
        return len(self._policy)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._policy)

    def push(self, job: Job) -> None:
        self._policy.push(job)
        heappush(self._oldest, (job.enqueued_s, job.arrival, job))
        if len(self._oldest) > 2 * len(self._policy) + 64:
            self._oldest = sorted((j.enqueued_s, j.arrival, j) for j in self._policy)

    def first(self) -> Job | None:
        return self._policy.first()

    def depart(self, job: Job, now: float) -> None:
        """It is served."""
        self._policy.discard(job)
        last, self._last_departure_s = self._last_departure_s, now if len(self._policy) else None
        if last is not None:
            interval = max(0.0, now - last)
            known = self.departure_interval_s
            self.departure_interval_s = interval if known == 0 else known + _SMOOTHING * (interval - known)

    def discard(self, job: Job) -> None:
        """It does not wait any more, for another reason."""
        self._policy.discard(job)

    def position(self, job: Job) -> int:
        return self._policy.position(job)

    def expected_wait_s(self, job: Job) -> float:
        """By the pace of the latest departures; 0 when there were none."""
        return (self.position(job) + 1) * self.departure_interval_s

    def oldest_enqueued_s(self) -> float | None:
        """When the longest waiting job was enqueued."""
        while self._oldest and not self._is_current(self._oldest[0]):
            heappop(self._oldest)
        return self._oldest[0][0] if self._oldest else None

    @staticmethod
    def _is_current(entry: tuple[float, int, Job]) -> bool:
        return entry[2].state is JobState.QUEUED


class Queue:
    """Every model's queue."""

    def __init__(self, new_policy: Callable[[], Policy]) -> None:
        self._new_policy = new_policy
        self.models: dict[str, ModelQueue] = {}

    def __len__(self) -> int:
        return sum(map(len, self.models.values()))

    def push(self, job: Job) -> ModelQueue:
        queue = self.models.get(job.model)
        if queue is None:
            queue = self.models[job.model] = ModelQueue(self._new_policy())
        queue.push(job)
        return queue

    def discard(self, job: Job) -> None:
        self.models[job.model].discard(job)

    def forget_empty(self, is_served: Callable[[str], bool]) -> None:
        """Let go of queues that are empty and whose model nobody serves: names come from outside."""
        for model in [m for m, q in self.models.items() if not q and not is_served(m)]:
            del self.models[model]

    def oldest_enqueued_s(self) -> float | None:
        times = (queue.oldest_enqueued_s() for queue in self.models.values())
        return min((t for t in times if t is not None), default=None)
