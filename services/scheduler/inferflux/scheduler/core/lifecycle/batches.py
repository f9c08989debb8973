"""Building the batches that go to workers (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from inferflux.scheduler.core.types.jobs import Job
from inferflux.scheduler.core.workers.assignments import Assignment
from inferflux.scheduler.core.workers.slots import WorkerSlots
from inferflux.scheduler.core.workers.transfers import prefix_giver
from inferflux.v1 import worker_pb2


def split(jobs: Sequence[Job], *, max_size: int, max_tokens: int) -> Iterator[list[Job]]:
    """Cut jobs for one worker, most urgent first, into batches. A worker answers by request id, which is
    unique within a tenant only: equal ones travel apart.

    Args:
        max_size: most requests in one; 0 for no limit.
        max_tokens: most tokens to prefill in one. A longer prompt travels alone.
    """
    batch: list[Job] = []
    tokens = 0
    ids: set[str] = set()
    for job in jobs:
        cost = prefill_tokens(job)
        is_full = (max_size and len(batch) >= max_size) or tokens + cost > max_tokens
        if batch and (is_full or job.key.request_id in ids):
            yield batch
            batch, tokens, ids = [], 0, set()
        batch.append(job)
        ids.add(job.key.request_id)
        tokens += cost
    if batch:
        yield batch


def prefill_tokens(job: Job) -> int:
    """Tokens to compute before its next one: none where it is resident, and one where its state is."""
    if job.stay.is_resuming:
        return 0
    return 1 if job.follows_to(job.worker_id) else job.to_prefill_on(job.worker_id)


def begin(batch: worker_pb2.RequestBatch, jobs: Sequence[Job]) -> None:
    """Set what the items of these jobs will have in common, and what they amount to."""
    is_resuming = bool(jobs) and jobs[0].stay.is_resuming
    batch.phase = worker_pb2.PHASE_DECODE if is_resuming else worker_pb2.PHASE_PREFILL
    batch.prefill_tokens = sum(prefill_tokens(job) for job in jobs)


def add(
    batch: worker_pb2.RequestBatch, job: Job, assignment: Assignment, token_budget: int, exchange: str = ""
) -> None:
    """Add the item for a job that has its slot, after more urgent ones.

    The worker has a resumed request already: it is only named.

    Args:
        token_budget: its timeslice; 0: none.
        exchange: of the worker.

    Raises:
        ValueError: it has no slot.
    """
    if assignment.slot is None:
        raise ValueError(f"{job.key} has no slot")
    item = batch.items.add(
        slot=assignment.slot, token_budget=token_budget, urgency_key=job.urgency_key, run=assignment.run
    )
    if batch.phase == worker_pb2.PHASE_DECODE:
        item.request.tenant, item.request.request_id = job.key
        item.request.model = job.model
        item.request.priority = job.priority
    else:
        item.request.CopyFrom(job.request)
        item.seeks_state = job.retries.seeks_state(exchange)
    item.request.epoch = job.epoch


def add_origin(
    item: worker_pb2.BatchItem, job: Job, worker: WorkerSlots, workers: Mapping[str, WorkerSlots]
) -> None:
    """Name the worker that has state of a job which is new to its own: its last one, or one with its prefix.

    Args:
        workers: that live, by id.
    """
    if job.stay.is_resuming:
        return
    if job.move is not None and job.follows_to(worker.worker_id):
        item.state_from.source.CopyFrom(job.move.source)
        item.state_from.epoch = job.move.epoch
    elif not item.seeks_state and (giver := prefix_giver(job, worker, workers)) is not None:
        item.state_from.source.CopyFrom(giver.status.kv_source)


def deschedule_of(job: Job, worker: WorkerSlots) -> worker_pb2.Deschedule:
    """Return the command that ends the latest run of a job on its worker."""
    tenant, request_id = job.key
    run = worker.assignments[job.key].run
    return worker_pb2.Deschedule(tenant=tenant, request_id=request_id, epoch=job.epoch, run=run)
