"""What the scheduler answers about itself."""

from __future__ import annotations

from collections.abc import Callable

from inferflux.common import subjects
from inferflux.common.bus import Bus, Message
from inferflux.v1 import scheduler_pb2

from .core import Core
from .jobs import JobState
from .slots import WorkerSlots


def describe(core: Core, now: float) -> scheduler_pb2.SchedulerStatus:
    """The queue and the slot table as a message (pure)."""
    oldest_s = core.queue.oldest_enqueued_s()
    status = scheduler_pb2.SchedulerStatus(
        queued=len(core.queue),
        running=sum(job.state is JobState.RUNNING for job in core.jobs.values()),
        oldest_wait_ms=0 if oldest_s is None else max(0.0, now - oldest_s) * 1000,
    )
    for worker_id in sorted(core.table.workers):
        status.workers.append(_view(core.table.workers[worker_id], now))
    return status


def _view(worker: WorkerSlots, now: float) -> scheduler_pb2.WorkerView:
    view = scheduler_pb2.WorkerView(
        status=worker.status, heartbeat_age_ms=round(max(0.0, now - worker.heard_s) * 1000)
    )
    view.status.state = worker.state
    by_slot = {o.slot: o for o in worker.owners.values()} | {s.slot: s for s in worker.strays.values()}
    for slot in range(worker.slots):
        entry = view.slots.add(slot=slot, state="free")
        if (taken := by_slot.get(slot)) is not None:
            entry.state = "running"
            entry.tenant, entry.request_id = taken.key
            entry.epoch = taken.epoch
    return view


def fit(status: scheduler_pb2.SchedulerStatus, max_bytes: int) -> bytes:
    """Serialize; a fleet too large for one message goes without its slots and requests."""
    data = status.SerializeToString()
    if len(data) > max_bytes:
        for view in status.workers:
            del view.slots[:], view.status.running[:], view.status.ended[:]
        data = status.SerializeToString()
    return data


async def serve_status(bus: Bus, core: Core, clock: Callable[[], float]) -> None:
    """Answer SchedulerStatusRequest until the bus is closed."""

    async def on_request(message: Message) -> None:
        await message.respond(fit(describe(core, clock()), bus.max_payload))

    await bus.serve(subjects.SCHEDULER_STATUS, on_request)
