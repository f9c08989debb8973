"""The embedder's step: take up what arrived, compute texts of several jobs together, report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from inferflux.common.contract.errors import Internal
from inferflux.v1 import engine_pb2, generation_pb2, worker_pb2
from inferflux.worker.engine.step.clock import Clock
from inferflux.worker.engine.step.shell import Shell

from . import jobs
from .jobs import Job, Tokens, Vector, job_of
from .planner import plan


class Embeds(Protocol):
    """A model that embeds; `backend.Backend` is one."""

    @property
    def step_tokens(self) -> int: ...
    @property
    def most_texts(self) -> int: ...
    def embed(self, texts: Sequence[Tokens]) -> list[Vector]: ...


class Embedder(Shell[Job]):
    """Runs every job that has a slot. Texts of several jobs share a step, those of the most urgent first."""

    def __init__(self, backend: Embeds, *, clock: Clock | None = None) -> None:
        super().__init__(jobs, "embedding", clock)
        self._backend = backend

    def _new(self, item: worker_pb2.BatchItem) -> Job:
        now_s, unix_s = self._clock.monotonic_s(), self._clock.unix_s()
        return job_of(item, arrival=self._arrivals, now_s=now_s, unix_s=unix_s)

    def step(self) -> None:
        """Compute the next texts, and end the jobs that have all their vectors.

        Raises:
            EmbedError: the engine has to start again.
        """
        began_s = self._clock.monotonic_s()
        self._expire(began_s)
        planned = plan(
            self.running.values(),
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
                self._finish(job, jobs.empty(job), generation_pb2.FINISH_REASON_STOP)
            else:
                self._report.computed(job)
        stats = self._report.step.stats
        stats.prefill_tokens = sum(text.size for _, text in planned)
        stats.decode_us = stats.step_us = int((ended_s - began_s) * 1e6)
        self._report.has_news = True

    def _write_stats(self, step: engine_pb2.StepReport) -> None:
        stats = step.stats
        stats.sequences = len(self.residents)
        stats.parked = len(self.residents) - len(self.running)
        stats.kv_cells_used = sum(job.n_tokens for job in self.residents.values())
        stats.kv_cells_reserved = sum(job.n_tokens for job in self.running.values())
