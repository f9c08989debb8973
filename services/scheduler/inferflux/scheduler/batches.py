"""Building the batches that go to workers (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferflux.v1 import worker_pb2

from .jobs import Job


def split(jobs: Sequence[Job], *, max_size: int, max_tokens: int) -> Iterator[list[Job]]:
    """Cut jobs for one worker, most urgent first, into batches.

    Args:
        max_size: most requests in one; 0 for no limit.
        max_tokens: most tokens to prefill in one. A longer prompt travels alone.
    """
    batch: list[Job] = []
    tokens = 0
    for job in jobs:
        cost = job.prompt_tokens + job.generated_tokens
        if batch and ((max_size and len(batch) >= max_size) or tokens + cost > max_tokens):
            yield batch
            batch, tokens = [], 0
        batch.append(job)
        tokens += cost
    if batch:
        yield batch


def build(batch_id: str, incarnation: str, jobs: Sequence[Job]) -> worker_pb2.RequestBatch:
    """The message for jobs that have their places."""
    batch = worker_pb2.RequestBatch(
        batch_id=batch_id, incarnation=incarnation, phase=worker_pb2.PHASE_PREFILL
    )
    for job in jobs:
        if job.place is None:
            raise ValueError(f"{job.key} has no place")
        item = batch.items.add(slot=job.place.slot)
        item.request.CopyFrom(job.request)
        item.request.epoch = job.epoch
    return batch
