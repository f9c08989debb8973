"""Giving waiting jobs their slots (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from inferflux.scheduler.core.types import actions, outcomes
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.jobs import Job, JobState
from inferflux.scheduler.core.types.moves import Why
from inferflux.scheduler.core.workers.assignments import Residence
from inferflux.scheduler.core.workers.placement import Size, cells_wanted_on, size_of, slowness_of
from inferflux.scheduler.core.workers.slots import Start, WorkerSlots
from inferflux.v1 import worker_pb2

from . import batches
from .fairness import Preemption
from .moves import Moves
from .prefix_waits import longest_wait_s
from .quarantine import Quarantine
from .queue import Lane, ModelQueue
from .state import SchedulerState
from .suspects import probation_tokens

# Requests that one plan moves to other lanes, at most; the next plan moves more.
_MOVES_AT_MOST = 1024
# Workers without a free slot that are looked at in one plan for requests that may go on elsewhere.
_LOOK_AT_MOST = 64


@dataclass(frozen=True, slots=True)
class InFlightBatch:
    """A batch on its way, and the epoch of each job in it."""

    worker_id: str
    incarnation: str
    jobs: tuple[tuple[Job, int], ...]


@dataclass(slots=True)
class WorkerPlan:
    """Jobs that a plan places on one worker, and the victims that make room there."""

    new: list[Job] = field(default_factory=list)
    resumed: list[Job] = field(default_factory=list)
    victims: list[Job] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    """Result so far of one pass through a model's queue."""

    queue: ModelQueue
    now: float
    out: list[Action] = field(default_factory=list)
    # By worker id.
    workers: dict[str, WorkerPlan] = field(default_factory=lambda: defaultdict(WorkerPlan))
    # Lanes whose first has to wait.
    closed: set[Lane] = field(default_factory=set)
    # Sizes of workers that an earlier request waits for: those behind it get none of them.
    blocked: set[Size] = field(default_factory=set)
    # What waits on workers, least urgent first, by worker id, but for what is offered.
    waiting: dict[str, list[Job]] = field(default_factory=dict)
    # Workers on which one waits for cells.
    reserving: list[WorkerSlots] = field(default_factory=list)
    # To be sent once the batches are.
    commands: list[Action] = field(default_factory=list)

    def urgency(self, job: Job) -> tuple[float, int]:
        """Orders what waits on one worker; lower is more urgent."""
        return self.queue.policy.urgency_key(job), job.arrival


