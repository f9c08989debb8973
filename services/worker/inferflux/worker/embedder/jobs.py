"""One resident job of the embedder, and what is told of it (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from inferflux.common.contract.errors import InferFluxError, to_failed
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
    def n_computed(self) -> int:
        """Tokens of the texts that are done."""
        return sum(text.size for text in self.texts[: len(self.vectors)])

    def residence(
        self, reason: scheduler_pb2.YieldReason.ValueType = scheduler_pb2.YIELD_REASON_UNSPECIFIED
    ) -> engine_pb2.EngineResidence:
        """Return its residence now, and the reason why it does not run."""
        is_running = self.slot is not None
        return engine_pb2.EngineResidence(
            key=self.key,
            epoch=self.epoch,
            run=self.run,
            residence=scheduler_pb2.RESIDENCE_RUNNING if is_running else scheduler_pb2.RESIDENCE_PARKED,
            slot=self.slot or 0,
            reason=reason,
        )

    def chunk(self) -> tokens_pb2.TokenChunk:
        """A terminal chunk that does not say yet how the job ended."""
        return tokens_pb2.TokenChunk(
            request_id=self.request_id, epoch=self.epoch, attempt_id=self.attempt_id, model=self.model
        )

    def finished(self, reason: generation_pb2.FinishReason.ValueType, now_s: float) -> tokens_pb2.TokenChunk:
        """The terminal chunk of one that ended as it should. Tokens of texts that were computed count."""
        chunk = self.chunk()
        finished = chunk.finished
        finished.reason = reason
        finished.usage.prompt_tokens = self.n_computed
        finished.timings.queue_ms = self.queue_ms
        finished.timings.prefill_ms = (now_s - self.started_s) * 1000
        if self.is_done:
            chunk.vectors.values.extend(self.vectors)
        return chunk

    def failed(self, error: InferFluxError) -> tokens_pb2.TokenChunk:
        """The terminal chunk of one that failed."""
        chunk = self.chunk()
        chunk.failed.CopyFrom(to_failed(error))
        return chunk

    def ended(self, outcome: str) -> engine_pb2.EngineFinished:
        """Return the message that tells the worker of its end."""
        return engine_pb2.EngineFinished(
            key=self.key, epoch=self.epoch, outcome=outcome, prompt_tokens=self.n_computed
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
