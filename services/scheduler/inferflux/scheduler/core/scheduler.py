"""The scheduler (pure): messages and the time in, actions out.

Every `on_...` method takes one thing that happened and returns what to do about it; `plan` then gives
waiting jobs their places.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from inferflux.common.contract.errors import InferFluxError
from inferflux.common.contract.partitions import WHOLE, Partition
from inferflux.common.contract.requests.priority import AGING_S
from inferflux.v1 import generation_pb2, host_pb2, scheduler_pb2, worker_pb2

from .lifecycle.arrivals import Arrivals
from .lifecycle.batch_answers import BatchAnswers
from .lifecycle.cancels import Cancels
from .lifecycle.fairness import FairnessController, FairnessSettings
from .lifecycle.moves import Moves
from .lifecycle.planning import Planner
from .lifecycle.positions import Positions
from .lifecycle.queue import Queue
from .lifecycle.residency import Residency
from .lifecycle.state import SchedulerState
from .lifecycle.unserved import UnservedModels
from .lifecycle.worker_commands import WorkerCommands
from .lifecycle.worker_reports import WorkerReports
from .order.queue_policies import Orders, PolicyName
from .order.running import ORDINARY_SHARE
from .order.tenant_service import TenantService
from .types import actions, outcomes
from .types.actions import Action
from .types.jobs import Job, JobState, RequestKey
from .types.limits import Limits
from .types.replayed import ReplayedTokens
from .types.timers import Timers
from .workers.hosts import HostTable
from .workers.slot_table import SlotTable
from .workers.slots import WorkerSlots

_STALL_S = 1.0
# Jobs that have ended, among those that timers hold, before these are cleared of them.
_ENDED_HELD = 64


class SchedulerCore:
    """The queue, the slot table and every job in between.

    Args:
        now: when it starts, in seconds since the Unix epoch, by the clock that every later `now` is of.
        name: distinguishes this scheduler's batches from those of others.
        term: of the lease under which it leads; workers refuse lower ones than they have seen.
        aging_s: seconds of waiting that are worth one level of priority.
        tenant_weights: shares under the policy `fair`; 1 for who is not in it.
        ordinary_share: of a model's slots, guaranteed to requests that are not urgent, under `priority`.
        partition: of the models, which it schedules. It has hosts unload no others.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        now: float,
        name: str = "s",
        policy: PolicyName = "priority",
        aging_s: float = AGING_S,
        tenant_weights: Mapping[str, float] | None = None,
        fairness: FairnessSettings | None = None,
        term: int = 0,
        ordinary_share: float = ORDINARY_SHARE,
        partition: Partition = WHOLE,
    ) -> None:
        self.policy = policy
        self.tenant_service = TenantService()
        controller = FairnessController(fairness or FairnessSettings())
        orders = Orders(
            policy,
            aging_s=aging_s,
            weights=tenant_weights or {},
            service=self.tenant_service,
            ordinary_share=ordinary_share,
            is_urgent=controller.is_urgent,
        )
        queue = Queue(
            orders.new_policy,
            lambda model: orders.new_running(lambda: self._state.placement.slots_of(model)),
            lambda model: self._state.placement.sizes(model),
        )
        self._state = SchedulerState(limits, queue, controller, term=term)
        self.killer_images = self._state.killer_images
        self._moves = Moves(self._state)
        self._planner = Planner(self._state, self._moves, name=name)
        self._reports = WorkerReports(self._state, self._moves)
        self._answers = BatchAnswers(self._state, self._planner, self._reports)
        self._arrivals = Arrivals(self._state, self._planner, self._reports.rates)
        self._residency = Residency(self._state, wait_s=limits.model_wait_s, partition=partition)
        self._unserved = UnservedModels(self._state, self._residency.is_expected)
        self._started_s = now
        self._ticked_s = now
        self._is_connected = True
        self._deadlines: Timers[Job] = Timers()
        self._holds: Timers[Job] = Timers()
        self.commands = WorkerCommands(self._state, self._reports.drains, self._moves)
        # No other scheduler has models of its own if this one has all.
        self.cancels = Cancels(self._state, now=now, is_alone=partition.is_whole)
        self._positions = Positions(self._state, self._residency, now=now)

    # What it knows

    @property
    def handled(self) -> Job | None:
        """The job that was being handled when a call raised; None if the call was about no single job."""
        return self._state.handled

    def handle_nothing(self) -> None:
        """No job is being handled: to be called before every other call."""
        self._state.handle(None)

    @property
    def limits(self) -> Limits:
        return self._state.limits

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def jobs(self) -> Mapping[RequestKey, Job]:
        return self._state.jobs

    @property
    def queue(self) -> Queue:
        return self._state.queue

    @property
    def table(self) -> SlotTable:
        return self._state.table

    @property
    def moving(self) -> int:
        """Number of requests whose state is on its way to another worker."""
        return len(self._state.moves)

    @property
    def is_settled(self) -> bool:
        """Return whether it dispatches: the live workers and their requests are known."""
        return self._state.is_settled

    # What is asked of it

    @property
    def fairness(self) -> FairnessSettings:
        return self._state.fairness.settings

    def set_fairness(self, settings: FairnessSettings) -> None:
        """Go by these from the next plan on."""
        self._state.set_fairness(settings)

    def expect(self, worker_ids: Collection[str]) -> None:
        """Dispatching may start as soon as all of these have sent a heartbeat; else after `settle_s`."""
        self._reports.expected = set(worker_ids) - self.table.workers.keys() if worker_ids else None

    # What happens to jobs

    def holders(self, model: str) -> Collection[WorkerSlots]:
        """Workers that may have cached prefixes of a model."""
        return self._state.placement.live(model)

    def on_job(
        self,
        request: scheduler_pb2.InferenceRequest,
        handle: object,
        sequence: int,
        now: float,
        cached_on: Mapping[str, int] | None = None,
        *,
        is_inherited: bool = False,
    ) -> list[Action]:
        """A job from the work queue.

        Args:
            sequence: its place there: a job that comes again keeps it.
            cached_on: prompt tokens that workers have cached, by worker id.
            is_inherited: it may have run under an earlier scheduler.
        """
        key = RequestKey(request.tenant, request.request_id)
        held = self.jobs.get(key)
        if held is not None and held.sequence == sequence:
            held.handle = handle
            return []
        if held is not None or self._state.has_finished(key, sequence):
            return [actions.Ack(key, handle, request.model, "duplicate")]
        job = self._arrivals.make_job(
            request, handle, sequence, now, cached_on or {}, is_inherited=is_inherited
        )
        self._state.add(job, now)
        spread = (job.arrival % 16 + 1) / 16  # jobs that come together are not held together for ever
        self._holds.add(now + self.limits.hold_interval_s * spread, job)
        if job.deadline_s is not None:
            self._deadlines.add(job.deadline_s, job)
        self.cancels.begin(job, now)
        self._let_go_of_ended()
        adopted = self._reports.adopt(job, now)
        if adopted is not None:
            return adopted
        if self.cancels.take_early(job):
            return self._state.finish(job, outcomes.cancelled(job, now))
        return self._state.enqueue(job, now) if job.replay.is_inherited else self._arrivals.admit(job, now)

    def _let_go_of_ended(self) -> None:
        """Deadlines may be far away: until then, jobs that have ended would stay in memory."""
        for timers in (self._deadlines, self._holds):
            if len(timers) > 2 * len(self.jobs) + _ENDED_HELD:
                timers.keep(lambda job: job.state is not JobState.FINISHED)

    def on_replay(
        self,
        key: RequestKey,
        read_id: int,
        replayed: ReplayedTokens,
        now: float,
        cached_on: Mapping[str, int] | None = None,
    ) -> list[Action]:
        """The answer to ReadReplay.

        Args:
            cached_on: tokens of it that workers have cached now, by worker id; None if that was not asked.
        """
        job = self.jobs.get(key)
        if job is None or job.state is not JobState.READING or job.replay.read_id != read_id:
            return []
        if replayed.outcome:
            return self._state.acknowledge(job, replayed.outcome)
        job.continue_from(replayed.token_ids, replayed.epoch, now)
        if job.replay.terminal_event is not None:
            return self._state.finish(job, job.replay.terminal_event)
        if job.is_expired(now):
            return self._state.finish(job, outcomes.expired())
        if job.max_tokens and job.generated_tokens >= job.max_tokens:
            return self._state.finish(job, outcomes.finished(job, generation_pb2.FINISH_REASON_LENGTH, now))
        worker = self._state.worker_of(job)
        if cached_on is not None:
            job.cached_on = cached_on
        is_elsewhere = worker is not None and job.most_cached > job.cached_on.get(worker.worker_id, 0)
        if is_elsewhere and not (job.is_suspect or job.follows_to(job.worker_id)):
            return self._state.put_back(job, now)  # to be placed anew, by what is cached now
        if worker is None or worker.is_held or worker.state != scheduler_pb2.WORKER_STATE_READY:
            out = self._state.put_back(job, now)
            job.replay = job.replay.due(is_due=job.is_queued)  # by then there may be more to read
            return out
        worker.assignments[key].epoch = job.epoch
        return self._planner.dispatch(worker, [job], now)

    # What workers say

    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus, now: float) -> list[Action]:
        return self._reports.on_heartbeat(status, now)

    def on_event(self, event: scheduler_pb2.WorkerEvent, now: float) -> list[Action]:
        return self._reports.on_event(event, now)

    def on_batch_answer(self, answer: worker_pb2.BatchAccepted, now: float) -> list[Action]:
        return self._answers.on_answer(answer, now)

    def on_batch_unanswered(
        self, batch_id: str, *, is_delivered: bool, now: float, is_gone: bool = False
    ) -> list[Action]:
        """A Dispatch went without an answer.

        Args:
            is_delivered: it may have been: the worker may run it. False when it certainly was not.
            is_gone: no process subscribes to the subject of the worker.
        """
        return self._answers.on_unanswered(batch_id, is_delivered=is_delivered, now=now, is_gone=is_gone)

    def on_probe_unanswered(
        self, worker_id: str, incarnation: str, *, is_gone: bool, now: float
    ) -> list[Action]:
        """A worker did not answer a probe.

        Args:
            is_gone: no process subscribes to the subject of the worker. With its heartbeat overdue as well,
                it is dead.
        """
        return self._answers.on_probe_unanswered(worker_id, incarnation, is_gone=is_gone, now=now)

    # What hosts of models say

    @property
    def hosts(self) -> HostTable:
        """Hosts of models that live."""
        return self._residency.hosts

    def on_host(self, status: host_pb2.HostStatus, now: float) -> list[Action]:
        """A host's status. What follows is decided with the next tick."""
        self._residency.on_host(status, now)
        return []

    def on_host_answer(
        self, host_id: str, model: str, answer: host_pb2.HostedModel | InferFluxError, now: float
    ) -> list[Action]:
        """The answer to CommandHost: the model as it is then, or why nothing was done."""
        self._residency.on_answer(host_id, model, answer, now)
        return []

    # What time brings

    def on_tick(self, now: float) -> list[Action]:
        """Do what is due at this time; called several times a second."""
        if now - self._ticked_s > _STALL_S:  # this process stood still, and received nothing
            self.table.reset_liveness(now)
            self.hosts.reset_liveness(now)
            self.cancels.reset_liveness(now)
        self._ticked_s = now
        out = self._state.settle() if self._may_settle(now) else []
        for job in self._deadlines.due(now):
            if job.state in (JobState.QUEUED, JobState.READING) and job.replay.terminal_event is None:
                out += self._state.finish(job, outcomes.expired())
        out += self._positions.due(now)
        for job in self._holds.due(now):
            if job.state is not JobState.FINISHED:
                if self._is_connected:
                    out.append(actions.Hold(job.handle))
                self._holds.add(now + self.limits.hold_interval_s, job)
        out += self.commands.hand_over(now)
        out += self._moves.due(now)
        if self._is_connected:
            out += self._reports.give_up_silent(now)
            if self.is_settled:
                out += self._unserved.end_overdue(now)
            out += self.cancels.due(now)
            if self.is_settled:
                out += self._residency.decide(now)
        self._state.replan_models(self._planner.due_models(now))
        self.cancels.forget_early(now)
        return out + self._moves.ended()

    def _may_settle(self, now: float) -> bool:
        has_waited = now - self._started_s >= self.limits.settle_s
        return not self.is_settled and (has_waited or self._reports.expected == set())

    def on_connection(self, is_connected: bool, now: float) -> None:
        """The bus went away or is back. Messages could not arrive meanwhile: no worker is blamed for that."""
        self._is_connected = is_connected
        if is_connected:
            self.table.reset_liveness(now + self.limits.reconnect_grace_s)
            self.hosts.reset_liveness(now + self.limits.reconnect_grace_s)
            self.cancels.reset_liveness(now)
            self._state.replan_all()

    # Giving jobs their places

    @property
    def must_plan(self) -> bool:
        """Return whether `plan` could do anything now."""
        return self._is_connected and self._state.must_plan

    def plan(self, now: float) -> list[Action]:
        """Place waiting jobs, in order, for as long as there are places; tell new ones that wait so."""
        if not self.must_plan:
            return []
        out: list[Action] = []
        for model in sorted(self._state.take_unplanned()):  # in the same order in every process
            out += self._planner.plan_model(model, now)
        return out + self._positions.tell_new(now)
