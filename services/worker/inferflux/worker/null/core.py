"""The null engine's step: take up what arrived, make the tokens that are due, report (pure).

It has slots, KV cells, epochs, runs and reports as the llama.cpp engine has, and no model: a step takes a
given time and prefills a given number of tokens. It has no prefix cache: what leaves its KV cells is computed
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.engine.step.clock import Clock
from inferflux.worker.engine.step.shell import Shell

from . import jobs
from .answers import text_of
from .jobs import Job, job_of

_NO_ADAPTERS = "the null engine has no adapters"
_NO_STATE = "the null engine has no KV state"


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast tokens are made.

    Attributes:
        step_s: a step's time; each running request has a token in each.
        prefill_tokens_per_s: of all prompts together.
    """

    step_s: float
    prefill_tokens_per_s: float = 10_000.0

    @property
    def step_prefill_tokens(self) -> int:
        return max(int(self.step_s * self.prefill_tokens_per_s), 1)


class NullCore(Shell[Job]):
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
        super().__init__(jobs, "generating", clock)
        self._worker_id = worker_id
        self._rates = rates
        self._kv_cells = kv_cells
        self._vocabulary_size = vocabulary_size
        self._high_water = 0

    @property
    def is_running(self) -> bool:
        """True if a step makes something."""
        return bool(self.running)

    def obey(self, command: engine_pb2.EngineCommand) -> None:
        step = self._report.step
        match command.WhichOneof("command"):
            case "load_adapter":
                step.adapters.add(digest=command.load_adapter.digest, error=_NO_ADAPTERS)
            case "export_state":
                if not command.export_state.is_over:
                    step.pieces.add(id=command.export_state.id, is_last=True, error=_NO_STATE)
            case "import_state":
                if not command.import_state.is_over:
                    step.imported.add(id=command.import_state.id, error=_NO_STATE)
            case _:
                super().obey(command)
                return
        self._report.has_news = True

    def _new(self, item: worker_pb2.BatchItem) -> Job:
        now_s, unix_s = self._clock.monotonic_s(), self._clock.unix_s()
        return job_of(item, arrival=self._arrivals, now_s=now_s, unix_s=unix_s)

    def step(self) -> None:
        """Prompts go on, the most urgent first, and each request whose prompt is computed has a token."""
        self._expire(self._clock.monotonic_s())
        if not self.running:
            return
        left = self._rates.step_prefill_tokens
        stats = self._report.step.stats
        ordered = sorted(self.running.values(), key=attrgetter("order"))
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
                self._report.computed(job)
        stats.step_us = stats.decode_us = int(self._rates.step_s * 1e6)
        self._report.has_news = True

    def _write_stats(self, step: engine_pb2.StepReport) -> None:
        stats = step.stats
        parked = [job for job in self.residents.values() if job.slot is None]
        stats.sequences = len(self.residents)
        stats.parked = len(parked)
        stats.swapped = sum(not job.position for job in parked)
        stats.kv_cells_used = self._cells_used
        stats.kv_cells_reserved = sum(job.position for job in self.running.values())
        stats.kv_cells_high_water = self._high_water
        stats.kv_cells_width = stats.kv_cells_used

    @property
    def _cells_used(self) -> int:
        return sum(job.position for job in self.residents.values())

    def _make_room(self, job: Job, n: int) -> bool:
        """Have `n` cells free for a job. Requests that wait leave first, then less urgent ones that run."""
        used = self._cells_used
        while used + n > self._kv_cells:
            others = [other for other in self.residents.values() if other is not job and other.position]
            victim = max(others, key=lambda other: (other.slot is None, other.order), default=None)
            if victim is None or (victim.slot is not None and victim.order < job.order):
                self._evict(job)
                return False
            used -= victim.position
            self._evict(victim)
        self._high_water = max(self._high_water, used + n)
        return True

    def _evict(self, job: Job) -> None:
        job.position = 0
        self._report.step.stats.recomputes += 1
        self._deschedule(job, scheduler_pb2.YIELD_REASON_MEMORY)

    def _emit(self, job: Job) -> None:
        """Give a job its next token, and end its run where that was the last one."""
        now_s = self._clock.monotonic_s()
        unix_us = int(self._clock.unix_s() * 1e6)
        chunk = jobs.empty(job)
        if not job.is_announced:
            jobs.announce(job, chunk, self._worker_id)
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
            self._report.emit(job, chunk.SerializeToString())
            if job.yields_at and job.generated >= job.yields_at:
                self._deschedule(job, scheduler_pb2.YIELD_REASON_TIMESLICE)
