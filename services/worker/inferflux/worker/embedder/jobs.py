"""One resident job of the embedder, and what is told of it (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from inferflux.api.finish_reasons import name_of
from inferflux.common.contract.request_times import deadline_s, queue_ms
from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2

Tokens = npt.NDArray[np.int32]
Vector = npt.NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Job:
    """Texts to embed. Those of which `vectors` has the vector are done, in their order.

    It runs while it has a `slot`. One without a slot keeps the vectors that it has.
    """

    key: str
    request_id: str
    attempt_id: str
    model: str
    epoch: int
    run: int
    urgency_key: float
    arrival: int
    texts: list[Tokens]
    # By the monotonic clock.
    deadline_s: float
    queue_ms: float
    started_s: float
    slot: int | None = None
    vectors: list[bytes] = field(default_factory=list)
    # Tokens: it has none.
    generated: int = 0
    # What all its chunks begin with, serialized once.
    chunk_head: bytes = field(init=False)

    def __post_init__(self) -> None:
        head = tokens_pb2.TokenChunk(request_id=self.request_id, epoch=self.epoch)
        self.chunk_head = head.SerializeToString()

    @property
    def order(self) -> tuple[float, int]:
        """Lower is sooner."""
        return self.urgency_key, self.arrival

    @property
    def waiting(self) -> list[Tokens]:
        """Texts that are not computed yet."""
        return self.texts[len(self.vectors) :]

    @property
    def is_done(self) -> bool:
        return len(self.vectors) == len(self.texts)

    @property
    def n_tokens(self) -> int:
        """Number of tokens of all texts."""
        return sum(text.size for text in self.texts)

    @property
    def position(self) -> int:
        """Tokens of the texts that are done."""
        return sum(text.size for text in self.texts[: len(self.vectors)])

    @property
    def residence(self) -> scheduler_pb2.Residence.ValueType:
        return scheduler_pb2.RESIDENCE_PARKED if self.slot is None else scheduler_pb2.RESIDENCE_RUNNING

    def resume(self, *, run: int, urgency_key: float, token_budget: int) -> None:
        """Go on."""
        del token_budget  # it generates nothing
        self.run, self.urgency_key = run, urgency_key


def empty(_job: Job) -> tokens_pb2.TokenChunk:
    """A terminal chunk that does not say yet how the job ended."""
    return tokens_pb2.TokenChunk()


def finish(
    job: Job, chunk: tokens_pb2.TokenChunk, reason: generation_pb2.FinishReason.ValueType, now_s: float
) -> str:
    """Make `chunk` the terminal one of one that ended as it should; returns the outcome. Tokens of texts that
    were computed count.

    Args:
        now_s: by the monotonic clock.
    """
    finished = chunk.finished
    finished.reason = reason
    finished.usage.prompt_tokens = job.position
    finished.timings.queue_ms = job.queue_ms
    finished.timings.prefill_ms = (now_s - job.started_s) * 1000
    if job.is_done:
        chunk.vectors.values.extend(job.vectors)
    return name_of(reason)


def close(job: Job, chunk: tokens_pb2.TokenChunk) -> None:
    """Say in a terminal chunk which attempt it ends, and of which model."""
    chunk.attempt_id, chunk.model = job.attempt_id, job.model


def ended(job: Job, outcome: str) -> engine_pb2.EngineFinished:
    """Return the message that tells the worker of its end."""
    return engine_pb2.EngineFinished(
        key=job.key, epoch=job.epoch, outcome=outcome, prompt_tokens=job.position
    )


def job_of(item: worker_pb2.BatchItem, *, arrival: int, now_s: float, unix_s: float) -> Job:
    """A job that the worker has checked.

    Args:
        now_s: monotonic clock. unix_s: wall clock.
    """
    request = item.request
    ids = np.array(request.prompt_token_ids, np.int32)
    ends = np.cumsum(request.embedding.text_tokens)[:-1]
    return Job(
        key=f"{request.tenant}.{request.request_id}",
        request_id=request.request_id,
        attempt_id=request.attempt_id,
        model=request.model,
        epoch=request.epoch,
        run=item.run,
        urgency_key=item.urgency_key,
        arrival=arrival,
        texts=list(np.split(ids, ends)),
        deadline_s=deadline_s(request, now_s=now_s, unix_s=unix_s),
        queue_ms=queue_ms(request, unix_s=unix_s),
        started_s=now_s,
    )
