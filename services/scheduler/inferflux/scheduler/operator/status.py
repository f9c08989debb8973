"""Status of the scheduler, as it answers it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from inferflux.common.bus import Bus, Message, Subscription
from inferflux.common.contract import checks, subjects
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.pages import page_after
from inferflux.common.contract.partitions import Partition
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types.jobs import JobState
from inferflux.scheduler.core.workers.assignments import Assignment, UnownedRequest
from inferflux.scheduler.core.workers.pools import pools, ready_role
from inferflux.scheduler.core.workers.slots import WorkerSlots
from inferflux.v1 import scheduler_pb2

_ALL = scheduler_pb2.SchedulerStatusRequest()


def describe(
    core: SchedulerCore, now: float, asked: scheduler_pb2.SchedulerStatusRequest = _ALL
) -> scheduler_pb2.SchedulerStatus:
    """The queue and the slot table as a message (pure)."""
    oldest_s = core.queue.oldest_enqueued_s()
    states = Counter(job.state for job in core.jobs.values())
    status = scheduler_pb2.SchedulerStatus(
        queued=len(core.queue),
        running=states[JobState.RUNNING],
        oldest_wait_ms=0 if oldest_s is None else max(0.0, now - oldest_s) * 1000,
        parked=states[JobState.PARKED],
        policy=core.policy,
        fairness=core.fairness.to_message(),
        worker_totals=_totals(core.table.workers.values()),
        pools=_pools(core),
        moving=core.moving,
    )
    if asked.without_workers:
        return status
    worker_ids = sorted(core.table.workers)
    page, _ = page_after(worker_ids, str, asked.after_worker_id or None, asked.page_size)
    for worker_id in page:
        status.workers.append(_view(core.table.workers[worker_id], now))
    return status


def _totals(workers: Collection[WorkerSlots]) -> scheduler_pb2.WorkerTotals:
    states = Counter(worker.state for worker in workers)
    return scheduler_pb2.WorkerTotals(
        workers=len(workers),
        loading=states[scheduler_pb2.WORKER_STATE_LOADING],
        ready=states[scheduler_pb2.WORKER_STATE_READY],
        draining=states[scheduler_pb2.WORKER_STATE_DRAINING],
        slots=sum(worker.slots for worker in workers),
    )


def _pools(core: SchedulerCore) -> list[scheduler_pb2.PoolStatus]:
    """Pools of workers with a role: those that have some, or should have."""
    roles = (ready_role(worker.status) for worker in core.table.workers.values())
    sizes = core.limits.prefill_pool_size, core.limits.decode_pool_size
    return [
        scheduler_pb2.PoolStatus(role=pool.role, ready=pool.ready, expected=pool.expected)
        for pool in pools(roles, prefill=sizes[0], decode=sizes[1])
        if pool.ready or pool.expected
    ]


def _view(worker: WorkerSlots, now: float) -> scheduler_pb2.WorkerView:
    view = scheduler_pb2.WorkerView(
        status=worker.status,
        heartbeat_age_ms=round(max(0.0, now - worker.last_seen_s) * 1000),
        slowness=max(worker.slowness.values(), default=1.0),
    )
    view.status.state = worker.state
    if view.status.HasField("kv_source"):
        # With it KV state of any tenant can be fetched. Those who may see the status may not.
        view.status.kv_source.ClearField("ticket")
    running: list[Assignment | UnownedRequest] = [*worker.unowned.values(), *worker.assignments.values()]
    by_slot = {request.slot: request for request in running if request.slot is not None}
    for slot in range(worker.slots):
        entry = view.slots.add(slot=slot, state="free")
        if (request := by_slot.get(slot)) is not None:
            entry.state = "running"
            entry.tenant, entry.request_id = request.key
            entry.epoch = request.epoch
    return view


def fit(status: scheduler_pb2.SchedulerStatus, max_bytes: int) -> bytes:
    """Serialize; a fleet too large for one message goes without its slots and requests."""
    data = status.SerializeToString()
    if len(data) > max_bytes:
        for view in status.workers:
            del view.slots[:], view.status.residents[:], view.status.finished[:]
        data = status.SerializeToString()
    return data


async def serve_status(
    bus: Bus,
    core: SchedulerCore,
    clock: Callable[[], float],
    *,
    leader: str,
    partition: Partition,
    term: int,
    not_ready: Callable[[], str],
) -> Subscription:
    """Answer SchedulerStatusRequest until the subscription is closed.

    Args:
        not_ready: what keeps the process from being ready, "" if nothing does.
    """

    async def on_request(message: Message) -> None:
        try:
            asked = checks.decode(scheduler_pb2.SchedulerStatusRequest, message.data)
        except InvalidArgument:
            asked = _ALL
        status = describe(core, clock(), asked)
        status.leader, status.term, status.partition = leader, term, partition.name
        status.not_ready = not_ready()
        await message.respond(fit(status, bus.max_payload))

    return await bus.serve(subjects.SCHEDULER_STATUS, on_request)
