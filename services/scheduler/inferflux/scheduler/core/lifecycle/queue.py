"""The jobs that wait, per model (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from math import exp

from inferflux.scheduler.core.order.queue_policies import Fcfs
from inferflux.scheduler.core.order.queue_policy import QueuePolicy
from inferflux.scheduler.core.order.running import Running
from inferflux.scheduler.core.types.announcements import Outlook
from inferflux.scheduler.core.types.bounds import Waiting
from inferflux.scheduler.core.types.jobs import Demand, Job
from inferflux.scheduler.core.workers.placement import Size, fits_size

from .prefix_waits import MeanService

# The pace of departures is that of about the last half minute, and of no fewer than some ten bursts.
_PACE_MEMORY_S = 30.0
_LEAST_DECAY = 0.9
# A pace foretells no more than this many times the time it was seen for: a burst begins slowly.
_FORESIGHT = 10.0

# Lanes that are kept although they are empty: their orders remember what tenants were served.
_LANES_KEPT = 64


class Pace:
    """Rate at which jobs leave a queue while others wait.

    Slots become free several at a time, so jobs depart in bursts: a running mean of the gaps between them
    would say what came last, a gap or a burst. Instead time and departures have a sum each, which decays.
    """

    def __init__(self) -> None:
        self._time_s = 0.0
        self._departures = 0.0
        self._since_s: float | None = None
        self._is_start = False
        # Since jobs began to wait.
        self._seen_s = 0.0

    @property
    def foresight_s(self) -> float:
        """The longest wait that may be foretold from what was seen since jobs began to wait."""
        return _FORESIGHT * self._seen_s

    @property
    def interval_s(self) -> float:
        """Mean time between two departures; 0 until known."""
        return self._time_s / self._departures if self._departures else 0.0

    def depart(self, now: float) -> None:
        """One leaves. The first ones after a pause only start the clock: they may have found slots free."""
        if self._since_s is None:
            self._since_s, self._is_start = now, True
        elif now > self._since_s:
            elapsed_s, self._since_s, self._is_start = now - self._since_s, now, False
            decay = max(_LEAST_DECAY, exp(-elapsed_s / _PACE_MEMORY_S))
            self._time_s = self._time_s * decay + elapsed_s
            self._seen_s += elapsed_s
            self._departures = self._departures * decay + 1
        elif not self._is_start:
            self._departures += 1

    def pause(self) -> None:
        """No job waits any more: until the next departure, time does not count."""
        self._since_s = None
        self._seen_s = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """Requests that fit the same workers, in order. If the first of them has to wait, so have the others.

    Attributes:
        misfits: sizes of workers that could not run them, even if they were empty.
    """

    misfits: frozenset[Size]
    order: QueuePolicy


class ModelQueue:
    """One model's queue: lanes in a policy's order, and how fast they move. Suspects have their own lane.

    A request is put into the lane of the sizes that are known then. A worker of a new size may separate the
    requests of a lane: each is moved when it is the first of its lane and has to wait.

    Args:
        new_policy: makes an empty order.
        waiting: counts the jobs of all queues together.
        running: running requests of the model.
        sizes: of the workers that are ready for the model.
    """

    def __init__(
        self,
        new_policy: Callable[[], QueuePolicy],
        waiting: Waiting | None = None,
        running: Running | None = None,
        sizes: Callable[[], Collection[Size]] = lambda: (),
    ) -> None:
        self._new_policy = new_policy
        self.running = Running() if running is None else running
        self._sizes = sizes
        # For questions about urgency and for charges; it orders one lane.
        self.policy = new_policy()
        self._lanes = {frozenset[Size](): Lane(frozenset(), self.policy)}
        # What waits to resume on workers, most urgent of each, while a plan is made.
        self.offers = Lane(frozenset(), new_policy())
        self._suspects = Lane(frozenset(), Fcfs())
        # By worker id: what waits for that worker alone.
        self._waiting_for: dict[str, Lane] = {}
        # What requests of the model took.
        self.service = MeanService()
        self._waiting = Waiting() if waiting is None else waiting
        self._pace = Pace()
        self._oldest: list[tuple[float, int, Job]] = []
        self._members: dict[Job, Lane] = {}
        # How many there are for each of the places where requests may run.
        self._demands: Counter[Demand] = Counter()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._members)

    @property
    def demands(self) -> Collection[Demand]:
        """Demands that the waiting requests make on workers, each once."""
        return tuple(self._demands)

    @property
    def suspects(self) -> list[Job]:
        """Return the jobs that wait to run alone, first come first."""
        return sorted(self._suspects.order, key=lambda job: job.order)

    @property
    def has_suspects(self) -> bool:
        return len(self._suspects.order) > 0

    def _misfits(self, job: Job) -> frozenset[Size]:
        return frozenset(size for size in self._sizes() if not fits_size(job, size))

    def _lane(self, misfits: frozenset[Size]) -> Lane:
        lane = self._lanes.get(misfits)
        if lane is None:
            if len(self._lanes) >= _LANES_KEPT:
                self._lanes = {key: lane for key, lane in self._lanes.items() if not key or len(lane.order)}
            lane = self._lanes[misfits] = Lane(misfits, self._new_policy())
        return lane

    @property
    def departure_interval_s(self) -> float:
        """Mean time between two departures while others wait; 0 until known."""
        return self._pace.interval_s

    def push(self, job: Job) -> None:
        lane = self._members[job] = self._suspects if job.is_suspect else self._lane(self._misfits(job))
        lane.order.push(job)
        self._demands[job.demand] += 1
        self._waiting.enter(job.key.tenant)
        heappush(self._oldest, (job.enqueued_s, job.arrival, job))
        if len(self._oldest) > 2 * len(self._members) + 64:
            self._oldest = sorted((j.enqueued_s, j.arrival, j) for j in self._members)

    def first(self, closed: Collection[Lane] = ()) -> Job | None:
        """The next in order, offered ones among them; no suspect.

        Args:
            closed: none of these lanes.
        """
        lanes = (*self._lanes.values(), self.offers)
        jobs = [job for lane in lanes if lane not in closed and (job := lane.order.first()) is not None]
        return self.policy.first_of(jobs) if len(jobs) > 1 else next(iter(jobs), None)

    def lane_of(self, job: Job) -> Lane:
        """Return the lane in which a job waits. Raises KeyError if it does not wait here."""
        return self._members[job]

    def move(self, job: Job) -> bool:
        """Have it wait where it belongs. Returns whether it was elsewhere; its place in the order is the
        same."""
        lane, misfits = self._members[job], self._misfits(job)
        if lane.misfits.intersection(self._sizes()) == misfits:
            return False
        lane.order.discard(job)
        lane = self._members[job] = self._lane(misfits)
        lane.order.put_back(job)
        return True

    @property
    def waited_for(self) -> Collection[str]:
        """Workers that requests wait for, by id."""
        return tuple(self._waiting_for)

    def n_waiting_for(self, worker_id: str) -> int:
        """Number of requests that wait for this worker alone."""
        lane = self._waiting_for.get(worker_id)
        return 0 if lane is None else len(lane.order)

    def wait_for(self, job: Job, worker_id: str) -> None:
        """Have it wait for one worker, out of the way of others. Raises KeyError if it does not wait here."""
        self._members[job].order.discard(job)
        lane = self._waiting_for.get(worker_id)
        if lane is None:
            lane = self._waiting_for[worker_id] = Lane(frozenset(), self._new_policy())
        lane.order.put_back(job)
        self._members[job] = lane

    def take_back(self, worker_id: str, is_due: Callable[[Job], bool]) -> None:
        """Have those of the requests that wait for one worker wait for any again."""
        lane = self._waiting_for[worker_id]
        for job in [job for job in lane.order if is_due(job)]:
            lane.order.discard(job)
            back = self._members[job] = self._lane(self._misfits(job))
            back.order.put_back(job)
        if not len(lane.order):
            del self._waiting_for[worker_id]

    @property
    def waiting_for_one(self) -> Iterator[Job]:
        """Yield the jobs that wait for one worker each."""
        return (job for lane in self._waiting_for.values() for job in lane.order)

    def depart(self, job: Job, now: float) -> None:
        """Remove a job that is served. Raises KeyError if it does not wait here."""
        self._members[job].order.discard(job)
        self._pace.depart(now)
        self._forget(job)

    def discard(self, job: Job) -> None:
        """Remove a job that does not wait any more for another reason. Raises KeyError if it does not wait
        here."""
        self._members[job].order.discard(job)
        self._forget(job)

    def _forget(self, job: Job) -> None:
        del self._members[job]
        demand = job.demand
        self._demands[demand] -= 1
        if not self._demands[demand]:
            del self._demands[demand]
        self._waiting.leave(job.key.tenant)
        for worker_id in [worker_id for worker_id, lane in self._waiting_for.items() if not len(lane.order)]:
            del self._waiting_for[worker_id]
        if not self._members:
            self._pace.pause()

    def on_running(self, tenant: str) -> None:
        """As in `QueuePolicy.on_running`."""
        for lane in (*self._lanes.values(), *self._waiting_for.values(), self.offers):
            lane.order.on_running(tenant)

    def sort(self) -> None:
        """Sort all in anew: which requests are urgent has changed."""
        for lane in (*self._lanes.values(), *self._waiting_for.values()):
            jobs = list(lane.order)
            for job in jobs:
                lane.order.discard(job)
            for job in jobs:
                lane.order.put_back(job)

    def position(self, job: Job) -> int:
        """Number of jobs served before it, as if all lanes were one. Raises KeyError if it is not here."""
        lane = self._members[job]
        others = (*self._lanes.values(), *self._waiting_for.values())
        lanes = [lane] if lane is self._suspects else others
        return sum(lane.order.position(job) for lane in lanes)

    def outlook(self, job: Job) -> Outlook:
        """Its position, and the wait expected from there by the pace of late; 0 while that is not known."""
        position = self.position(job)
        return Outlook(position, (position + 1) * self._pace.interval_s)

    def certain_wait_s(self, job: Job) -> float:
        """Part of the expected wait, in seconds, that is certain enough to refuse a job for."""
        return min(self.outlook(job).expected_wait_s, self._pace.foresight_s)

    def oldest_enqueued_s(self) -> float | None:
        """Time at which the longest waiting job was enqueued."""
        while self._oldest and self._oldest[0][2] not in self._members:
            heappop(self._oldest)
        return self._oldest[0][0] if self._oldest else None


class Queue:
    """Every model's queue, and what runs of each model.

    Args:
        new_policy: makes the order of a model's queue, given what runs of that model.
        new_running: makes the count of what runs of a model, by name.
        sizes: of the workers that are ready for a model, by name.
    """

    def __init__(
        self,
        new_policy: Callable[[Running], QueuePolicy],
        new_running: Callable[[str], Running] = lambda _model: Running(),
        sizes: Callable[[str], Collection[Size]] = lambda _model: (),
    ) -> None:
        self._new_policy = new_policy
        self._new_running = new_running
        self._sizes = sizes
        self.running: dict[str, Running] = {}
        # Jobs that have a place on a worker.
        self._placed: set[Job] = set()
        self.models: dict[str, ModelQueue] = {}
        self.waiting = Waiting()

    def __len__(self) -> int:
        return self.waiting.total

    def of(self, model: str) -> ModelQueue:
        """The queue of a model, made where there is none."""
        queue = self.models.get(model)
        if queue is None:
            queue = self.models[model] = self._new_queue(model)
        return queue

    def push(self, job: Job) -> ModelQueue:
        queue = self.of(job.model)
        queue.push(job)
        return queue

    def _new_queue(self, model: str) -> ModelQueue:
        running = self._running_of(model)
        return ModelQueue(
            lambda: self._new_policy(running), self.waiting, running, lambda: self._sizes(model)
        )

    def discard(self, job: Job) -> None:
        self.models[job.model].discard(job)

    def take_place(self, job: Job) -> None:
        """Count a place on a worker for a job that had none."""
        if job not in self._placed:
            self._placed.add(job)
            self._running_of(job.model).add(job)
            self._on_running(job)

    def give_place_back(self, job: Job) -> None:
        """Count the place of a job as free, if it had one."""
        if job in self._placed:
            self._placed.remove(job)
            self._running_of(job.model).remove(job)
            self._on_running(job)

    def sort(self) -> None:
        """Sort every queue anew: which requests are urgent has changed."""
        for queue in self.models.values():
            queue.sort()

    def urgency_key(self, job: Job) -> float:
        """As in `QueuePolicy.urgency_key`, by its model's queue."""
        return self.of(job.model).policy.urgency_key(job)

    def _running_of(self, model: str) -> Running:
        running = self.running.get(model)
        if running is None:
            running = self.running[model] = self._new_running(model)
        return running

    def _on_running(self, job: Job) -> None:
        if (queue := self.models.get(job.model)) is not None:
            queue.on_running(job.key.tenant)

    def forget_empty(self, is_served: Callable[[str], bool]) -> None:
        """Let go of queues that are empty and whose model no worker serves: names come from outside."""
        for model in [m for m, q in self.models.items() if not q and not is_served(m)]:
            del self.models[model]
        for model in [m for m, running in self.running.items() if not running and m not in self.models]:
            if not is_served(model):
                del self.running[model]

    def oldest_enqueued_s(self) -> float | None:
        times = (queue.oldest_enqueued_s() for queue in self.models.values())
        return min((t for t in times if t is not None), default=None)
