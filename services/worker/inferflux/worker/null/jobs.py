"""One resident request of the null engine, and what is told of it (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferflux.api.finish_reasons import name_of
from inferflux.common.contract.request_times import deadline_s, queue_ms
from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.plan.text import TextAssembler

from .answers import text_of, token_at


@dataclass(slots=True, eq=False)
class Job:
    """A request that runs while it has a `slot`.

    Its first `position` tokens are in KV cells while it `is_loaded`; without cells it computes all again.
    """

    key: str
    request: scheduler_pb2.InferenceRequest
    epoch: int
    seed: int
    prompt_tokens: int
    max_tokens: int
    with_logprobs: bool
    run: int
    urgency_key: float
    arrival: int
    yields_at: int
    queue_ms: float
    started_s: float
    # By the monotonic clock.
    deadline_s: float
    text: TextAssembler
    end_tokens: frozenset[int]
    generated: int = 0
    position: int = 0
    slot: int | None = None
    first_token_s: float | None = None
    time_to_first_token_ms: float = 0.0
    is_announced: bool = False
    # What all its chunks begin with, serialized once.
    chunk_head: bytes = field(init=False)

    def __post_init__(self) -> None:
        head = tokens_pb2.TokenChunk(request_id=self.request.request_id, epoch=self.epoch)
        self.chunk_head = head.SerializeToString()

    @property
    def order(self) -> tuple[float, int]:
        """Lower is more urgent; no two are equal."""
        return self.urgency_key, self.arrival

    @property
    def n_pending(self) -> int:
        """Tokens that are to be computed before the next one is made."""
        return self.prompt_tokens + self.generated - self.position

    @property
    def residence(self) -> scheduler_pb2.Residence.ValueType:
        if self.slot is not None:
            return scheduler_pb2.RESIDENCE_RUNNING
        return scheduler_pb2.RESIDENCE_PARKED if self.position else scheduler_pb2.RESIDENCE_SWAPPED

    def resume(self, *, run: int, urgency_key: float, token_budget: int) -> None:
        """Go on, for the new run's budget of tokens."""
        self.run, self.urgency_key = run, urgency_key
        self.yields_at = self.generated + token_budget if token_budget else 0

    def next_token(self, vocabulary_size: int) -> int:
        """The token that comes now; it is generated from now on."""
        token = token_at(self.seed, self.generated, vocabulary_size)
        self.generated += 1
        return token


def empty(job: Job) -> tokens_pb2.TokenChunk:
    """Chunk that follows `chunk_head`, after all that was generated."""
    return tokens_pb2.TokenChunk(offset=job.generated)


def announce(job: Job, chunk: tokens_pb2.TokenChunk, worker_id: str) -> None:
    """Say in a chunk that it has started here."""
    chunk.attempt_id = job.request.attempt_id
    chunk.started.worker_id = worker_id
    chunk.started.prompt_tokens = job.prompt_tokens
    _add_format(job, chunk)
    job.is_announced = True


def finish(
    job: Job, chunk: tokens_pb2.TokenChunk, reason: generation_pb2.FinishReason.ValueType, now_s: float
) -> str:
    """Make `chunk` the terminal one; returns the outcome.

    Args:
        now_s: by the monotonic clock.
    """
    chunk.text += job.text.finish()
    first_s = now_s if job.first_token_s is None else job.first_token_s
    finished = chunk.finished
    finished.reason = reason
    finished.stop = job.text.stop
    finished.usage.prompt_tokens = job.prompt_tokens
    finished.usage.completion_tokens = job.generated
    finished.timings.queue_ms = job.queue_ms
    finished.timings.prefill_ms = (first_s - job.started_s) * 1000
    finished.timings.decode_ms = (now_s - first_s) * 1000
    return name_of(reason)


def close(job: Job, chunk: tokens_pb2.TokenChunk) -> None:
    """Say in a terminal chunk which attempt it ends, of which model, and how its answer is read."""
    request = job.request
    chunk.attempt_id, chunk.model = request.attempt_id, request.model
    _add_format(job, chunk)


def _add_format(job: Job, chunk: tokens_pb2.TokenChunk) -> None:
    if job.request.HasField("answer_format"):
        chunk.answer_format.CopyFrom(job.request.answer_format)


def ended(job: Job, outcome: str) -> engine_pb2.EngineFinished:
    """Report of its end to the worker."""
    return engine_pb2.EngineFinished(
        key=job.key,
        epoch=job.epoch,
        outcome=outcome,
        prompt_tokens=job.prompt_tokens,
        completion_tokens=job.generated,
        time_to_first_token_ms=job.time_to_first_token_ms,
    )


def job_of(item: worker_pb2.BatchItem, *, arrival: int, now_s: float, unix_s: float) -> Job:
    """A request that the worker has checked, its text brought up to the tokens already emitted.

    Args:
        now_s: monotonic clock. unix_s: wall clock.
    """
    request, params = item.request, item.request.params
    generated = list(request.generated_token_ids)
    job = Job(
        key=f"{request.tenant}.{request.request_id}",
        request=request,
        epoch=request.epoch,
        seed=params.sampling.seed,
        prompt_tokens=len(request.prompt_token_ids),
        max_tokens=params.max_tokens,
        with_logprobs=params.sampling.HasField("logprobs"),
        run=item.run,
        urgency_key=item.urgency_key,
        arrival=arrival,
        yields_at=len(generated) + item.token_budget if item.token_budget else 0,
        queue_ms=queue_ms(request, unix_s=unix_s),
        started_s=now_s,
        deadline_s=deadline_s(request, now_s=now_s, unix_s=unix_s),
        text=TextAssembler(params.stop),
        end_tokens=frozenset(params.stop_token_ids),
        generated=len(generated),
    )
    for token in generated:
        job.text.push(text_of(token).encode())
    return job
