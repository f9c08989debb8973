"""Answers of workers to batches, and the reaction where none answers (pure)."""

from __future__ import annotations

from inferflux.scheduler.core.types import actions, outcomes
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.facets import RequeueReason
from inferflux.scheduler.core.types.jobs import Job, JobState
from inferflux.v1 import worker_pb2

from .planning import Planner
from .state import SchedulerState
from .worker_reports import WorkerReports


class BatchAnswers:
    """Takes each batch of the planner to its end."""

    def __init__(self, state: SchedulerState, planner: Planner, reports: WorkerReports) -> None:
        self._state = state
        self._planner = planner
        self._reports = reports

    def on_answer(self, answer: worker_pb2.BatchAccepted, now: float) -> list[Action]:
        """A worker's answer to a Dispatch."""
        batch = self._planner.take(answer.batch_id)
        if batch is None:
            return []
        accepted = set(answer.accepted_request_ids)
        refused = {refusal.request_id: refusal for refusal in answer.refused}
        out: list[Action] = []
        for job, epoch in batch.jobs:
            request_id = job.key.request_id
            if not job.is_at(batch.worker_id, epoch):
                if request_id in accepted and job.state is not JobState.FINISHED:
                    out.append(self._state.drop(batch.worker_id, job.key, epoch))
            elif job.state is not JobState.DISPATCHING:
                continue
            elif request_id in accepted:
                out += self._state.accept(job, now)
            elif request_id in refused:
                out += self._on_refused(job, batch.worker_id, refused[request_id], now)
            else:
                out += self._state.requeue(job, RequeueReason.NO_ANSWER, now, must_drop=True)
        return out

    def on_unanswered(self, batch_id: str, *, is_delivered: bool, now: float, is_gone: bool) -> list[Action]:
        """A Dispatch went without an answer; see `SchedulerCore.on_batch_unanswered`."""
        batch = self._planner.take(batch_id)
        if batch is None:
            return []
        out: list[Action] = []
        for job, epoch in batch.jobs:
            if job.state is not JobState.DISPATCHING or not job.is_at(batch.worker_id, epoch):
                continue
            worker = self._state.worker_of(job)
            if worker is not None and job.stay.is_resuming:
                self._state.wait_to_resume(worker, job)
            elif is_delivered:
                out += self._state.requeue(job, RequeueReason.NO_ANSWER, now, must_drop=True)
            else:
                out += self._state.put_back(job, now)
        return out + self.on_probe_unanswered(batch.worker_id, batch.incarnation, is_gone=is_gone, now=now)

    def on_probe_unanswered(
        self, worker_id: str, incarnation: str, *, is_gone: bool, now: float
    ) -> list[Action]:
        """A worker did not answer a probe, or a batch; see `SchedulerCore.on_probe_unanswered`."""
        worker = self._state.table.get(worker_id, incarnation)
        if worker is None:
            return []
        worker.hold()
        if is_gone and now - worker.last_seen_s > self._state.limits.probe_after_s:
            return self._reports.forget(worker, RequeueReason.WORKER_DEAD, now)
        return []

    def _on_refused(self, job: Job, worker_id: str, refusal: worker_pb2.Refusal, now: float) -> list[Action]:
        reason = actions.reason_of(worker_pb2.RefusalReason.Name, refusal.reason, prefix="REFUSAL_REASON_")
        out: list[Action] = [actions.CountRefusal(job.key, job.handle, worker_id, reason)]
        match refusal.reason:
            case worker_pb2.REFUSAL_REASON_CANCELLED:
                return out + self._state.finish(job, outcomes.cancelled(job, now))
            case worker_pb2.REFUSAL_REASON_INVALID:
                return out + self._state.finish(job, outcomes.invalid(refusal.message))
            case worker_pb2.REFUSAL_REASON_NOT_RESIDENT:
                return out + self._state.requeue(job, RequeueReason.NOT_RESIDENT, now)
        worker = self._state.worker_of(job)
        if worker is not None:
            worker.hold()
        if worker is not None and job.stay.is_resuming:
            self._state.wait_to_resume(worker, job)
            return out
        job.retries = job.retries.after_refusal()
        if job.retries.refusals > self._state.limits.max_refusals:
            return out + self._state.finish(job, outcomes.refusals_exhausted(refusal.message))
        return out + self._state.put_back(job, now)
