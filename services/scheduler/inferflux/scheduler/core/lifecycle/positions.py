"""Positions and expected waits that waiting jobs are told (pure)."""

from __future__ import annotations

from inferflux.scheduler.core.types import actions, outcomes
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.announcements import Outlook
from inferflux.scheduler.core.types.jobs import Job

from .residency import Residency
from .state import SchedulerState


class Positions:
    """Tells jobs that were queued where they stand, and again when that has changed much.

    Args:
        now: when the scheduler starts.
    """

    def __init__(self, state: SchedulerState, residency: Residency, *, now: float) -> None:
        self._state = state
        self._residency = residency
        self._looked_s = now

    def due(self, now: float) -> list[Action]:
        """Tell those again that are due now."""
        self._looked_s = now
        return [_publish(job, outlook) for job, outlook in self._state.announcements.due(now, self._outlook)]

    def tell_new(self, now: float) -> list[Action]:
        """Tell those that were queued since the last plan, and still wait."""
        out: list[Action] = []
        for job in self._state.take_fresh():
            if job.is_queued and job.wait.announced_epoch != job.epoch:
                job.wait.announce(job.epoch)
                outlook = self._outlook(job)
                self._state.announcements.tell(job, outlook, now)
                out.append(_publish(job, outlook))
        return out

    def _outlook(self, job: Job) -> Outlook:
        """Its place in the queue, and the wait from there, for its model to be loaded as well."""
        outlook = self._state.queue.models[job.model].outlook(job)
        load_s = self._residency.expected_load_s(job.model, self._looked_s)
        return Outlook(outlook.position, outlook.expected_wait_s + load_s) if load_s else outlook


def _publish(job: Job, outlook: Outlook) -> Action:
    chunk = outcomes.queued_chunk(job, outlook.position, outlook.expected_wait_s)
    return actions.PublishChunk(job.key, chunk)
