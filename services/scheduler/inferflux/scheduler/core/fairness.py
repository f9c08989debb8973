"""Whose turn ends so that another's begins (pure).

Two means, both off by default. A timeslice ends the turn of an ordinary request after so many tokens: the
worker does that by itself. A preemption ends the turn of the least urgent one when an urgent request finds
no place. Either way the request stays on board and goes on when it is first in the queue again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from inferflux.v1 import scheduler_pb2

from .jobs import Job, JobState, RequestKey
from .placement import Size, cells_wanted_on, fits, size_of
from .ranking import Ranking
from .slots import SlotTable, WorkerSlots

# Least urgent requests looked at to find one on a worker that suits.
_LOOK_AT_MOST = 64


@dataclass(frozen=True, slots=True)
class FairnessSettings:
    """What may be changed while requests run."""

    # Whether an urgent request that finds no place takes that of a less urgent one.
    enable_preemption: bool = False
    # Requests of this priority and above preempt, and are not sliced.
    high_priority_threshold: int = 5
    # Others yield after so many tokens; 0 lets them run to the end.
    max_timeslice_tokens: int = 0

    @classmethod
    def of(cls, message: scheduler_pb2.Fairness) -> FairnessSettings:
        return cls(message.enable_preemption, message.high_priority_threshold, message.max_timeslice_tokens)

    def to_message(self) -> scheduler_pb2.Fairness:
        return scheduler_pb2.Fairness(
            enable_preemption=self.enable_preemption,
            high_priority_threshold=self.high_priority_threshold,
            max_timeslice_tokens=self.max_timeslice_tokens,
        )


@dataclass(frozen=True, slots=True)
class Preemption:
    """Who gives way, and where."""

    worker: WorkerSlots
    victims: list[Job]


class FairnessController:
    """Knows who runs, least urgent first.

    Args:
        aging_s: seconds of waiting that are worth one level of priority.
    """

    def __init__(self, settings: FairnessSettings, *, aging_s: float) -> None:
        self.settings = settings
        self._aging_s = aging_s
        self._running: dict[str, Ranking[tuple[float, int, Job]]] = defaultdict(Ranking)
        self._entries: dict[int, tuple[float, int, Job]] = {}

    def rank(self, job: Job) -> float:
        """Lower is more urgent: effective priority as a point in time, which waiting does not change.

        What was urgent enough to get its turn is not preempted by a later request of the same effective
        priority, so that aging keeps its promise to requests of low priority.
        """
        return job.since_s - job.priority * self._aging_s

    def is_urgent(self, job: Job) -> bool:
        return job.priority >= self.settings.high_priority_threshold

    def timeslice(self, job: Job) -> int:
        """New tokens of its next turn; 0 for no bound."""
        return 0 if self.is_urgent(job) else self.settings.max_timeslice_tokens

    def on_running(self, job: Job) -> None:
        """A worker has taken it up, or lets it go on."""
        self.on_stopped(job)
        entry = (-self.rank(job), -job.arrival, job)
        self._entries[job.arrival] = entry
        self._running[job.model].add(entry)

    def on_stopped(self, job: Job) -> None:
        """It does not run any more; nothing if it did not."""
        entry = self._entries.pop(job.arrival, None)
        if entry is not None:
            self._running[job.model].remove(entry)

    def preempt_for(
        self, job: Job, table: SlotTable, jobs: Mapping[RequestKey, Job], but: Collection[Size] = ()
    ) -> Preemption | None:
        """Who should give way to a request that found no place; None if nobody should.

        The least urgent running request decides on which worker; if its cells are not enough there, others
        of that worker follow it, least urgent first, for as long as they are less urgent than the request.

        Args:
            but: on no worker of these sizes.
        """
        if not (self.settings.enable_preemption and self.is_urgent(job)):
            return None
        rank = self.rank(job)
        for looked_at, (negative, _arrival, least_urgent) in enumerate(self._running.get(job.model, ())):
            if -negative <= rank or looked_at >= _LOOK_AT_MOST:
                return None
            worker = table.get(least_urgent.worker_id or "")
            if (
                worker is not None
                and worker.takes_new
                and self._yields(least_urgent, job)
                and fits(job, worker)
                and size_of(worker, job.model) not in but
            ):
                others = [jobs[key] for key in worker.owners if self._yields(jobs[key], job)]
                return Preemption(worker, self._victims(worker, job, others))
        return None

    def _yields(self, running: Job, to: Job) -> bool:
        return (
            running.state is JobState.RUNNING
            and not running.is_cancelled
            and running.priority < to.priority
            and self.rank(running) > self.rank(to)
        )

    def _victims(self, worker: WorkerSlots, job: Job, others: list[Job]) -> list[Job]:
        victims: list[Job] = []
        free_cells, free_slots = worker.free_cells, worker.free_slots
        for victim in sorted(others, key=lambda j: (-self.rank(j), -j.arrival)):
            if victims and free_slots > 0 and free_cells >= cells_wanted_on(job, worker):
                break
            victims.append(victim)
            free_slots += 1
            free_cells += worker.owners[victim.key].cells
        return victims
