"""What no message may do to a scheduler, and what it does when its core raises all the same."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from harness.scheduler_stage import Stage
from harness.scripted_worker import MODEL
from prometheus_client import CollectorRegistry

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded, Unavailable
from inferflux.common.process.lifecycle import Shutdown
from inferflux.common.process.probe import Probe
from inferflux.common.redis import store
from inferflux.common.tracing import OFF
from inferflux.scheduler.app import Scheduler
from inferflux.scheduler.core.lifecycle.cancels import Cancels
from inferflux.scheduler.core.lifecycle.planning import Plan, Planner
from inferflux.scheduler.core.lifecycle.worker_commands import WorkerCommands
from inferflux.scheduler.core.types.jobs import Job
from inferflux.scheduler.core.types.limits import Limits
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.scheduler.settings import SchedulerSettings
from inferflux.v1 import scheduler_pb2


def job(request_id: str, tenant: str, *, enqueued_unix_ms: int, epoch: int = 1) -> bytes:
    request = scheduler_pb2.InferenceRequest(
        request_id=request_id,
        tenant=tenant,
        model=MODEL,
        prompt_token_ids=[1, 2, 3],
        enqueued_unix_ms=enqueued_unix_ms,
        epoch=epoch,
    )
    request.params.max_tokens = 4
    return request.SerializeToString()


@pytest.mark.parametrize("enqueued_unix_ms", [1, 946_684_800_000, -(2**63), 2**63 - 1])
async def test_a_job_of_a_gateway_whose_clock_is_wrong_by_years_is_served(
    stage: Stage, enqueued_unix_ms: int
) -> None:
    worker = await stage.add_worker("w1")
    await stage.enqueue("old", MODEL, job("old", stage.tenant, enqueued_unix_ms=enqueued_unix_ms))
    item = await worker.has("old")
    # Since the work queue stored it.
    assert abs(item.request.enqueued_unix_ms - time.time() * 1000) < 60_000
    await worker.emit("old", 2, is_last=True)
    assert (await stage.read("old")).token_ids == [0, 1]
    await stage.is_quiet(workers=1)


async def test_a_job_out_of_range_ends_by_name(stage: Stage) -> None:
    await stage.enqueue("odd", MODEL, job("odd", stage.tenant, enqueued_unix_ms=0, epoch=2**32 - 1))
    await stage.read("odd")
    (chunk,) = await stage.chunks("odd")
    assert (chunk.failed.code, "epoch" in chunk.failed.message) == (3, True)


class Hasty(SchedulerSettings):
    @property
    def limits(self) -> Limits:
        return replace(super().limits, settle_s=0.5)


@pytest.fixture
async def raising(theatre: Stage, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Probe]:
    """A scheduler in this process, whose planner raises over every request named `poison`."""
    place = Planner._place

    def raise_over_poison(self: Planner, job: Job, plan: Plan) -> bool:
        if job.key.request_id.startswith("poison"):
            raise ValueError("Value out of range: 4294967296")
        return place(self, job, plan)

    monkeypatch.setattr(Planner, "_place", raise_over_poison)
    settings = Hasty(nats_url=theatre.nats.url, metrics_listen="127.0.0.1:0", lease_s=0.6)
    probe = Probe(settings.metrics_listen, role="scheduler")
    metrics = SchedulerMetrics(CollectorRegistry())
    redis = store.connect("redis://127.0.0.1:1/0")
    scheduler = Scheduler(settings, theatre.bus, redis, probe, metrics, OFF)
    shutdown = Shutdown()
    running = asyncio.create_task(scheduler.run(shutdown))
    yield probe
    shutdown.request()
    await running
    await redis.aclose()
    probe.close()


def raise_always(*_: object, **__: object) -> None:
    raise ValueError("Value out of range: 4294967296")


def planning(probe: Probe) -> bool:
    _status, _type, body = probe.answer("/readyz", "")
    return b'"planning": {"ok": true' in body


async def test_a_request_over_which_planning_raises_ends_by_name_and_others_go_on(
    theatre: Stage, raising: Probe
) -> None:
    worker = await theatre.add_worker("w1")
    await theatre.submit("before")
    await worker.has("before")
    await theatre.submit("poison")
    await theatre.submit("poison-too")
    for request_id in ("poison", "poison-too"):
        await theatre.read(request_id)
        failed = (await theatre.chunks(request_id))[-1].failed
        assert (failed.code, failed.reason) == (13, "SCHEDULER_FAILED")
    assert not planning(raising)
    assert not raising.is_ready
    # What ran goes on, what comes is served, and nothing is left in a slot or in the queue.
    await worker.emit("before", 2, is_last=True)
    await theatre.submit("after")
    await worker.has("after")
    await worker.emit("after", 1, is_last=True)
    assert (await theatre.read("before")).outcome == (await theatre.read("after")).outcome == "stop"
    await theatre.is_quiet(workers=1)
    async with asyncio.timeout(15):
        while not (planning(raising) and raising.is_ready):
            await asyncio.sleep(0.05)


async def test_a_notice_over_which_the_core_raises_makes_the_leader_begin_anew(
    theatre: Stage, raising: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await theatre.add_worker("w1")
    await theatre.submit("read", attempt="a1")
    await worker.has("read")
    read = scheduler_pb2.ReadRequest(tenant="acme", request_id="read")
    joined = scheduler_pb2.ReaderNotice(gateway_id="g1", joined=scheduler_pb2.ReaderJoined(request=read))

    async def ask() -> scheduler_pb2.ReaderReply:
        data = await theatre.bus.request(subjects.SCHEDULER_READERS, joined.SerializeToString(), timeout_s=2)
        return scheduler_pb2.ReaderReply.FromString(data)

    with monkeypatch.context() as patched:
        patched.setattr(Cancels, "on_readers", raise_always)
        with pytest.raises(Unavailable) as caught:
            await ask()
    assert caught.value.reason == "SCHEDULER_FAILED"
    async with asyncio.timeout(15):
        while planning(raising):
            await asyncio.sleep(0.02)
    async with asyncio.timeout(15):
        while True:
            with contextlib.suppress(Unavailable, DeadlineExceeded):  # no scheduler leads
                if (await ask()).was_found:
                    break
            await asyncio.sleep(0.05)
    await worker.emit("read", 1, is_last=True)
    assert (await theatre.read("read")).outcome == "stop"
    await theatre.is_quiet(workers=1)


async def test_a_cancel_over_which_the_core_raises_is_not_answered_with_not_found(
    theatre: Stage, raising: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await theatre.add_worker("w1")
    await theatre.submit("cancelled")
    await worker.has("cancelled")
    notice = scheduler_pb2.CancelNotice(tenant="acme", request_id="cancelled")

    async def ask() -> None:
        subject = subjects.cancel("acme", "cancelled")
        await theatre.bus.request(subject, notice.SerializeToString(), timeout_s=2)

    with monkeypatch.context() as patched:
        patched.setattr(Cancels, "on_cancel", raise_always)
        with pytest.raises(Unavailable) as caught:
            await ask()
    assert caught.value.reason == "SCHEDULER_FAILED"
    async with asyncio.timeout(15):
        while planning(raising):
            await asyncio.sleep(0.02)


async def test_a_poisonous_job_that_comes_again_to_the_next_leader_ends_there(
    theatre: Stage, raising: Probe
) -> None:
    """It was in the queue before anybody led."""
    worker = await theatre.add_worker("w1")
    await theatre.submit("poison")
    await theatre.submit("good")
    await worker.has("good")
    assert (await theatre.read("poison")).outcome == "SCHEDULER_FAILED"
    await worker.emit("good", 1, is_last=True)
    await theatre.is_quiet(workers=1)


async def test_status_carries_what_readiness_says(theatre: Stage, raising: Probe) -> None:
    await theatre.status(lambda status: not status.not_ready)
    raising.set_ready("planning elsewhere", ok=False, detail="it raised")
    status = await theatre.status(lambda status: status.not_ready)
    assert status.not_ready == "planning elsewhere: it raised"


async def test_a_drain_over_which_the_core_raises_makes_the_leader_begin_anew(
    theatre: Stage, raising: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await theatre.add_worker("w1")
    await theatre.submit("before")
    await worker.has("before")
    drain = scheduler_pb2.SchedulerAdminRequest(drain=scheduler_pb2.DrainRequest(worker_id="w1"))

    async def ask() -> scheduler_pb2.SchedulerAdminReply:
        data = await theatre.bus.request(subjects.SCHEDULER_ADMIN, drain.SerializeToString(), timeout_s=2)
        return scheduler_pb2.SchedulerAdminReply.FromString(data)

    with monkeypatch.context() as patched:
        patched.setattr(WorkerCommands, "drain", raise_always)
        assert (await ask()).refused.message == "the core raised"
    async with asyncio.timeout(15):
        while planning(raising):
            await asyncio.sleep(0.02)
    async with asyncio.timeout(15):
        while True:
            with contextlib.suppress(Unavailable, DeadlineExceeded):  # no scheduler leads
                if (await ask()).HasField("drain"):
                    break
            await asyncio.sleep(0.05)
    await worker.emit("before", 1, is_last=True)
    assert (await theatre.read("before")).outcome == "stop"
