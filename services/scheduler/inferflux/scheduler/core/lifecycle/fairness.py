"""Choice of the running requests that are descheduled so that others run (pure).

Two means, both off by default. A timeslice deschedules an ordinary request after that many tokens: the
worker does that by itself. A preemption deschedules the least urgent one when an urgent request finds no
slot. Either way the request stays resident and resumes when it is first in the queue again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice

from inferflux.scheduler.core.types.jobs import Job, JobState, RequestKey
from inferflux.scheduler.core.types.ranking import Ranking
from inferflux.scheduler.core.workers.placement import Size, cells_wanted_on, fits, size_of
from inferflux.scheduler.core.workers.slot_table import SlotTable
from inferflux.scheduler.core.workers.slots import Start, WorkerSlots
from inferflux.v1 import scheduler_pb2

from .queue import ModelQueue

# Least urgent requests looked at to find one on a worker that suits.
_LOOK_AT_MOST = 64


@dataclass(frozen=True, slots=True)
class FairnessSettings:
    """Settings of fairness that may be changed while requests run."""

    # Whether an urgent request that finds no place takes that of a less urgent one.
    enable_preemption: bool = False
    # Requests of this priority and above preempt, and are not sliced.
    high_priority_threshold: int = 5
    # Others yield after this many tokens; 0 lets them run to the end.
    max_timeslice_tokens: int = 0
    # Rises with each change. It is no setting: nothing goes by it here.
    version: int = field(default=1, compare=False)

    @classmethod
    def of(cls, message: scheduler_pb2.Fairness) -> FairnessSettings:
        return cls(
            message.enable_preemption,
            message.high_priority_threshold,
            message.max_timeslice_tokens,
            message.version,
        )

    def to_message(self) -> scheduler_pb2.Fairness:
        return scheduler_pb2.Fairness(
            enable_preemption=self.enable_preemption,
            high_priority_threshold=self.high_priority_threshold,
            max_timeslice_tokens=self.max_timeslice_tokens,
            version=self.version,
        )


@dataclass(frozen=True, slots=True)
class Preemption:
    """Requests that give way on a worker."""

    worker: WorkerSlots
    victims: list[Job]


class FairnessController:
    """Knows the running requests, least urgent first."""

    def __init__(self, settings: FairnessSettings) -> None:
        self.settings = settings
        self._running: dict[str, Ranking[tuple[float, int, Job]]] = defaultdict(Ranking)
        self._entries: dict[int, tuple[float, int, Job]] = {}

    def is_urgent(self, job: Job) -> bool:
        return job.priority >= self.settings.high_priority_threshold

    def timeslice(self, job: Job) -> int:
        """New tokens of its next run; 0 for no bound."""
        return 0 if self.is_urgent(job) else self.settings.max_timeslice_tokens

    def on_running(self, job: Job) -> None:
        """A worker has taken it up, or lets it go on."""
        self.on_stopped(job)
        entry = (-job.urgency_key, -job.arrival, job)
        self._entries[job.arrival] = entry
        self._running[job.model].add(entry)

    def on_stopped(self, job: Job) -> None:
        """Forget a request that does not run any more; nothing if it did not."""
        entry = self._entries.pop(job.arrival, None)
        if entry is not None:
            self._running[job.model].remove(entry)

    def preempt_for(
        self,
        job: Job,
        queue: ModelQueue,
        table: SlotTable,
        jobs: Mapping[RequestKey, Job],
        but: Collection[Size] = (),
    ) -> Preemption | None:
        """The requests that should give way to one that found no place; None if none should.

        The least urgent running request decides on which worker; if its cells are not enough there, others
        of that worker follow it, least urgent first, for as long as the request precedes them. Requests that
        are not urgent keep the slots that are guaranteed to them.

        Args:
            queue: of its model.
            but: on no worker of these sizes.
        """
        if not (self.settings.enable_preemption and self.is_urgent(job)):
            return None
        running = [entry[2] for entry in islice(self._running.get(job.model, ()), _LOOK_AT_MOST)]
        # The order of some policies changes while requests run.
        for least_urgent in sorted(running, key=queue.policy.urgency_key, reverse=True):
            worker = table.get(least_urgent.worker_id or "")
            if (
                worker is not None
                and worker.admits(Start.NEW)
                and self._yields(least_urgent, job, queue)
                and fits(job, worker)
                and size_of(worker, job.model) not in but
            ):
                others = [jobs[key] for key in worker.assignments if self._yields(jobs[key], job, queue)]
                return Preemption(worker, self._victims(worker, job, others, queue))
        return None

    @staticmethod
    def _yields(running: Job, to: Job, queue: ModelQueue) -> bool:
        return (
            running.state is JobState.RUNNING
            and not running.is_cancelled
            and running.priority < to.priority
            and queue.policy.precedes(to, running)
            and (queue.running.may_yield > 0 or not queue.running.is_ordinary(running))
        )

    @staticmethod
    def _victims(worker: WorkerSlots, job: Job, others: list[Job], queue: ModelQueue) -> list[Job]:
        victims: list[Job] = []
        free_cells, free_slots = worker.free_cells, worker.free_slots
        ordinary_left = queue.running.may_yield
        for victim in sorted(others, key=lambda j: (-queue.policy.urgency_key(j), -j.arrival)):
            if victims and free_slots > 0 and free_cells >= cells_wanted_on(job, worker):
                break
            if queue.running.is_ordinary(victim):
                if not ordinary_left:
                    continue
                ordinary_left -= 1
            victims.append(victim)
            free_slots += 1
            free_cells += worker.assignments[victim.key].cells
        return victims
