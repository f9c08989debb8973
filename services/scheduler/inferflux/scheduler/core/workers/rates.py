"""Speeds of a model's workers, as they measure them, and the deadlines that are out of their reach (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from inferflux.common.contract.errors import DeadlineExceeded, to_failed
from inferflux.scheduler.core.types.jobs import Job
from inferflux.v1 import scheduler_pb2, tokens_pb2

from .slowness import Speed, fastest, slowness_of

# Nothing is refused unless it would be too late at twice the speed as well.
_BENEFIT_OF_DOUBT = 0.5
# Speeds of a model's workers are compared as often as this.
_COMPARE_S = 5.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second, all sequences together, when there is nothing else to do; 0 while not known."""

    prefill: float = 0.0
    decode: float = 0.0


@dataclass(slots=True)
class _Worker:
    models: tuple[str, ...]
    now: Rates
    # Its best so far: short prompts, which are most of what it measures, understate what long ones get.
    best_prefill: float
    speed: Speed = field(default_factory=Speed)
    # By model; 1 where it is not in it.
    slowness: dict[str, float] = field(default_factory=dict)


class SlownessChange(NamedTuple):
    """A worker counts as this many times slower than the fastest of the model from now on."""

    worker_id: str
    model: str
    slowness: float


class ModelRates:
    """The rates of the workers that live, by the models they serve."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._of_model: dict[str, dict[str, _Worker]] = {}
        # The best prefill rate of the model's workers; not in it when it must be looked for again.
        self._fastest: dict[str, float] = {}
        # When the speeds of the model's workers were compared.
        self._compared_s: dict[str, float] = {}

    def update(self, status: scheduler_pb2.WorkerStatus) -> None:
        """After a heartbeat. A rate that it does not give, its engine being new, stays as it was."""
        models = tuple(card.name for card in status.models)
        worker = self._workers.get(status.worker_id)
        if worker is None or worker.models != models:
            self.remove(status.worker_id)
            slowness = worker.slowness if worker is not None else {}
            worker = _Worker(models, Rates(), 0.0, slowness=slowness)
            self._workers[status.worker_id] = worker
            for model in models:
                self._of_model.setdefault(model, {})[status.worker_id] = worker
        worker.now = Rates(
            prefill=status.prefill_tokens_per_s or worker.now.prefill,
            decode=status.decode_tokens_per_s or worker.now.decode,
        )
        worker.speed.observe(status)
        if worker.now.prefill > worker.best_prefill:
            worker.best_prefill = worker.now.prefill
            for model in models:
                if model in self._fastest:
                    self._fastest[model] = max(self._fastest[model], worker.best_prefill)

    def remove(self, worker_id: str) -> None:
        """Remove a worker that does not live any more, or never did."""
        worker = self._workers.pop(worker_id, None)
        for model in worker.models if worker is not None else ():
            self._fastest.pop(model, None)
            workers = self._of_model[model]
            workers.pop(worker_id, None)
            if not workers:
                del self._of_model[model]
                self._compared_s.pop(model, None)

    def compare(self, worker_id: str, now: float) -> Iterator[SlownessChange]:
        """Compare the speeds of all that serve the models of a worker, where that was not done lately."""
        worker = self._workers.get(worker_id)
        for model in worker.models if worker is not None else ():
            if now - self._compared_s.get(model, 0.0) >= _COMPARE_S:
                self._compared_s[model] = now
                yield from self._compare(model)

    def _compare(self, model: str) -> Iterator[SlownessChange]:
        workers = self._of_model[model]
        best = fastest([worker.speed for worker in workers.values()])
        for worker_id, worker in workers.items():
            before = worker.slowness.get(model, 1.0)
            slowness = worker.slowness[model] = slowness_of(worker.speed, best, before)
            if slowness != before:
                yield SlownessChange(worker_id, model, slowness)

    def total(self, model: str) -> Rates:
        """Rates of the model's workers together, as last reported; a rate that is not known counts as 0."""
        workers = [worker.now for worker in self._of_model.get(model, {}).values()]
        return Rates(prefill=sum(r.prefill for r in workers), decode=sum(r.decode for r in workers))

    def prefill_s(self, job: Job) -> float:
        """Seconds that the fastest worker would take for what is to be computed before the first new token,
        had it nothing else to do; 0 while no worker has a rate."""
        model = job.model
        if model not in self._of_model:
            return 0.0
        if model not in self._fastest:
            self._fastest[model] = max(worker.best_prefill for worker in self._of_model[model].values())
        fastest = self._fastest[model]
        to_prefill = max(1, job.prompt_tokens + job.generated_tokens - job.most_cached)
        return to_prefill / fastest if fastest else 0.0

    def is_hopeless(self, job: Job, now: float, expected_wait_s: float) -> bool:
        """True if not even the job's first token could be there by its deadline.

        How long an answer gets is not known, so a deadline that may cut it short is none to refuse for. And
        an estimate may be wrong: a job is hopeless only if it would come too late in half the time expected,
        waiting and prefill on the fastest worker together. It never is while no rate is known.

        Args:
            now: by the clock of the job's deadline.
            expected_wait_s: in the queue. 0 for a job that need not wait, or that others make way for.
        """
        prefill_s = self.prefill_s(job)
        if job.deadline_s is None or not prefill_s:
            return False
        return now + _BENEFIT_OF_DOUBT * (expected_wait_s + prefill_s) > job.deadline_s

    def unreachable(self, job: Job, now: float, expected_wait_s: float) -> tokens_pb2.Failed:
        """The end of a job that is hopeless. Takes what `is_hopeless` took."""
        left_s = max(0.0, (job.deadline_s or now) - now)
        prefill_s = self.prefill_s(job)
        message = (
            f"the deadline is in {left_s:.3g} s, but the first token would take about "
            f"{expected_wait_s + prefill_s:.3g} s: {expected_wait_s:.3g} s in the queue and "
            f"{prefill_s:.3g} s for the prompt"
        )
        return to_failed(DeadlineExceeded(message, reason="DEADLINE_UNREACHABLE"))
