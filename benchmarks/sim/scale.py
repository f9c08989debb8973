"""Costs of the core's decisions, with thousands of workers and a long queue.

Only the core's own work is timed, by the processor time of this thread: what others do on the machine
meanwhile does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.actions import Action
from inferflux.v1 import scheduler_pb2, worker_pb2

from .traffic import MIXED, Arrival, make_arrival
from .worker import MODEL
from .world import START_S, Setup, new_core, to_request

_ROUNDS = 25
_PER_ROUND = 200
_TENANTS = 100


@dataclass(frozen=True, slots=True)
class Cost:
    """With `queued` requests waiting: what one call costs, in seconds, the median of many rounds."""

    queued: int
    placement_s: float
    # Taken in, and told to wait.
    arrival_s: float
    end_s: float

    @property
    def seconds(self) -> tuple[float, float, float]:
        return self.placement_s, self.arrival_s, self.end_s

    @property
    def per_s(self) -> float:
        """Requests that come, are placed and end, per second."""
        return 1 / sum(self.seconds)


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a queue, all workers idle before it."""

    queued: int
    workers: int
    placements: int
    seconds: float

    @property
    def placements_per_s(self) -> float:
        return self.placements / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Stopwatch:
    """Processor time spent in calls."""

    seconds: float = 0.0

    def time(self, call: Callable[[], list[Action]]) -> list[Action]:
        began_s = time.thread_time()
        todo = call()
        self.seconds += time.thread_time() - began_s
        return todo


@dataclass(slots=True)
class Placed:
    """A request on a worker."""

    worker_id: str
    request_id: str
    tenant: str
    epoch: int


@dataclass(slots=True)
class Hall:
    """A core, workers that accept whatever they are given, and the requests they have."""

    core: SchedulerCore
    random: Random
    now: float = START_S
    jobs: int = 0
    running: list[Placed] = field(default_factory=list)

    @classmethod
    def open(cls, setup: Setup, random: Random, *, queued: int) -> Hall:
        """With requests that wait, and have been told so, and workers that are all idle."""
        hall = cls(new_core(setup, now=START_S), random)
        hall.core.on_tick(hall.now)
        hall.submit(queued)
        hall.plan()
        for number in range(setup.workers):
            hall.core.on_heartbeat(_status(f"w{number:05d}", setup), hall.now)
        return hall

    def submit(self, jobs: int) -> float:
        """Have some more jobs wait. Returns the seconds it took the core."""
        requests = [to_request(self._draw()) for _ in range(jobs)]
        watch = Stopwatch()
        for request in requests:
            self.jobs += 1
            handle = self.jobs
            watch.time(lambda: self.core.on_job(request, handle, handle, self.now))  # noqa: B023
        return watch.seconds

    def plan(self) -> tuple[int, float]:
        """Place what can be placed. Returns how many were, and the seconds it took the core."""
        watch = Stopwatch()
        before = len(self.running)
        self._accept(watch.time(lambda: self.core.plan(self.now)))
        return len(self.running) - before, watch.seconds

    def end(self, requests: int) -> float:
        """End some that run, at random. Returns the seconds it took the core."""
        watch = Stopwatch()
        for _ in range(min(requests, len(self.running))):
            at = self.random.randrange(len(self.running))
            self.running[at], self.running[-1] = self.running[-1], self.running[at]
            event = _ended(self.running.pop())
            watch.time(lambda: self.core.on_event(event, self.now))  # noqa: B023
        return watch.seconds

    def _draw(self) -> Arrival:
        kind = self.random.choices(MIXED, [one.share for one in MIXED])[0]
        tenant = f"t{int(self.random.paretovariate(1.0)) % _TENANTS}"
        self.now += 0.001
        return make_arrival(
            f"r{self.jobs}-{self.random.getrandbits(48):x}", kind, self.random, tenant=tenant, at_s=self.now
        )

    def _accept(self, todo: Iterable[Action]) -> None:
        for action in todo:
            if isinstance(action, actions.Dispatch):
                answer = worker_pb2.BatchAccepted(batch_id=action.batch.batch_id)
                for item in action.batch.items:
                    request = item.request
                    answer.accepted_request_ids.append(request.request_id)
                    self.running.append(
                        Placed(action.worker_id, request.request_id, request.tenant, request.epoch)
                    )
                self.core.on_batch_answer(answer, self.now)


def one_pass(setup: Setup, queued: int, random: Random) -> Pass:
    """One scheduling pass: every place is free, `queued` requests wait."""
    hall = Hall.open(setup, random, queued=queued)
    placements, seconds = hall.plan()
    return Pass(queued, setup.workers, placements, seconds)


def costs(setup: Setup, lengths: Sequence[int], random: Random, *, rounds: int = _ROUNDS) -> list[Cost]:
    """Measure decisions when all places are taken, this many requests wait, and some end and come.

    The rounds of all lengths alternate, so that a slow moment of the machine is no property of one length.

    Raises:
        RuntimeError: the core did not fill the places that came free.
    """
    full = setup.workers * setup.model.slots
    halls = [Hall.open(setup, random, queued=full + length) for length in lengths]
    for hall in halls:
        hall.plan()
    requests = min(_PER_ROUND, full, *lengths)
    seconds: list[list[tuple[float, float, float]]] = [[] for _ in halls]
    for _ in range(rounds):
        for hall, of_length in zip(halls, seconds, strict=True):
            of_length.append(_round(hall, requests))
    return [
        Cost(length, *(statistics.median(column) for column in zip(*of_length, strict=True)))
        for length, of_length in zip(lengths, seconds, strict=True)
    ]


def _round(hall: Hall, requests: int) -> tuple[float, float, float]:
    """Seconds of the core for a placement, an arrival and an end."""
    end_s = hall.end(requests)
    placed, plan_s = hall.plan()
    if placed != requests:
        raise RuntimeError(f"{requests} places came free, and {placed} requests were placed")
    arrival_s = hall.submit(requests) + hall.plan()[1]
    return plan_s / placed, arrival_s / requests, end_s / requests


def _status(worker_id: str, setup: Setup) -> scheduler_pb2.WorkerStatus:
    model = setup.model
    status = scheduler_pb2.WorkerStatus(
        worker_id=worker_id,
        incarnation="1",
        state=scheduler_pb2.WORKER_STATE_READY,
        slots=model.slots,
        kv_cells=model.kv_cells,
    )
    status.models.add(name=MODEL, context_length=model.context_length)
    return status


def _ended(placed: Placed) -> scheduler_pb2.WorkerEvent:
    event = scheduler_pb2.WorkerEvent(worker_id=placed.worker_id, incarnation="1")
    event.request_finished.tenant, event.request_finished.request_id = placed.tenant, placed.request_id
    event.request_finished.epoch, event.request_finished.outcome = placed.epoch, "stop"
    return event
