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

    def resume(self, command: engine_pb2.EngineResume) -> None:
        """Go on, for the new run's budget of tokens."""
        self.run, self.urgency_key = command.run, command.urgency_key
        self.yields_at = self.generated + command.token_budget if command.token_budget else 0

    def next_token(self, vocabulary_size: int) -> int:
        """The token that comes now; it is generated from now on."""
        token = token_at(self.seed, self.generated, vocabulary_size)
        self.generated += 1
        return token

    def residence(
        self, reason: scheduler_pb2.YieldReason.ValueType = scheduler_pb2.YIELD_REASON_UNSPECIFIED
    ) -> engine_pb2.EngineResidence:
        """Where it is now, and why it does not run."""
        where = scheduler_pb2.RESIDENCE_PARKED if self.position else scheduler_pb2.RESIDENCE_SWAPPED
        return engine_pb2.EngineResidence(
            key=self.key,
            epoch=self.epoch,
            run=self.run,
            residence=scheduler_pb2.RESIDENCE_RUNNING if self.slot is not None else where,
            slot=self.slot or 0,
            reason=reason,
            generated_tokens=self.generated,
        )

    def chunk(self) -> tokens_pb2.TokenChunk:
        """Chunk that follows `chunk_head`, after all that was generated."""
        return tokens_pb2.TokenChunk(offset=self.generated)

    def announce(self, chunk: tokens_pb2.TokenChunk, worker_id: str) -> None:
        """Say in a chunk that it has started here."""
        chunk.attempt_id = self.request.attempt_id
        chunk.started.worker_id = worker_id
        chunk.started.prompt_tokens = self.prompt_tokens
        self._add_format(chunk)
        self.is_announced = True

    def finish(
        self, chunk: tokens_pb2.TokenChunk, reason: generation_pb2.FinishReason.ValueType, now_s: float
    ) -> str:
        """Make `chunk` the terminal one; returns the outcome.

        Args:
            now_s: by the monotonic clock.
        """
        chunk.text += self.text.finish()
        first_s = now_s if self.first_token_s is None else self.first_token_s
        finished = chunk.finished
        finished.reason = reason
        finished.stop = self.text.stop
        finished.usage.prompt_tokens = self.prompt_tokens
        finished.usage.completion_tokens = self.generated
        finished.timings.queue_ms = self.queue_ms
        finished.timings.prefill_ms = (first_s - self.started_s) * 1000
        finished.timings.decode_ms = (now_s - first_s) * 1000
        return name_of(reason)

    def close(self, chunk: tokens_pb2.TokenChunk) -> None:
        """Say in a terminal chunk which attempt it ends, of which model, and how its answer is read."""
        request = self.request
        chunk.attempt_id, chunk.model = request.attempt_id, request.model
        self._add_format(chunk)

    def _add_format(self, chunk: tokens_pb2.TokenChunk) -> None:
        if self.request.HasField("answer_format"):
            chunk.answer_format.CopyFrom(self.request.answer_format)

    def ended(self, outcome: str) -> engine_pb2.EngineFinished:
        """Report of its end to the worker."""
        return engine_pb2.EngineFinished(
            key=self.key,
            epoch=self.epoch,
            outcome=outcome,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.generated,
            time_to_first_token_ms=self.time_to_first_token_ms,
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
