"""Jobs from the work queue into the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from inferflux.common.bus import Bus, Job, JobConsumer
from inferflux.common.contract import checks, subjects
from inferflux.common.contract.errors import InferFluxError, InvalidArgument, to_failed
from inferflux.common.contract.request_times import set_clock
from inferflux.common.process import logs
from inferflux.common.process.tasks import cancel_all
from inferflux.common.tracing import trace_id_of
from inferflux.scheduler import request_log
from inferflux.scheduler.core.lifecycle.checks import check_job
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.scheduler.spans import traceparent_of
from inferflux.v1 import scheduler_pb2, tokens_pb2

from .guard import Culprit, GuardedCore
from .prefix_hints import Hints, PrefixHints

log = logs.get("scheduler.intake")

# Jobs taken in before the event loop does anything else.
_BURST = 128
_LOOKED_UP_AT_ONCE = 32


def parse(data: bytes) -> scheduler_pb2.InferenceRequest:
    """Decode a job.

    Raises:
        InvalidArgument: it cannot be decoded, or not even be answered: who asked is missing.
    """
    request = checks.decode(scheduler_pb2.InferenceRequest, data)
    for field in ("request_id", "tenant"):
        if not subjects.is_safe_token(getattr(request, field)):
            raise InvalidArgument(f"{field} must be 1 to 64 of A-Z a-z 0-9 _ -", field=field)
    return request


# A job that passed its checks, and its place in the work queue.
_Checked = tuple[scheduler_pb2.InferenceRequest, Job]


async def take_in(
    jobs: JobConsumer,
    bus: Bus,
    guard: GuardedCore,
    hints: PrefixHints,
    metrics: SchedulerMetrics,
    clock: Callable[[], float],
) -> None:
    """Hand every job on, in order, for ever. Bad ones are taken off the queue; they never stop the others.

    Args:
        clock: that of the core.

    Raises:
        Unavailable: another scheduler has taken the queue over.
    """
    checked: asyncio.Queue[_Checked] = asyncio.Queue()
    tasks = {
        asyncio.create_task(_receive(jobs, checked, bus, metrics, clock)),
        asyncio.create_task(_hand_on(checked, guard, hints)),
    }
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel_all(tasks)


async def _receive(
    jobs: JobConsumer,
    checked: asyncio.Queue[_Checked],
    bus: Bus,
    metrics: SchedulerMetrics,
    clock: Callable[[], float],
) -> None:
    burst = 0
    async for job in jobs:
        try:
            request = parse(job.data)
        except InvalidArgument as error:
            metrics.bad.note("job", error)
            await terminate(job)
        else:
            if await _is_good(request, job, bus, metrics):
                set_clock(
                    request,
                    theirs_ms=request.enqueued_unix_ms,
                    ours_ms=round((clock() - await jobs.age_s(job)) * 1000),
                )
                checked.put_nowait((request, job))
        burst += 1
        if burst % _BURST == 0:
            await asyncio.sleep(0)


async def _hand_on(checked: asyncio.Queue[_Checked], guard: GuardedCore, hints: PrefixHints) -> None:
    """Look prompts up, as many at once as have come since the last lookup."""
    while True:
        some = [await checked.get()]
        while len(some) < _LOOKED_UP_AT_ONCE and not checked.empty():
            some.append(checked.get_nowait())
        found = await hints.look_up([request for request, _ in some])
        for (request, job), cached_on in zip(some, found, strict=True):
            about = Culprit(request, request.epoch, job)
            guard.decide("a job", partial(_take, request, job, cached_on), about)


def _take(
    request: scheduler_pb2.InferenceRequest, job: Job, cached_on: Hints, core: SchedulerCore, now: float
) -> list[Action]:
    return core.on_job(request, job, job.sequence, now, cached_on, is_inherited=job.is_inherited)


async def _is_good(
    request: scheduler_pb2.InferenceRequest, job: Job, bus: Bus, metrics: SchedulerMetrics
) -> bool:
    """Check a job and complete it; one that is bad ends by name."""
    try:
        check_job(request)
    except InvalidArgument as error:
        metrics.bad.note("job", error)
        await end_by_name(request, job, bus, error)
        return False
    request.traceparent = traceparent_of(job)
    request_log.queued(RequestKey(request.tenant, request.request_id), request.model, job)
    return True


async def end_by_name(
    request: scheduler_pb2.InferenceRequest, job: Job, bus: Bus, error: InferFluxError, *, epoch: int = 1
) -> None:
    """Answer the client with `error` and take the job off the queue. A job whose client could not be answered
    stays there: it comes again."""
    try:
        chunk = tokens_pb2.TokenChunk(
            request_id=request.request_id,
            epoch=epoch,
            failed=to_failed(error),
            attempt_id=request.attempt_id,
            model=request.model,
        )
        await bus.publish(subjects.tokens(request.tenant, request.request_id), chunk.SerializeToString())
    except InferFluxError as unsent:
        log.warning(
            "a job could not be ended by name yet",
            reason=unsent.reason,
            **logs.of_request(request.request_id, request.tenant, trace_id_of(request.traceparent)),
        )
    else:
        await terminate(job)


async def terminate(job: Job) -> None:
    """Take a job off the queue that cannot be done."""
    try:
        await job.term()
    except InferFluxError as error:
        log.warning("a bad job could not be taken off the queue", reason=error.reason)
