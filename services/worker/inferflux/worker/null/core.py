"""The null engine's step: take up what arrived, make the tokens that are due, report (pure).

It has slots, KV cells, epochs, runs and reports as the llama.cpp engine has, and no model: a step takes a
given time and prefills a given number of tokens. It has no prefix cache: what leaves its KV cells is computed
again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter

from inferflux.common.contract.errors import DeadlineExceeded, to_failed
from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.step.clock import Clock

from .answers import text_of
from .jobs import Job, job_of

# A deadline may be farther away than a process can wait.
_LONGEST_WAIT_S = 60.0
_NO_ADAPTERS = "the null engine has no adapters"


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast tokens are made.

    Attributes:
        step_s: a step's time; each running request has a token in each.
        prefill_tokens_per_s: of all prompts together.
    """

    step_s: float
    prefill_tokens_per_s: float

    @property
    def step_prefill_tokens(self) -> int:
        return max(int(self.step_s * self.prefill_tokens_per_s), 1)


class NullCore:
    """Runs every request that has a slot.

    Args:
        worker_id: which its streams name.
        kv_cells: of all resident requests together.
        vocabulary_size: answers have tokens below it.
    """

    def __init__(
        self,
        worker_id: str,
        rates: Rates,
        *,
        kv_cells: int,
        vocabulary_size: int,
        clock: Clock | None = None,
    ) -> None:
        self._worker_id = worker_id
        self._rates = rates
        self._kv_cells = kv_cells
        self._vocabulary_size = vocabulary_size
        self._clock = clock or Clock()
        self._jobs: dict[str, Job] = {}
        # By slot.
        self._running: dict[int, Job] = {}
        self._arrivals = 0
        self._next = engine_pb2.EngineReport()
        self._report = self._next.step
        self._has_news = False
        self._high_water = 0

    @property
    def is_running(self) -> bool:
        """True if a step makes something."""
        return bool(self._running)

    @property
    def has_news(self) -> bool:
        """True if there is something to report."""
        return self._has_news

    def idle_s(self) -> float | None:
        """How long nothing is to be done unless a command comes; None: for ever."""
        if self._running:
            return 0.0
        deadline = min((job.deadline_s for job in self._jobs.values()), default=math.inf)
        if deadline == math.inf:
            return None
        return min(max(deadline - self._clock.monotonic_s(), 0.0), _LONGEST_WAIT_S)

    def obey(self, command: engine_pb2.EngineCommand) -> None:
        """Do what the worker says."""
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
            case "load_adapter":
                self._report.adapters.add(digest=command.load_adapter.digest, error=_NO_ADAPTERS)
                self._has_news = True

    def start(self, item: worker_pb2.BatchItem) -> None:
        """Take a request up. The worker has checked it against slots, context and vocabulary."""
        self._arrivals += 1
        now_s, unix_s = self._clock.monotonic_s(), self._clock.unix_s()
        job = job_of(item, arrival=self._arrivals, now_s=now_s, unix_s=unix_s)
        self._jobs[job.key] = job
        self._schedule(job, item.slot)

    def cancel(self, key: str, *, is_silent: bool) -> None:
        """End a request; nothing if it is not resident."""
        job = self._jobs.get(key)
        if job is None:
            return
        if is_silent:
            self._leave(job)
        else:
            self._finish(job, job.chunk(), generation_pb2.FINISH_REASON_CANCELLED)

    def deschedule(self, command: engine_pb2.EngineDeschedule) -> None:
        """End a run; nothing if this epoch of the request is not resident."""
        job = self._jobs.get(command.key)
        if job is not None and job.epoch == command.epoch:
            job.run = command.run
            self._deschedule(job, scheduler_pb2.YIELD_REASON_PREEMPTED)

    def resume(self, command: engine_pb2.EngineResume) -> None:
        """Run a request again; nothing if this epoch of it is not resident."""
        job = self._jobs.get(command.key)
        if job is not None and job.epoch == command.epoch:
            job.resume(command)
            self._schedule(job, command.slot)

    def step(self) -> None:
        """Prompts go on, the most urgent first, and each request whose prompt is computed has a token."""
        self._expire()
        if not self._running:
            return
        left = self._rates.step_prefill_tokens
        stats = self._report.stats
        ordered = sorted(self._running.values(), key=attrgetter("order"))
        for job in ordered:
            if job.slot is None:  # another one took its cells in this step
                continue
            wanted = job.n_pending
            is_decoding = job.generated > 0 and wanted == 1 and job.position >= job.prompt_tokens
            n = wanted if is_decoding else min(wanted, left)
            if n == 0 or not self._make_room(job, n):
                continue
            job.position += n
            if is_decoding:
                stats.decode_tokens += 1
            else:
                left -= n
                stats.prefill_tokens += n
            if n == wanted:
                self._emit(job)
            else:
                self._report.prefilled.add(key=job.key, epoch=job.epoch, computed_tokens=job.position)
        stats.step_us = stats.decode_us = int(self._rates.step_s * 1e6)
        self._has_news = True

    def take_report(self) -> engine_pb2.EngineReport | None:
        """Report of what happened since the last call, if anything did."""
        if not self._has_news:
            return None
        report, self._next = self._next, engine_pb2.EngineReport()
        self._report = self._next.step
        self._has_news = False
        stats = report.step.stats
        parked = [job for job in self._jobs.values() if job.slot is None]
        stats.sequences = len(self._jobs)
        stats.parked = len(parked)
        stats.swapped = sum(not job.position for job in parked)
        stats.kv_cells_used = self._cells_used
        stats.kv_cells_reserved = sum(job.position for job in self._running.values())
        stats.kv_cells_high_water = self._high_water
        stats.kv_cells_width = stats.kv_cells_used
        return report

    @property
    def _cells_used(self) -> int:
        return sum(job.position for job in self._jobs.values())

    def _make_room(self, job: Job, n: int) -> bool:
        """Have `n` cells free for a job. Requests that wait leave first, then less urgent ones that run."""
        used = self._cells_used
        while used + n > self._kv_cells:
            others = [other for other in self._jobs.values() if other is not job and other.position]
            victim = max(others, key=lambda other: (other.slot is None, other.order), default=None)
            if victim is None or (victim.slot is not None and victim.order < job.order):
                self._evict(job)
                return False
            used -= victim.position
            self._evict(victim)
        self._high_water = max(self._high_water, used + n)
        return True

    def _evict(self, job: Job) -> None:
        if job.slot is not None:
            del self._running[job.slot]
            job.slot = None
        job.position = 0
        self._report.stats.recomputes += 1
        self._tell(job.residence(scheduler_pb2.YIELD_REASON_MEMORY))

    def _emit(self, job: Job) -> None:
        """Give a job its next token, and end its run where that was the last one."""
        now_s = self._clock.monotonic_s()
        unix_us = int(self._clock.unix_s() * 1e6)
        chunk = job.chunk()
        if not job.is_announced:
            job.announce(chunk, self._worker_id)
        if job.first_token_s is None:
            job.first_token_s = now_s
            if job.generated == 0:
                job.time_to_first_token_ms = job.queue_ms + (now_s - job.started_s) * 1000
        token = job.next_token(self._vocabulary_size)
        chunk.token_ids.append(token)
        chunk.text = job.text.push(text_of(token).encode())
        chunk.sampled_unix_us = unix_us
        if job.with_logprobs:
            chosen = chunk.logprobs.add().chosen
            chosen.token_id, chosen.text = token, text_of(token)
        if job.text.is_stopped or token in job.end_tokens:
            self._finish(job, chunk, generation_pb2.FINISH_REASON_STOP)
        elif job.generated >= job.max_tokens:
            self._finish(job, chunk, generation_pb2.FINISH_REASON_LENGTH)
        else:
            chunk.held_text = job.text.held
            self._send(job, chunk)
            if job.yields_at and job.generated >= job.yields_at:
                self._deschedule(job, scheduler_pb2.YIELD_REASON_TIMESLICE)

    def _send(self, job: Job, chunk: tokens_pb2.TokenChunk) -> None:
        self._report.emissions.add(
            key=job.key,
            epoch=job.epoch,
            chunk=job.chunk_head + chunk.SerializeToString(),
            generated_tokens=job.generated,
        )

    def _schedule(self, job: Job, slot: int) -> None:
        """Run `job` in `slot`. The scheduler's latest assignment counts: it deschedules any other."""
        other = self._running.get(slot)
        if other is not None and other is not job:
            self._deschedule(other, scheduler_pb2.YIELD_REASON_PREEMPTED)
        if job.slot is not None:
            del self._running[job.slot]
        job.slot = slot
        self._running[slot] = job
        self._tell(job.residence())

    def _deschedule(self, job: Job, reason: scheduler_pb2.YieldReason.ValueType) -> None:
        if job.slot is not None:
            del self._running[job.slot]
            job.slot = None
        self._tell(job.residence(reason))

    def _tell(self, residence: engine_pb2.EngineResidence) -> None:
        self._report.residences.append(residence)
        self._has_news = True

    def _expire(self) -> None:
        now_s = self._clock.monotonic_s()
        for job in [job for job in self._jobs.values() if job.deadline_s <= now_s]:
            chunk = job.chunk()
            error = DeadlineExceeded("the deadline passed while generating")
            chunk.failed.CopyFrom(to_failed(error))
            self._end(job, chunk, error.reason.lower())

    def _finish(
        self, job: Job, chunk: tokens_pb2.TokenChunk, reason: generation_pb2.FinishReason.ValueType
    ) -> None:
        self._end(job, chunk, job.finish(chunk, reason, self._clock.monotonic_s()))

    def _end(self, job: Job, chunk: tokens_pb2.TokenChunk, outcome: str) -> None:
        job.close(chunk)
        self._send(job, chunk)
        self._report.finished.append(job.ended(outcome))
        self._leave(job)

    def _leave(self, job: Job) -> None:
        del self._jobs[job.key]
        if job.slot is not None:
            del self._running[job.slot]
        self._has_news = True
