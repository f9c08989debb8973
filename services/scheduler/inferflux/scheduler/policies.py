"""Who is next: the order of one model's queue, behind one small interface (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

from .jobs import Job
from .ranking import Ranking

PolicyName = Literal["priority", "fcfs"]


class Policy(Protocol):
    """Holds the waiting jobs of one model in the order in which they are to be served.

    A policy owns its order, so one that looks at more than a fixed rank (shares per tenant, say) can
    keep what it needs in `push`, `pop` and `discard`.
    """

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Job]: ...
    def push(self, job: Job) -> None: ...
    def first(self) -> Job | None: ...
    def discard(self, job: Job) -> None:
        """Take a job out that was pushed: it is served, or does not wait any more. Raises KeyError."""
        ...

    def position(self, job: Job) -> int:
        """How many would be served before it if nobody else came."""
        ...


class Ranked:
    """A policy whose order never changes while jobs wait: lowest rank first, then arrival."""

    def __init__(self) -> None:
        self._ranking: Ranking[tuple[float, int, Job]] = Ranking()

    def __len__(self) -> int:
        return len(self._ranking)

    def __iter__(self) -> Iterator[Job]:
        return (entry[2] for entry in self._ranking)

    def rank(self, job: Job) -> float:
        raise NotImplementedError

    def push(self, job: Job) -> None:
        job.rank = (self.rank(job), job.arrival)
        self._ranking.add((*job.rank, job))

    def first(self) -> Job | None:
        return self._ranking.first()[2] if self._ranking else None

    def discard(self, job: Job) -> None:
        self._ranking.remove((*job.rank, job))

    def position(self, job: Job) -> int:
        return self._ranking.position((*job.rank, job))


class Priority(Ranked):
    """Highest effective priority first: priority + 1 per `aging_s` seconds of waiting.

    Every job ages at the same rate, so the order of two jobs never changes while they wait:
    priority + (now - enqueued) / aging_s compares as enqueued - priority * aging_s does.
    """

    def __init__(self, aging_s: float) -> None:
        super().__init__()
        self._aging_s = aging_s

    def rank(self, job: Job) -> float:
        return job.enqueued_s - job.request.priority * self._aging_s


class Fcfs(Ranked):
    """First come, first served; a retried job keeps its first arrival."""

    def rank(self, job: Job) -> float:
        return job.enqueued_s


def make_policy(name: PolicyName, *, aging_s: float) -> Policy:
    match name:
        case "priority":
            return Priority(aging_s)
        case "fcfs":
            return Fcfs()
