"""Giving waiting jobs their places and their turns (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from inferflux.v1 import worker_pb2

from . import actions, batches, outcomes
from .actions import Action
from .fairness import Preemption
from .jobs import Job, JobState, RequeueReason
from .placement import Size, cells_wanted_on, size_of
from .quarantine import Quarantine
from .queue import ModelQueue
from .slots import Owner, WorkerSlots
from .state import SchedulerState
from .suspects import probation_tokens

# Requests passed over in one plan, whose workers have no place for them, to find one behind them that has.
_PASS_OVER_AT_MOST = 256


@dataclass(frozen=True, slots=True)
class InFlightBatch:
    """A batch on its way, and the epoch of each job in it."""

    worker_id: str
    incarnation: str
    jobs: tuple[tuple[Job, int], ...]


@dataclass(slots=True)
class Placed:
    """What a plan has for one worker."""

    new: list[Job] = field(default_factory=list)
    resumed: list[Job] = field(default_factory=list)
    victims: list[Job] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    """What one look through a model's queue has come to so far."""

    queue: ModelQueue
    now: float
    out: list[Action] = field(default_factory=list)
    # By worker id.
    placed: dict[str, Placed] = field(default_factory=lambda: defaultdict(Placed))
    passed_over: list[Job] = field(default_factory=list)
    # Sizes of workers that are waited for: those behind in the queue get none of them.
    awaited: set[Size] = field(default_factory=set)
    # Workers on which one waits for cells.
    kept: list[WorkerSlots] = field(default_factory=list)


