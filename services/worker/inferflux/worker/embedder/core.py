"""The embedder's step: take up what arrived, compute texts of several jobs together, report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from inferflux.api.finish_reasons import name_of
from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, Internal
from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.step.clock import Clock

from .jobs import Job, Tokens, Vector, job_of
from .planner import plan

# A deadline may be farther away than a process can wait.
_LONGEST_WAIT_S = 60.0


class Embeds(Protocol):
    """A model that embeds; `backend.Backend` is one."""

    @property
    def step_tokens(self) -> int: ...
    @property
    def most_texts(self) -> int: ...
    def embed(self, texts: Sequence[Tokens]) -> list[Vector]: ...


class Embedder:
    """Runs every job that has a slot. Texts of several jobs share a step, those of the most urgent first."""

    def __init__(self, backend: Embeds, *, clock: Clock | None = None) -> None:
        self._backend = backend
        self._clock = clock or Clock()
        self._jobs: dict[str, Job] = {}
        # By slot.
        self._running: dict[int, Job] = {}
        self._arrivals = 0
        self._report = engine_pb2.StepReport()
        self._has_news = False

    def idle_s(self) -> float | None:
        """Seconds for which nothing is to be done unless a command comes; None: for ever."""
        if self._running:
            return 0.0
        deadline = min((job.deadline_s for job in self._jobs.values()), default=math.inf)
        if deadline == math.inf:
            return None
        return min(max(deadline - self._clock.monotonic_s(), 0.0), _LONGEST_WAIT_S)

    def obey(self, command: engine_pb2.EngineCommand) -> None:
        """Do what the worker says. There is no cache to clear, and none to report."""
        match command.WhichOneof("command"):
            case "start":
                self.start(command.start)
            case "cancel":
                self.cancel(command.cancel.key, is_silent=command.cancel.is_silent)
            case "deschedule":
                self.deschedule(command.deschedule)
            case "resume":
                self.resume(command.resume)
            case "clear_cache":
                self._report.cleared.add(id=command.clear_cache.id, cleared=scheduler_pb2.CacheCleared())
                self._has_news = True

    def start(self, item: worker_pb2.BatchItem) -> None:
        """Take a job up. The worker has checked it against slots, context and vocabulary."""
        self._arrivals += 1
        now_s, unix_s = self._clock.monotonic_s(), self._clock.unix_s()
        job = job_of(item, arrival=self._arrivals, now_s=now_s, unix_s=unix_s)
        self._jobs[job.key] = job
        self._schedule(job, item.slot)

    def cancel(self, key: str, *, is_silent: bool) -> None:
        """End a job; nothing if it is not resident."""
        job = self._jobs.get(key)
        if job is None:
            return
        if is_silent:
            self._leave(job)
        else:
            self._finish(job, generation_pb2.FINISH_REASON_CANCELLED)

    def deschedule(self, command: engine_pb2.EngineDeschedule) -> None:
        """End a run; nothing if this epoch of the job is not resident."""
        job = self._jobs.get(command.key)
        if job is not None and job.epoch == command.epoch:
            job.run = command.run
            self._deschedule(job)

    def resume(self, command: engine_pb2.EngineResume) -> None:
        """Run a job again; nothing if this epoch of it is not resident."""
        job = self._jobs.get(command.key)
        if job is None or job.epoch != command.epoch:
            return
        job.run, job.urgency_key = command.run, command.urgency_key
        self._schedule(job, command.slot)

    def step(self) -> None:
        """Compute the next texts, and end the jobs that have all their vectors.

        Raises:
            EmbedError: the engine has to start again.
        """
        began_s = self._clock.monotonic_s()
        self._expire()
        planned = plan(
            self._running.values(),
            step_tokens=self._backend.step_tokens,
            most_texts=self._backend.most_texts,
        )
        if not planned:
            return
        vectors = self._backend.embed([text for _, text in planned])
        ended_s = self._clock.monotonic_s()
        for (job, _), vector in zip(planned, vectors, strict=True):
            job.vectors.append(vector.astype("<f4").tobytes() if np.isfinite(vector).all() else b"")
        for job in dict.fromkeys(job for job, _ in planned):
            if not all(job.vectors):
                message = "the model gave numbers that are not finite"
                self._fail(job, Internal(message, reason="NOT_FINITE"))
            elif job.is_done:
                self._finish(job, generation_pb2.FINISH_REASON_STOP)
            else:
                self._report.prefilled.add(key=job.key, epoch=job.epoch, computed_tokens=job.n_computed)
        stats = self._report.stats
        stats.prefill_tokens = sum(text.size for _, text in planned)
        stats.decode_us = stats.step_us = int((ended_s - began_s) * 1e6)
        self._has_news = True

    def take_report(self) -> engine_pb2.EngineReport | None:
        """Return the report of what happened since the last call; None if nothing did."""
        if not self._has_news:
            return None
        report, self._report = self._report, engine_pb2.StepReport()
        self._has_news = False
        stats = report.stats
        stats.sequences = len(self._jobs)
        stats.parked = len(self._jobs) - len(self._running)
        stats.kv_cells_used = sum(job.n_tokens for job in self._jobs.values())
        stats.kv_cells_reserved = sum(job.n_tokens for job in self._running.values())
        return engine_pb2.EngineReport(step=report)

    def _schedule(self, job: Job, slot: int) -> None:
        """Run `job` in `slot`. The scheduler's latest assignment counts: it deschedules any other."""
        other = self._running.get(slot)
        if other is not None and other is not job:
            self._deschedule(other)
        if job.slot is not None:
            del self._running[job.slot]
        job.slot = slot
        self._running[slot] = job
        self._tell(job.residence())

    def _deschedule(self, job: Job) -> None:
        if job.slot is not None:
            del self._running[job.slot]
            job.slot = None
        self._tell(job.residence(scheduler_pb2.YIELD_REASON_PREEMPTED))

    def _tell(self, residence: engine_pb2.EngineResidence) -> None:
        self._report.residences.append(residence)
        self._has_news = True

    def _expire(self) -> None:
        now_s = self._clock.monotonic_s()
        for job in [job for job in self._jobs.values() if job.deadline_s <= now_s]:
            self._fail(job, DeadlineExceeded("the deadline passed while embedding"))

    def _finish(self, job: Job, reason: generation_pb2.FinishReason.ValueType) -> None:
        self._end(job, job.finished(reason, self._clock.monotonic_s()), name_of(reason))

    def _fail(self, job: Job, error: InferFluxError) -> None:
        self._end(job, job.failed(error), error.reason.lower())

    def _end(self, job: Job, chunk: tokens_pb2.TokenChunk, outcome: str) -> None:
        self._report.emissions.add(key=job.key, epoch=job.epoch, chunk=chunk.SerializeToString())
        self._report.finished.append(job.ended(outcome))
        self._leave(job)

    def _leave(self, job: Job) -> None:
        del self._jobs[job.key]
        if job.slot is not None:
            del self._running[job.slot]
        self._has_news = True
