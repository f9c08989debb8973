"""Cancels: by notices, of requests without readers, and of those whose job is lost (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from inferflux.scheduler.core.types import actions, outcomes
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.jobs import Attempt, Job, JobState
from inferflux.scheduler.core.types.memory import Recent
from inferflux.scheduler.core.types.readers import ReaderWatch

from .lost_jobs import LostJobs
from .state import SchedulerState

_REMEMBERED = 65_536


class Cancels:
    """Takes cancel notices in, and the reports of gateways about who reads.

    Args:
        now: when the scheduler starts.
        is_alone: no other scheduler has models of its own.
    """

    def __init__(self, state: SchedulerState, *, now: float, is_alone: bool) -> None:
        self._state = state
        self._is_alone = is_alone
        self._lost_jobs = LostJobs(state.limits.unowned_grace_s)
        # When the notices came.
        self._early: Recent[Attempt, float] = Recent(_REMEMBERED)
        self._reader_watch = ReaderWatch(state.limits.unread_limit_s, now)

    def begin(self, job: Job, now: float) -> None:
        """A job has come."""
        self._lost_jobs.forget(Attempt(job.key, job.attempt_id))
        self._reader_watch.begin(job, now)
        self._reader_watch.let_go_of_ended(len(self._state.jobs))

    def take_early(self, job: Job) -> bool:
        """True if a notice overtook this job, which counts as cancelled from now on."""
        if job.attempt_id and self._early.pop(Attempt(job.key, job.attempt_id)) is not None:
            job.is_cancelled = True
        return job.is_cancelled

    def on_cancel(self, attempt: Attempt, now: float) -> tuple[bool, list[Action]]:
        """A cancel notice, which workers receive as well. Returns whether the request is known, too."""
        job = self._job_of(attempt)
        if job is None:
            if attempt.attempt_id:  # it may have overtaken its job
                self._early.remember(attempt, now)
            return False, []
        return True, self._cancel(job, now)

    def _cancel(self, job: Job, now: float) -> list[Action]:
        """Have a job cancelled; workers are told elsewhere."""
        job.is_cancelled = True
        if job.state in (JobState.QUEUED, JobState.READING):
            return self._state.finish(job, outcomes.cancelled(job, now))
        return []

    def _job_of(self, attempt: Attempt) -> Job | None:
        job = self._state.jobs.get(attempt.key)
        return job if job is not None and attempt.is_of(job) else None

    def on_readers(self, gateway_id: str, read: Iterable[Attempt], now: float) -> None:
        """A gateway's heartbeat: it relays these requests to clients."""
        for attempt in read:
            if (job := self._job_of(attempt)) is not None:
                self._reader_watch.report(job, gateway_id, now)
            elif attempt.attempt_id and self.is_lost(attempt):
                self._lost_jobs.report(attempt, now)

    def is_lost(self, attempt: Attempt) -> bool:
        """Return whether no job stands for it: none that has come, nor one that has ended lately, nor another
        scheduler's."""
        is_here = attempt.key in self._state.jobs or self._state.has_finished(attempt.key)
        return self._is_alone and not is_here

    def on_reader_joined(self, gateway_id: str, attempt: Attempt, now: float) -> Job | None:
        """A stream was resumed at a gateway. Returns its job, None when it is not known."""
        self.on_readers(gateway_id, [attempt], now)
        return self._job_of(attempt)

    def on_reader_left(
        self, gateway_id: str, attempt: Attempt, now: float, *, is_handed_over: bool
    ) -> tuple[bool, bool]:
        """A gateway has no reader of a request any more. Returns whether the request is known, and whether it
        may be cancelled at once; when its window has passed, `due` cancels it."""
        job = self._job_of(attempt)
        if job is None:
            return False, False
        return True, self._reader_watch.leave(job, gateway_id, now, is_handed_over=is_handed_over)

    def reset_liveness(self, now: float) -> None:
        """No report could arrive until now."""
        self._reader_watch.reset_liveness(self._state.jobs.values(), now)

    def due(self, now: float) -> list[Action]:
        """Cancel what has no reader, and end the requests whose jobs are lost."""
        out: list[Action] = []
        for job in self._reader_watch.due(now):
            if job.is_cancelled or job.replay.terminal_event is not None:
                continue
            out.append(actions.CountUnread(job.key, job.handle))
            if job.worker_id is not None:
                out.append(actions.TellCancel(job.key, job.attempt_id))
            out += self._cancel(job, now)
        if self._state.has_inherited_all(now):
            out += [actions.EndLost(attempt) for attempt in self._lost_jobs.due(now)]
        return out

    def forget_early(self, now: float) -> None:
        """Forget the notices whose jobs do not seem to come."""
        while (early := self._early.oldest()) and now - early[1] >= self._state.limits.early_cancel_s:
            self._early.pop(early[0])
