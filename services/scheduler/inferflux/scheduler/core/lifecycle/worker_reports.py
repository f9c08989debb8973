"""Reports of workers, and the actions that follow from them (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.facets import RequeueReason
from inferflux.scheduler.core.types.jobs import Job, JobState, RequestKey
from inferflux.scheduler.core.types.memory import Recent
from inferflux.scheduler.core.workers.assignments import Residence, UnownedRequest
from inferflux.scheduler.core.workers.drains import Drains
from inferflux.scheduler.core.workers.placement import cells_wanted_on
from inferflux.scheduler.core.workers.rates import ModelRates
from inferflux.scheduler.core.workers.slots import WorkerSlots
from inferflux.v1 import scheduler_pb2, worker_pb2

from . import suspects
from .moves import Moves
from .state import SchedulerState
from .suspects import Blame

_GONE_REMEMBERED = 4096
# What a worker says of a run that has got as far as it was to, and a heartbeat in its stead.
_AFTER_PROMPT = ("timeslice", "unreported")


class WorkerReports:
    """Takes heartbeats and events in."""

    def __init__(self, state: SchedulerState, moves: Moves) -> None:
        self._state = state
        self._moves = moves
        self.drains = Drains(state.limits.move_limit_s)
        self.rates = ModelRates()
        # Workers whose heartbeats come before anything is dispatched; None when they are not known.
        self.expected: set[str] | None = None
        # Incarnations that left or were replaced, and when.
        self._gone: Recent[tuple[str, str], float] = Recent(_GONE_REMEMBERED)
        # Workers that have requests whose jobs have not come.
        self._unowned: dict[RequestKey, str] = {}

    def on_heartbeat(self, status: scheduler_pb2.WorkerStatus, now: float) -> list[Action]:
        if self._is_gone(status, now):
            return []
        out: list[Action] = []
        worker = self._state.table.get(status.worker_id)
        if worker is not None and worker.incarnation != status.incarnation:
            if status.started_unix_ms < worker.status.started_unix_ms:
                return []
            out += self.forget(worker, RequeueReason.WORKER_RESTARTED, now, is_final=True)
            worker = None
        if worker is not None and worker.is_idle_as(status) and not self.drains.holds(worker):
            worker.note_alive(now)
            if self.expected is not None:
                self.expected.discard(worker.worker_id)
            self._state.replan(worker)
            return []
        if worker is None:
            worker = self._state.table.add(status, now)
        out += self._reconcile(worker, status, now)
        self.drains.learn(worker, now)
        out += self._follow(worker, status.residents, now)
        out += self._remind(worker)
        self.rates.update(status)
        for change in self.rates.compare(worker.worker_id, now):
            self._state.table.workers[change.worker_id].set_slowness(change.model, change.slowness)
        self._state.replan(worker)
        if self.expected is not None:
            self.expected.discard(worker.worker_id)
        return out

    def _reconcile(self, worker: WorkerSlots, status: scheduler_pb2.WorkerStatus, now: float) -> list[Action]:
        """Bring table and jobs into line with what the worker has."""
        state = self._state
        found = worker.reconcile(status, now, state.limits.mismatch_threshold)
        out: list[Action] = []
        for key, epoch in found.ended:
            out += self._on_ended(worker.worker_id, key, epoch, "finished")
        for assignment in found.confirmed:
            out += state.accept(state.jobs[assignment.key], now)
        for assignment in found.vanished:
            out += state.requeue(state.jobs[assignment.key], RequeueReason.VANISHED, now, must_drop=True)
        for assignment in found.stopped:
            out += self._end_run(worker, state.jobs[assignment.key], "unreported", now)
        for assignment in found.not_stopped:
            out.append(state.stop(worker, state.jobs[assignment.key]))
        for unowned in found.unowned:
            out += self._on_unowned(worker, unowned, now)
        return out

    def _remind(self, worker: WorkerSlots) -> list[Action]:
        """Send again what the worker has not acted upon."""
        out: list[Action] = []
        for key in worker.assignments:
            job = self._state.jobs[key]
            if job.is_cancelled and job.state in (JobState.RUNNING, JobState.PARKED):
                out.append(actions.TellCancel(key, job.attempt_id))
        if self.drains.holds(worker) and worker.state == scheduler_pb2.WORKER_STATE_READY:
            worker.set_state(scheduler_pb2.WORKER_STATE_DRAINING)
            command = worker_pb2.WorkerCommand(drain=worker_pb2.DrainWorker())
            out.append(self._state.command(worker.worker_id, command))
        return out

    def _follow(
        self, worker: WorkerSlots, reports: Iterable[scheduler_pb2.ResidentRequest], now: float
    ) -> list[Action]:
        """Take in how far requests got; requeue those that make no progress."""
        out: list[Action] = []
        stuck: list[Job] = []
        for report in reports:
            job = self._state.jobs.get(RequestKey(report.tenant, report.request_id))
            if job is None or not job.is_at(worker.worker_id, report.epoch):
                continue
            stay = job.stay
            if (report.generated_tokens, report.computed_tokens) != (stay.seen_tokens, stay.seen_computed):
                stay.report_computed(report.computed_tokens, now)
                out += self._on_progress(worker, job, report.generated_tokens)
            elif (
                self._state.limits.stuck_s
                and job.state is JobState.RUNNING
                and now - stay.progressed_s > self._state.limits.stuck_s
            ):
                stuck.append(job)
        for job in stuck:
            out += self._state.requeue(job, RequeueReason.STUCK, now, must_drop=True)
        return out

    def _on_progress(self, worker: WorkerSlots, job: Job, generated: int) -> list[Action]:
        job.stay.report_tokens(generated)
        worker.grow(worker.assignments[job.key], cells_wanted_on(job, worker))
        if job.is_suspect and suspects.has_passed(job):
            self._state.clear(job)
        return self._charge(job)

    def _charge(self, job: Job) -> list[Action]:
        """Set the tokens generated since the last time to its tenant's account."""
        tokens = job.charged.charge_generated(job.known_tokens)
        if not tokens:
            return []
        if (queue := self._state.queue.models.get(job.model)) is not None:
            queue.policy.charge(job.key.tenant, 0, tokens)
        return [actions.CountTokens(job.priority, tokens)]

    def _charge_evicted(self, job: Job, cached: int) -> None:
        """Set what was thought to be cached, and was computed after all, to its tenant's account.

        Args:
            cached: prompt tokens that the worker did have.
        """
        queue, charged = self._state.queue.models.get(job.model), job.charged.prompt
        if queue is None or charged is None:
            return
        owed = job.prompt_tokens - min(cached, job.prompt_tokens) - charged
        if owed > 0:
            queue.policy.charge(job.key.tenant, owed, 0)

    def _note_service(self, job: Job, cached: int) -> None:
        """Take in what a request took that has ended."""
        if (queue := self._state.queue.models.get(job.model)) is not None:
            queue.service.add(max(0, job.prompt_tokens - cached), job.known_tokens)

    def on_event(self, event: scheduler_pb2.WorkerEvent, now: float) -> list[Action]:
        worker = self._state.table.get(event.worker_id, event.incarnation)
        match event.WhichOneof("event"):
            case "request_finished":
                ended = event.request_finished
                key = RequestKey(ended.tenant, ended.request_id)
                return self._on_request_finished(worker, event.worker_id, key, ended)
            case "request_yielded" if worker is not None:
                return self._on_yielded(worker, event.request_yielded, now)
            case "state_taken" if worker is not None:
                return self._moves.on_taken(worker, event.state_taken, now)
            case "engine_died" if worker is not None:
                return self._on_engine_died(worker, event.engine_died, now)
            case "worker_left":
                self._remember_gone(event.worker_id, event.incarnation, now)
                if worker is not None:
                    return self.forget(worker, RequeueReason.WORKER_LEFT, now, is_final=True)
            case "worker_died":
                self._remember_gone(event.worker_id, event.incarnation, now)
                if worker is not None:
                    return self.forget(worker, RequeueReason.WORKER_DEAD, now, is_final=True)
        return []

    def _on_yielded(
        self, worker: WorkerSlots, told: scheduler_pb2.RequestYielded, now: float
    ) -> list[Action]:
        job = self._state.jobs.get(RequestKey(told.tenant, told.request_id))
        if job is None or not job.is_at(worker.worker_id, told.epoch):
            return []
        if job.state is JobState.READING:
            return []
        keeps_since = job.is_suspect or job.is_split
        out = self._on_progress(worker, job, told.generated_tokens)
        assignment = worker.assignments[job.key]
        assignment.is_accepted = True
        if not assignment.report(told.run, Residence(told.residence)):
            self._state.replan(worker)
            return out
        reason = actions.reason_of(scheduler_pb2.YieldReason.Name, told.reason, prefix="YIELD_REASON_")
        if told.reason == scheduler_pb2.YIELD_REASON_TIMESLICE and not keeps_since:
            job.since_s = now
        return out + self._end_run(worker, job, reason, now)

    def _end_run(self, worker: WorkerSlots, job: Job, reason: str, now: float) -> list[Action]:
        """A request does not run any more. One that was there for its prompt alone goes on elsewhere."""
        if job.is_split and not job.is_suspect and reason in _AFTER_PROMPT:
            out = self._moves.on_yield(job, now)
            if out is not None:
                return out
        return self._state.end_run(worker, job, reason, now)

    def _on_request_finished(
        self,
        worker: WorkerSlots | None,
        worker_id: str,
        key: RequestKey,
        ended: scheduler_pb2.RequestFinished,
    ) -> list[Action]:
        job = self._state.jobs.get(key)
        out: list[Action] = []
        if job is not None and worker is not None and job.is_at(worker_id, ended.epoch):
            job.stay.report_tokens(ended.usage.completion_tokens)
            out += self._charge(job)
            self._charge_evicted(job, ended.usage.cached_prompt_tokens)
            self._note_service(job, ended.usage.cached_prompt_tokens)
            if ended.time_to_first_token_ms:
                seconds = ended.time_to_first_token_ms / 1000
                out.append(actions.CountFirstToken(job.model, job.priority, seconds))
        return out + self._on_ended(worker_id, key, ended.epoch, ended.outcome)

    def _on_ended(self, worker_id: str, key: RequestKey, epoch: int, outcome: str) -> list[Action]:
        job = self._state.jobs.get(key)
        if job is None:
            return []
        if not job.is_at(worker_id, epoch) or job.state is JobState.READING:
            return []
        if job.replay.is_adopted:  # readers may have seen a later epoch: look whether it was their end
            self._state.leave_queue(job)
            self._state.release(job)
            job.next_epoch()
            return [self._state.read(job)]
        return self._state.acknowledge(job, outcome)

    def _on_engine_died(
        self, worker: WorkerSlots, died: scheduler_pb2.EngineDied, now: float
    ) -> list[Action]:
        worker.set_state(scheduler_pb2.WORKER_STATE_LOADING)
        out: list[Action] = []
        resident = [self._resident(worker, entry) for entry in died.residents]
        # Each once, even where the list names one twice.
        jobs = list(dict.fromkeys(job for job in resident if job is not None))
        may_compute = [job for job in jobs if worker.assignments[job.key].may_compute]
        was_alone = len(may_compute) == 1 and None not in resident
        blames = [Blame.NONE] * len(jobs)
        if died.killer_image_id:
            for model in {job.model for job in jobs}:
                self._state.killer_images.add(model, died.killer_image_id, died.message, now)
        else:
            blames = [
                suspects.blame_for_engine(job, worker, was_alone=was_alone, limits=self._state.limits)
                for job in jobs
            ]
        for job, blame in zip(jobs, blames, strict=True):
            out += self._state.requeue(job, RequeueReason.ENGINE_DIED, now, blame=blame)
        return out + self._state.end_killers(now) if died.killer_image_id else out

    def _resident(self, worker: WorkerSlots, entry: scheduler_pb2.RequestEpoch) -> Job | None:
        """The job of a request that a worker has; None if it is not there as far as is known here."""
        job = self._state.jobs.get(RequestKey(entry.tenant, entry.request_id))
        return job if job is not None and job.is_at(worker.worker_id, entry.epoch) else None

    def _on_unowned(self, worker: WorkerSlots, unowned: UnownedRequest, now: float) -> list[Action]:
        job = self._state.jobs.get(unowned.key)
        if job is None:
            is_unclaimed = self._state.is_unclaimed(unowned.since_s, now)
            if is_unclaimed or self._state.has_finished(unowned.key):
                return [self._state.drop(worker.worker_id, unowned.key, unowned.epoch)]
            self._unowned[unowned.key] = worker.worker_id
            return []
        may_be_it = job.replay.is_inherited or unowned.epoch == job.epoch
        is_waiting = job.state in (JobState.QUEUED, JobState.READING)
        if (is_waiting and may_be_it) or unowned.epoch > job.epoch:
            return self._state.adopt(job, worker, unowned, now) if worker.can_adopt(unowned) else []
        return [self._state.drop(worker.worker_id, unowned.key, unowned.epoch)]

    def adopt(self, job: Job, now: float) -> list[Action] | None:
        """Take over what a worker has of a job that has just come; None if none has it."""
        worker = self._state.table.get(self._unowned.pop(job.key, ""))
        unowned = worker.unowned.get(job.key) if worker is not None else None
        if worker is None or unowned is None or not worker.can_adopt(unowned):
            return None
        return self._state.adopt(job, worker, unowned, now)

    def forget(
        self, worker: WorkerSlots, reason: RequeueReason, now: float, *, is_final: bool = False
    ) -> list[Action]:
        """A worker is gone, and what it had is lost. One that was only silent may come back."""
        jobs = self._state.remove_worker(worker)
        self.rates.remove(worker.worker_id)
        if is_final:
            self._remember_gone(worker.worker_id, worker.incarnation, now)
            self.drains.end(worker.worker_id)
        out: list[Action] = []
        blames = [suspects.blame_for_worker(job, worker, reason) for job in jobs]
        for job, blame in zip(jobs, blames, strict=True):
            out += self._state.requeue(job, reason, now, blame=blame, worker=worker)
        return out

    def give_up_silent(self, now: float) -> list[Action]:
        """Probe the workers that are silent, and forget those that have been for too long."""
        out: list[Action] = []
        limits = self._state.limits
        for worker in self._state.table.silent(now, min(limits.probe_after_s, limits.worker_dead_s)):
            if now - worker.last_seen_s > limits.worker_dead_s:
                out += self.forget(worker, RequeueReason.WORKER_DEAD, now)
            elif not worker.was_probed:
                worker.was_probed = True
                out.append(actions.Probe(worker.worker_id, worker.incarnation))
        return out

    def _remember_gone(self, worker_id: str, incarnation: str, now: float) -> None:
        self._gone.remember((worker_id, incarnation), now)

    def _is_gone(self, status: scheduler_pb2.WorkerStatus, now: float) -> bool:
        """True if a heartbeat is a late one of a worker that left or was replaced.

        One that still sends heartbeats after the time in which a silent worker counts as dead is not gone:
        what said so was mistaken, or forged.
        """
        key = status.worker_id, status.incarnation
        since_s = self._gone.get(key)
        if since_s is None:
            return False
        if now - since_s <= self._state.limits.worker_dead_s:
            return True
        self._gone.pop(key)
        return False