class Planner:
    """Places jobs, and makes the batches that take them there.

    Args:
        name: distinguishes this scheduler's batches from those of others.
    """

    def __init__(self, state: SchedulerState, *, name: str) -> None:
        self._state = state
        self._name = name
        self._quarantine = Quarantine(state)
        self._batches = 0
        # By batch id.
        self._in_flight: dict[str, InFlightBatch] = {}

    def take(self, batch_id: str) -> InFlightBatch | None:
        """The batch was answered, or will not be; None if it is not known."""
        batch = self._in_flight.pop(batch_id, None)
        worker = self._state.table.get(batch.worker_id, batch.incarnation) if batch is not None else None
        if worker is not None:
            worker.unanswered = max(0, worker.unanswered - 1)  # it may have been silent, and forgotten
        return batch

    def plan_model(self, model: str, resumable: Sequence[WorkerSlots], now: float) -> list[Action]:
        """In strict order: a job that fits nowhere now is waited for, or small ones would starve it, by all
        workers that could take it. What waits for its turn on a worker is waited for there alone: passed
        over while there is none, and kept cells for when it lacks nothing else.

        Args:
            resumable: workers on which a parked request may be able to resume since the last plan.
        """
        queue = self._state.queue.models.get(model)
        if queue is None:
            return []
        plan = Plan(queue, now)
        self._place_suspects(model, plan)
        self._look_through(model, plan)
        for job in plan.passed_over:
            queue.put_back(job)
        for worker_id, placed_there in plan.placed.items():
            plan.out += self._send(self._state.table.workers[worker_id], placed_there, now)
        if len(plan.passed_over) == _PASS_OVER_AT_MOST:  # those behind were not looked at
            for worker in resumable:
                if model in worker.context_lengths and size_of(worker, model) not in plan.awaited:
                    plan.out += self.resume_parked(worker, now)
        for worker in plan.kept:
            worker.is_kept = False
            self._state.placement.update(worker)
        return plan.out

    @property
    def models_with_suspects(self) -> set[str]:
        """Models that want a plan though nothing may have happened: suspects wait, or workers for them."""
        waiting = {model for model, queue in self._state.queue.models.items() if queue.has_suspects}
        return waiting | self._quarantine.models

    def _place_suspects(self, model: str, plan: Plan) -> None:
        """Suspects come first, each alone on a worker, so that none is a suspect for long."""
        for job in plan.queue.suspects:
            self._state.handle(job)
            if job.state is JobState.PARKED:  # to run alone, it may have to go elsewhere
                plan.out += self._state.requeue(job, RequeueReason.MOVED, plan.now, must_drop=True)
            if not job.is_queued:
                continue
            if why := self._state.placement.why_never(job):
                plan.out += self._state.finish(job, outcomes.too_large(why))
            elif (worker := self._quarantine.choose(job)) is not None:
                self._take(job, worker, plan, is_alone=True)
        first = next(iter(plan.queue.suspects), None)
        worker = self._quarantine.reserve(model, first, plan.now)
        if worker is not None and first is not None and not worker.is_isolated:
            runs = [self._state.jobs[key] for key, owner in worker.owners.items() if owner.is_running]
            self._park(worker, [job for job in runs if job.state is JobState.RUNNING], first, plan)

    def _look_through(self, model: str, plan: Plan) -> None:
        """Place one after the other; who was passed over is still to be put back."""
        while (job := plan.queue.first()) is not None and len(plan.passed_over) < _PASS_OVER_AT_MOST:
            self._state.handle(job)
            if job.state is JobState.PARKED:
                if self._give_turn(job, plan):
                    continue
                self._keep_cells(job, plan)
            elif self._place(job, plan):
                continue
            else:
                plan.awaited.update(self._state.placement.open_to(job))
                if not self._state.placement.has_open(model, but=plan.awaited):
                    break
            plan.queue.set_aside(job)
            plan.passed_over.append(job)

    def _keep_cells(self, job: Job, plan: Plan) -> None:
        """Where a parked job lacks nothing but cells, leave none to others."""
        worker = self._state.worker_of(job)
        if worker is not None and not job.is_cancelled and self._has_turn(job, worker):
            worker.is_kept = True
            self._state.placement.update(worker)
            plan.kept.append(worker)

    def _give_turn(self, job: Job, plan: Plan) -> bool:
        """Let a parked job go on where it is, or give it up there for another worker to go on with; False if
        it has to wait."""
        worker = self._state.worker_of(job)
        is_free = worker is not None and size_of(worker, job.model) not in plan.awaited
        if worker is not None and is_free and self._can_go_on(job, worker):
            plan.out += self._resume(job, worker, plan.queue, plan.now)
            plan.placed[worker.worker_id].resumed.append(job)
            return True
        if self._should_move(job, plan):
            plan.out += self._state.requeue(job, RequeueReason.MOVED, plan.now, must_drop=True)
            return True
        return False

    def _place(self, job: Job, plan: Plan) -> bool:
        """Give a job its place, or end one that can never have any; False if it has to wait."""
        worker = self._state.placement.choose(job, plan.awaited)
        if worker is None:
            if why := self._state.placement.why_never(job):
                plan.out += self._state.finish(job, outcomes.too_large(why))
                return True
            worker = self._make_room(job, plan)
            if worker is None:
                return False
        self._take(job, worker, plan)
        return True

    def _take(self, job: Job, worker: WorkerSlots, plan: Plan, *, is_alone: bool = False) -> None:
        """Bind a job to a worker, and dispatch it, or first read what it has emitted."""
        plan.queue.depart(job, plan.now)
        self._assign(job, worker, is_alone=is_alone)
        self._state.queue.take_place(job)
        self._charge_prompt(job, plan.queue)
        if job.needs_replay:
            plan.out.append(self._state.read(job))
        else:
            plan.placed[worker.worker_id].new.append(job)

    def resume_parked(self, worker: WorkerSlots, now: float) -> list[Action]:
        """What is parked on a worker gets its turns, most urgent first, whatever waits elsewhere."""
        out: list[Action] = []
        placed = Placed()
        parked = [self._state.jobs[key] for key, owner in worker.owners.items() if not owner.is_running]
        for job in sorted(parked, key=self._state.queue.urgency_key):
            self._state.handle(job)
            if self._can_go_on(job, worker):
                out += self._resume(job, worker, self._state.queue.models[job.model], now)
                placed.resumed.append(job)
        return out + self._send(worker, placed, now)

    def _can_go_on(self, job: Job, worker: WorkerSlots) -> bool:
        has_cells = cells_wanted_on(job, worker) <= worker.free_cells or not worker.owned_cells
        return self._has_turn(job, worker) and has_cells and not job.is_cancelled

    @staticmethod
    def _has_turn(job: Job, worker: WorkerSlots) -> bool:
        owner = worker.owners[job.key]
        has_slot = owner.slot is not None or worker.has_slot
        return worker.can_resume and owner.is_confirmed and has_slot

    def _should_move(self, job: Job, plan: Plan) -> bool:
        """Whether another worker should compute it again: it has waited, and there is one that has room, and
        no parked requests of its own to fill it with."""
        has_waited = job.waited_there_s + plan.now - job.parked_s >= self._state.limits.move_after_s
        if not has_waited or job.is_cancelled:
            return False
        other = self._state.placement.choose(job, plan.awaited)
        return other is not None and other.worker_id != job.worker_id and not other.has_parked

    def _resume(self, job: Job, worker: WorkerSlots, queue: ModelQueue, now: float) -> list[Action]:
        queue.depart(job, now)
        self._state.queue.take_place(job)
        residence = worker.owners[job.key].residence
        worker.resume(job.key, cells_wanted_on(job, worker), self._state.take_urgency(job))
        self._state.placement.update(worker)
        job.is_resuming = True
        waited_s = now - job.parked_s
        job.waited_there_s += waited_s
        job.parked_s = now  # should it have to wait on
        name = residence.name.lower()
        return [actions.Resumed(job.key, job.handle, worker.worker_id, waited_s, name)]

    def _make_room(self, job: Job, plan: Plan) -> WorkerSlots | None:
        """Have less urgent requests give way, if the job is urgent enough; returns where."""
        preemption = self._preemption_for(job, plan.awaited)
        if preemption is None:
            return None
        self._park(preemption.worker, preemption.victims, job, plan)
        return preemption.worker

    def _park(self, worker: WorkerSlots, victims: Iterable[Job], by: Job, plan: Plan) -> None:
        """Have running requests give way to another."""
        for victim in victims:
            worker.park(victim.key, is_confirmed=False)
            self._state.to_parked(victim, plan.now)
            plan.placed[worker.worker_id].victims.append(victim)
            plan.out.append(actions.Preempted(victim.key, victim.handle, worker.worker_id, by=by.key))
        self._state.placement.update(worker)

    @staticmethod
    def _charge_prompt(job: Job, queue: ModelQueue) -> None:
        if not job.is_prompt_charged:
            job.is_prompt_charged = True
            queue.charge(job.key.tenant, job.prompt_tokens, 0)

    def _assign(self, job: Job, worker: WorkerSlots, *, is_alone: bool) -> None:
        epoch = 0 if job.needs_replay else job.epoch
        key = self._state.take_urgency(job)
        worker.assign(job.key, epoch, cells_wanted_on(job, worker), key, is_alone=is_alone)
        job.worker_id = worker.worker_id
        job.waited_there_s = 0.0
        self._state.placement.update(worker)

    def _send(self, worker: WorkerSlots, placed: Placed, now: float) -> list[Action]:
        """Preemptions travel with the first batch of those they make room for, or alone, ahead of those that
        have to be read first."""
        out = self.dispatch(worker, placed.new, now, placed.victims)
        if placed.victims and not placed.new:
            out.append(self._without_items(worker, now, placed.victims))
        return out + self.dispatch(worker, placed.resumed, now)

    def dispatch(
        self, worker: WorkerSlots, jobs: list[Job], now: float, victims: Iterable[Job] = ()
    ) -> list[Action]:
        out: list[Action] = []
        limits = self._state.limits
        for batch in batches.split(jobs, max_size=limits.max_batch_size, max_tokens=limits.max_batch_tokens):
            message = self._new_batch(worker, now)
            batches.add_preemptions(message, victims)
            batches.begin(message, batch)
            for job in batch:
                self._state.handle(job)
                batches.add(message, self._turn(job, worker.owners[job.key]))
            victims = ()
            waits_s = tuple(now - job.enqueued_s for job in batch if not job.has_run)
            in_flight = tuple((job, job.epoch) for job in batch)
            self._in_flight[message.batch_id] = InFlightBatch(worker.worker_id, worker.incarnation, in_flight)
            worker.unanswered += 1
            for job in batch:
                job.state = JobState.DISPATCHING
                job.dispatched_s = now
            out.append(
                actions.Dispatch(
                    worker_id=worker.worker_id,
                    batch=message,
                    model=batch[0].model,
                    waits_s=waits_s,
                    handles=tuple(job.handle for job in batch),
                )
            )
        return out

    def _new_batch(self, worker: WorkerSlots, now: float) -> worker_pb2.RequestBatch:
        self._batches += 1
        return worker_pb2.RequestBatch(
            batch_id=f"{self._name}-{self._batches}",
            incarnation=worker.incarnation,
            term=self._state.term,
            created_unix_ms=round(now * 1000),
        )

    def ask(self, worker: WorkerSlots, now: float) -> Action:
        """Whether the worker is there: a batch of nothing, which it answers."""
        worker.was_asked = True
        return self._without_items(worker, now)

    def _without_items(self, worker: WorkerSlots, now: float, victims: Iterable[Job] = ()) -> Action:
        message = self._new_batch(worker, now)
        batches.add_preemptions(message, victims)
        self._in_flight[message.batch_id] = InFlightBatch(worker.worker_id, worker.incarnation, ())
        worker.unanswered += 1
        return actions.Dispatch(worker_id=worker.worker_id, batch=message, model="", waits_s=(), handles=())

    def _turn(self, job: Job, owner: Owner) -> batches.Turn:
        slot = owner.slot if owner.slot is not None else 0
        budget = probation_tokens(job) if job.is_suspect else self._state.fairness.timeslice(job)
        return batches.Turn(job, slot, budget)

    def has_room(self, job: Job) -> bool:
        """Whether it need not wait: there is a place, or others make one."""
        if self._state.placement.choose(job) is not None:
            return True
        return self._preemption_for(job) is not None

    def _preemption_for(self, job: Job, but: Collection[Size] = ()) -> Preemption | None:
        state = self._state
        queue = state.queue.models[job.model]
        return state.fairness.preempt_for(job, queue, state.table, state.jobs, but)
