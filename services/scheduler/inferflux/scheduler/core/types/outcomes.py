"""The chunks the scheduler itself publishes: waiting, and the ends of jobs that no worker ends (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from inferflux.common.contract import epochs
from inferflux.common.contract.errors import (
    DeadlineExceeded,
    InferFluxError,
    InvalidArgument,
    Unavailable,
    to_failed,
)
from inferflux.v1 import generation_pb2, tokens_pb2

from .facets import TerminalEvent
from .jobs import Attempt, Job
from .replayed import ReplayedTokens


def finished(job: Job, reason: generation_pb2.FinishReason.ValueType, now: float) -> tokens_pb2.Finished:
    """Ended as it should, without a worker. What never ran has used nothing."""
    event = tokens_pb2.Finished(reason=reason)
    if job.has_run:
        event.usage.prompt_tokens = job.prompt_tokens
        event.usage.completion_tokens = job.generated_tokens
    event.timings.queue_ms = max(0.0, now - job.enqueued_s) * 1000
    return event


def cancelled(job: Job, now: float) -> tokens_pb2.Finished:
    return finished(job, generation_pb2.FINISH_REASON_CANCELLED, now)


def expired() -> tokens_pb2.Failed:
    return _failed(
        DeadlineExceeded("the deadline passed before the request was served", reason="EXPIRED_IN_QUEUE")
    )


def no_worker(job: Job, timeout_s: float, draining: Sequence[str] = ()) -> tokens_pb2.Failed:
    """Args: draining: workers that have its model and take nothing new."""
    where = f" in the pools {', '.join(job.worker_pools)}" if job.worker_pools else ""
    message = f"no worker{where} has served {job.model} for {timeout_s:g} s"
    if draining:
        message += f": {', '.join(draining)} {'is' if len(draining) == 1 else 'are'} draining"
    return _failed(Unavailable(message, reason="NO_WORKER", retry_delay_s=5.0))


def replaced(job: Job, timeout_s: float) -> tokens_pb2.Failed:
    """Its model's name stands for another file by now: what was begun with one file is not continued with
    another."""
    message = (
        f"{job.model} is served from another file now, and from the request's for {timeout_s:g} s no more"
    )
    return _failed(Unavailable(message, reason="MODEL_REPLACED", retry_delay_s=1.0))


def not_loaded(job: Job, why: str) -> tokens_pb2.Failed:
    """No host can load its model."""
    message = f"the model {job.model} cannot be loaded: {why}"
    return _failed(Unavailable(message, reason="MODEL_LOAD_FAILED", retry_delay_s=30.0))


def retries_exhausted(job: Job, cause: str) -> tokens_pb2.Failed:
    message = f"gave up after {job.retries.counted} lost attempts, the last: {cause.replace('_', ' ')}"
    return _failed(Unavailable(message, reason="RETRIES_EXHAUSTED", retry_delay_s=5.0))


def refusals_exhausted(message: str) -> tokens_pb2.Failed:
    return _failed(
        Unavailable(f"workers keep refusing the request: {message}", reason="REFUSED", retry_delay_s=5.0)
    )


def poison(job: Job) -> tokens_pb2.Failed:
    """The request's own fault, so that no client repeats it: that would cost two engines more."""
    deaths = job.retries.engine_deaths
    message = f"request {job.key.request_id} ran on {deaths} engines that died, on the last one alone"
    return _failed(InvalidArgument(message, reason="POISON_REQUEST"))


def impossible(why: InvalidArgument) -> tokens_pb2.Failed:
    """No worker could ever run it."""
    return _failed(why)


def invalid(message: str) -> tokens_pb2.Failed:
    return _failed(InvalidArgument(message, reason="REFUSED_BY_WORKER"))


def lost(attempt: Attempt, replayed: ReplayedTokens) -> tokens_pb2.TokenChunk:
    """The end of a request whose job the work queue has lost."""
    message = f"the work queue has lost the request {attempt.key.request_id}: send it again"
    return tokens_pb2.TokenChunk(
        request_id=attempt.key.request_id,
        epoch=epochs.after(replayed.epoch),
        offset=len(replayed.token_ids),
        attempt_id=attempt.attempt_id,
        failed=_failed(Unavailable(message, reason="JOB_LOST", retry_delay_s=1.0)),
    )


def terminal_chunk(job: Job, terminal_event: TerminalEvent) -> tokens_pb2.TokenChunk:
    chunk = _chunk(job)
    if isinstance(terminal_event, tokens_pb2.Failed):
        chunk.failed.CopyFrom(terminal_event)
    else:
        chunk.finished.CopyFrom(terminal_event)
    chunk.attempt_id = job.attempt_id
    chunk.model, chunk.adapter = job.model, job.request.adapter
    if job.request.HasField("answer_format"):
        chunk.answer_format.CopyFrom(job.request.answer_format)
    return chunk


def queued_chunk(job: Job, position: int, expected_wait_s: float) -> tokens_pb2.TokenChunk:
    """A chunk in an epoch that readers know. A new epoch would make them drop the chunks of a worker that was
    replaced too early, and may yet finish the request."""
    chunk = _chunk(job)
    chunk.epoch = job.replay.readers_epoch
    chunk.queued.position = position
    chunk.queued.expected_wait_ms = expected_wait_s * 1000
    return chunk


def _chunk(job: Job) -> tokens_pb2.TokenChunk:
    return tokens_pb2.TokenChunk(request_id=job.key.request_id, epoch=job.epoch, offset=job.generated_tokens)


def _failed(error: InferFluxError) -> tokens_pb2.Failed:
    return to_failed(error)