class Planner:
    """Places jobs, and makes the batches that take them there.

    Args:
        name: distinguishes this scheduler's batches from those of others.
    """

    def __init__(self, state: SchedulerState, moves: Moves, *, name: str) -> None:
        self._state = state
        self._moves = moves
        self._name = name
        self._quarantine = Quarantine(state)
        self._batches = 0
        # By batch id.
        self._in_flight: dict[str, InFlightBatch] = {}

    def take(self, batch_id: str) -> InFlightBatch | None:
        """The batch was answered, or will not be; None if it is not known."""
        return self._in_flight.pop(batch_id, None)

    def plan_model(self, model: str, now: float) -> list[Action]:
        """Plan a model's queue in strict order: a job that fits nowhere now is waited for, or small ones
        would starve it, by all workers that could take it. Each worker with a free slot offers the most
        urgent of what waits there; it takes part in the order of the queue.
        """
        plan = Plan(self._state.queue.of(model), now)
        self._place_suspects(model, plan)
        self._place_moved(model, plan)
        self._take_back(plan)
        self._offer_waiting(model, plan)
        self._look_through(model, plan)
        for worker in plan.reserving:
            worker.reserve_cells(is_on=False)
        for worker_id, worker_plan in plan.workers.items():
            plan.out += self._send(self._state.table.workers[worker_id], worker_plan, now)
        return plan.out + plan.commands

    def due_models(self, now: float) -> set[str]:
        """Models that want a plan though nothing may have happened: suspects wait, or workers for them, or a
        request has waited for one worker for long enough."""
        queues = self._state.queue.models.items()
        due = {model for model, queue in queues if queue.has_suspects or self._is_wait_over(queue, now)}
        return due | self._quarantine.models

    def _place_suspects(self, model: str, plan: Plan) -> None:
        """Suspects come first, each alone on a worker, so that none is a suspect for long."""
        for job in plan.queue.suspects:
            self._state.handle(job)
            if why := self._state.placement.why_never(job):
                plan.out += self._state.finish(job, outcomes.impossible(why))
            elif (worker := self._quarantine.choose(job)) is not None:
                self._state.end_move(job, "over")  # not to where its state is: it runs alone
                self._take(job, worker, plan, is_alone=True)
        first = next(iter(plan.queue.suspects), None)
        worker = self._quarantine.reserve(model, first, plan.now)
        if worker is not None and first is not None and worker.alone is None:
            jobs = [self._state.jobs[key] for key in worker.assignments]
            self._deschedule(worker, [job for job in jobs if job.state is JobState.RUNNING], first, plan)

    def _place_moved(self, model: str, plan: Plan) -> None:
        """Requests that follow their state have their places: no other waits for those."""
        for job in self._state.moves.following:
            if job.model == model and job.is_queued:
                self._state.handle(job)
                if (worker := self._moves.place(job)) is not None:
                    self._take(job, worker, plan)

    def _take_back(self, plan: Plan) -> None:
        """Have requests that waited for one worker wait for any again, where that is over."""
        for worker_id in plan.queue.waited_for:
            if self._need_not_wait_for(worker_id):
                plan.queue.take_back(worker_id, lambda _job: True)
            else:
                plan.queue.take_back(worker_id, lambda job: self._has_waited(job, plan.now))

    def _need_not_wait_for(self, worker_id: str) -> bool:
        """True if nothing has to wait for a worker: it has a slot, or takes nothing new."""
        worker = self._state.table.get(worker_id)
        return worker is None or not worker.admits(Start.NEW) or worker.has_slot_for(Start.NEW)

    def _has_waited(self, job: Job, now: float) -> bool:
        """True if a request has waited for one worker for as long as it may; it may have become urgent."""
        return now >= job.wait.until_s or self._state.fairness.is_urgent(job)

    def _is_wait_over(self, queue: ModelQueue, now: float) -> bool:
        return any(map(self._need_not_wait_for, queue.waited_for)) or any(
            self._has_waited(job, now) for job in queue.waiting_for_one
        )

    def _offer_waiting(self, model: str, plan: Plan) -> None:
        """Let workers offer what waits there: those with a free slot, and where others have room, those whose
        most urgent has waited for long."""
        for worker in self._state.placement.resumable(model):
            self._offer(worker, model, plan)
        if self._state.placement.has_open(model):
            for worker in self._state.placement.waiting(model)[:_LOOK_AT_MOST]:
                if not worker.has_slot_for(Start.RESUME):
                    self._offer(worker, model, plan)

    def _offer(self, worker: WorkerSlots, model: str, plan: Plan) -> None:
        jobs = (self._state.jobs[assignment.key] for assignment in worker.waiting)
        waiting = [job for job in jobs if job.model == model and not job.is_cancelled]
        plan.waiting[worker.worker_id] = sorted(waiting, key=plan.urgency, reverse=True)
        self._offer_next(worker, plan)

    @staticmethod
    def _offer_next(worker: WorkerSlots, plan: Plan) -> None:
        if waiting := plan.waiting[worker.worker_id]:
            plan.queue.offers.order.put_back(waiting.pop())

    def _look_through(self, model: str, plan: Plan) -> None:
        """Place one after the other. A lane whose first has to wait is not looked at any more."""
        queue, moves = plan.queue, 0
        while (job := queue.first(plan.closed)) is not None and moves < _MOVES_AT_MOST:
            self._state.handle(job)
            if job.state is JobState.PARKED:
                self._take_up_offer(job, plan)
            elif self._place(job, plan):
                continue
            elif queue.move(job):
                moves += 1
            else:
                plan.closed.add(queue.lane_of(job))
                plan.blocked.update(self._state.placement.open_to(job))
        if job is not None:
            self._state.replan_models([model])
            for offered in list(queue.offers.order):
                queue.offers.order.discard(offered)

    def _take_up_offer(self, job: Job, plan: Plan) -> None:
        """Resume a job on its worker, or have another worker go on with it, or leave no cells to newcomers
        where it lacks nothing else."""
        worker = self._state.table.workers[job.worker_id or ""]
        plan.queue.offers.order.discard(job)
        if worker.has_slot_for(Start.RESUME) and size_of(worker, job.model) not in plan.blocked:
            if self._has_cells(job, worker):
                plan.out += self._resume(job, worker, plan.now)
                plan.workers[worker.worker_id].resumed.append(job)
                if worker.has_slot_for(Start.RESUME):
                    self._offer_next(worker, plan)
                return
            if self._goes_on_at(job, plan) is None:
                worker.reserve_cells(is_on=True)
                plan.reserving.append(worker)
                return
        if (other := self._goes_on_at(job, plan)) is not None:
            plan.out += self._moves.leave(job, other, Why.PREEMPTED, plan.now)

    def _place(self, job: Job, plan: Plan) -> bool:
        """Give a job its place, or end one that can never have any; False if it has to wait."""
        worker = self._state.placement.choose(job, plan.blocked)
        if worker is None:
            if why := self._state.placement.why_never(job):
                plan.out += self._state.finish(job, outcomes.impossible(why))
                return True
            worker = self._make_room(job, plan)
            if worker is None:
                return False
        elif (holder := self._worth_waiting_for(job, worker, plan)) is not None:
            plan.queue.wait_for(job, holder.worker_id)
            return True
        elif (prefill := self._prompt_worker(job, worker, plan)) is not None:
            self._take(job, prefill, plan)
            plan.commands += self._moves.begin(job, worker, Why.SPLIT, plan.now)
            return True
        self._take(job, worker, plan)
        return True

    def _prompt_worker(self, job: Job, worker: WorkerSlots, plan: Plan) -> WorkerSlots | None:
        """The prefill worker that computes the prompt of a job for the chosen one; None if that does it."""
        prefill, decision = self._moves.prompt_worker(job, worker, plan.blocked)
        if decision is not None:
            plan.out.append(actions.CountSplit(decision.value))
        return prefill

    def _worth_waiting_for(self, job: Job, chosen: WorkerSlots, plan: Plan) -> WorkerSlots | None:
        """A worker without room that has more of the prompt than the chosen one, if the request had better
        wait for it."""
        if not job.cached_on or self._state.fairness.is_urgent(job):
            return None
        holder = self._state.placement.better_full(job, chosen)
        if holder is None or size_of(holder, job.model) in plan.blocked:
            return None
        # Counted in tokens of the holder: the chosen worker would take that much longer.
        more = job.cached_on[holder.worker_id] - job.cached_on.get(chosen.worker_id, 0)
        saved = more * slowness_of(chosen, job.model) / slowness_of(holder, job.model)
        if not job.wait.until_s:  # a wait that is over does not begin again
            queue = plan.queue
            wait_s = longest_wait_s(
                job,
                saved,
                queue.service,
                holder.status,
                plan.now,
                ahead=queue.n_waiting_for(holder.worker_id),
                delayed=chosen.n_running,
            )
            job.wait.allow(plan.now + min(wait_s, self._state.limits.prefix_wait_s))
        if job.wait.until_s <= plan.now:
            return None
        job.wait.wait_for(holder.worker_id)
        return holder

    def _take(self, job: Job, worker: WorkerSlots, plan: Plan, *, is_alone: bool = False) -> None:
        """Bind a job to a worker, and dispatch it, or first read what it has replayed."""
        plan.queue.depart(job, plan.now)
        self._assign(job, worker, is_alone=is_alone)
        self._state.queue.take_place(job)
        self._charge_prompt(job, plan.queue)
        if job.wait.holder_id is not None:
            is_there = job.wait.holder_id == worker.worker_id
            plan.out.append(actions.PrefixWaited(job.key, job.handle, is_there))
            job.wait.wait_for(None)
        if job.replay.is_due:
            plan.out.append(self._state.read(job))
        else:
            plan.workers[worker.worker_id].new.append(job)

    @staticmethod
    def _has_cells(job: Job, worker: WorkerSlots) -> bool:
        return cells_wanted_on(job, worker) <= worker.free_cells or not worker.assigned_cells

    def _goes_on_at(self, job: Job, plan: Plan) -> WorkerSlots | None:
        """The worker that had better go on with a job that waits to resume: it has waited, and there is one
        that has room, and no requests of its own to fill it with. Prefill workers take it from each other."""
        waited_s = job.stay.waited_s + plan.now - job.stay.parked_s
        if waited_s < self._state.limits.move_after_s or job.move is not None:
            return None
        other = self._state.placement.choose(job, plan.blocked)
        if other is None or other.worker_id == job.worker_id or other.has_waiting:
            return None
        worker = self._state.worker_of(job)
        return None if other.is_prefill and worker is not None and not worker.is_prefill else other

    def _resume(self, job: Job, worker: WorkerSlots, now: float) -> list[Action]:
        self._state.end_move(job, "over")
        self._state.queue.take_place(job)
        is_swapped = worker.assignments[job.key].residence is Residence.SWAPPED
        self._state.take_urgency(job)
        worker.resume(job.key, cells_wanted_on(job, worker))
        waited_s = job.stay.resume(now)
        residence = "swapped" if is_swapped else "parked"
        return [actions.Resumed(job.key, job.handle, worker.worker_id, waited_s, residence)]

    def _make_room(self, job: Job, plan: Plan) -> WorkerSlots | None:
        """Have less urgent requests give way, if the job is urgent enough; returns where."""
        preemption = self._preemption_for(job, plan.blocked)
        if preemption is None:
            return None
        self._deschedule(preemption.worker, preemption.victims, job, plan)
        return preemption.worker

    def _deschedule(self, worker: WorkerSlots, victims: Iterable[Job], by: Job, plan: Plan) -> None:
        """Have running requests give way to another."""
        for victim in victims:
            self._state.deschedule(worker, victim, plan.now)
            plan.workers[worker.worker_id].victims.append(victim)
            plan.out.append(actions.Preempted(victim.key, victim.handle, worker.worker_id, by=by.key))

    @staticmethod
    def _charge_prompt(job: Job, queue: ModelQueue) -> None:
        if job.charged.prompt is None:
            tokens = max(0, job.prompt_tokens - job.cached_on.get(job.worker_id or "", 0))
            job.charged.charge_prompt(tokens)
            queue.policy.charge(job.key.tenant, tokens, 0)

    def _assign(self, job: Job, worker: WorkerSlots, *, is_alone: bool) -> None:
        epoch = 0 if job.replay.is_due else job.epoch
        self._state.take_urgency(job)
        worker.assign(job.key, epoch, cells_wanted_on(job, worker), is_alone=is_alone)
        job.worker_id = worker.worker_id
        job.stay.begin()

    def _send(self, worker: WorkerSlots, plan: WorkerPlan, now: float) -> list[Action]:
        """Dispatch the jobs placed on a worker. A victim's deschedule travels with the first batch of those
        that take the slots, or ahead of those that have to be read first."""
        out: list[Action] = []
        # Another worker may go on with one already: it was dropped here.
        victims = [victim for victim in plan.victims if victim.worker_id == worker.worker_id]
        if not plan.new:
            out += [self._state.stop(worker, victim) for victim in victims]
        out += self.dispatch(worker, plan.new, now, victims)
        return out + self.dispatch(worker, plan.resumed, now)

    def dispatch(
        self, worker: WorkerSlots, jobs: list[Job], now: float, victims: Iterable[Job] = ()
    ) -> list[Action]:
        out: list[Action] = []
        limits = self._state.limits
        for batch in batches.split(jobs, max_size=limits.max_batch_size, max_tokens=limits.max_batch_tokens):
            message = self._new_batch(worker, now)
            message.deschedule.extend(batches.deschedule_of(victim, worker) for victim in victims)
            batches.begin(message, batch)
            for job in batch:
                self._state.handle(job)
                assignment = worker.assignments[job.key]
                batches.add(message, job, assignment, self._timeslice(job), worker.exchange)
                batches.add_origin(message.items[-1], job, worker, self._state.table.workers)
            victims = ()
            waits_s = tuple(now - job.enqueued_s for job in batch if not job.has_run)
            in_flight = tuple((job, job.epoch) for job in batch)
            self._in_flight[message.batch_id] = InFlightBatch(worker.worker_id, worker.incarnation, in_flight)
            for job in batch:
                job.state = JobState.DISPATCHING
                job.stay.dispatch(now)
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

    def _timeslice(self, job: Job) -> int:
        if job.is_split:
            return 1
        return probation_tokens(job) if job.is_suspect else self._state.fairness.timeslice(job)

    def has_room(self, job: Job) -> bool:
        """True if it need not wait: there is a place, or others make one."""
        if self._state.placement.choose(job) is not None:
            return True
        return self._preemption_for(job) is not None

    def _preemption_for(self, job: Job, but: Collection[Size] = ()) -> Preemption | None:
        state = self._state
        queue = state.queue.models[job.model]
        return state.fairness.preempt_for(job, queue, state.table, state.jobs, but)
