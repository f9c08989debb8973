"""Administration through the gateway, before a scheduler that a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from harness.gateway import WAIT_S, Backend, GatewayProcess, until
from harness.policy import bearer, refusal
from harness.scripted_admin import ScriptedAdmin

from inferflux.common.bus import Message
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import Internal, InvalidArgument, NotFound, Unavailable, from_rpc
from inferflux.v1 import admin_pb2, cluster_pb2, scheduler_pb2

Change = scheduler_pb2.SetFairness
READY = scheduler_pb2.WORKER_STATE_READY


class Admin:
    """Calls AdminService with one key."""

    def __init__(self, gateway: GatewayProcess, key: str) -> None:
        self._stub = gateway.admin
        self._metadata = bearer(key)

    async def fairness(self) -> scheduler_pb2.Fairness:
        request = admin_pb2.GetFairnessRequest()
        return (await self._stub.GetFairness(request, metadata=self._metadata, timeout=WAIT_S)).fairness

    async def set_fairness(self, change: Change) -> scheduler_pb2.Fairness:
        request = admin_pb2.SetFairnessRequest(change=change)
        return (await self._stub.SetFairness(request, metadata=self._metadata, timeout=WAIT_S)).fairness

    async def undrain(self, worker_id: str) -> scheduler_pb2.DrainProgress:
        request = admin_pb2.UndrainWorkerRequest(worker_id=worker_id)
        return (await self._stub.UndrainWorker(request, metadata=self._metadata, timeout=WAIT_S)).progress

    async def clear(self, **fields: object) -> admin_pb2.ClearCacheResponse:
        request = admin_pb2.ClearCacheRequest(**fields)  # type: ignore[arg-type]
        return await self._stub.ClearCache(request, metadata=self._metadata, timeout=WAIT_S)

    def drain(self, worker_id: str, **fields: int) -> Draining:
        request = admin_pb2.DrainWorkerRequest(worker_id=worker_id, **fields)
        return Draining(self._stub.DrainWorker(request, metadata=self._metadata, timeout=WAIT_S))


class Draining:
    """The progress of a drain, as it is told."""

    def __init__(
        self, call: grpc.aio.UnaryStreamCall[admin_pb2.DrainWorkerRequest, admin_pb2.DrainWorkerResponse]
    ) -> None:
        self.call = call

    async def next(self) -> scheduler_pb2.DrainProgress | None:
        """What is told next; None at the end."""
        response = await asyncio.wait_for(self.call.read(), WAIT_S)
        return response.progress if isinstance(response, admin_pb2.DrainWorkerResponse) else None

    async def until_resident(self, n: int) -> scheduler_pb2.DrainProgress:
        while (progress := await self.next()) is not None:
            if progress.residents == n:
                return progress
        raise AssertionError(f"the stream ended before {n} were resident")


@pytest.fixture
def admin(gateway: GatewayProcess, admin_key: str) -> Admin:
    return Admin(gateway, admin_key)


@pytest.fixture
async def scheduler(backend: Backend) -> AsyncIterator[ScriptedAdmin]:
    scripted = ScriptedAdmin(backend.bus)
    await scripted.start()
    yield scripted
    await scripted.close()


async def test_fairness_is_read_and_changed(admin: Admin, scheduler: ScriptedAdmin) -> None:
    assert await admin.fairness() == scheduler_pb2.Fairness(high_priority_threshold=5, version=1)
    changed = await admin.set_fairness(Change(enable_preemption=True, max_timeslice_tokens=64))
    expected = scheduler_pb2.Fairness(
        enable_preemption=True, high_priority_threshold=5, max_timeslice_tokens=64, version=2
    )
    assert changed == expected
    assert await admin.fairness() == expected


async def test_the_scheduler_is_told_only_what_was_set(admin: Admin, scheduler: ScriptedAdmin) -> None:
    await admin.set_fairness(Change(max_timeslice_tokens=0, reset=True))
    (request,) = scheduler.requests
    assert request.set_fairness == Change(max_timeslice_tokens=0, reset=True)
    assert request.set_fairness.HasField("max_timeslice_tokens")
    assert not request.set_fairness.HasField("enable_preemption")


@pytest.mark.parametrize(
    ("change", "field"),
    [(Change(), "change"), (Change(high_priority_threshold=5000), "change.high_priority_threshold")],
)
async def test_a_bad_change_never_reaches_the_scheduler(
    admin: Admin, scheduler: ScriptedAdmin, change: Change, field: str
) -> None:
    error = from_rpc(await refusal(admin.set_fairness(change)))
    assert isinstance(error, InvalidArgument)
    assert error.field == field
    assert scheduler.requests == []


async def test_every_call_needs_the_scope_admin(
    gateway: GatewayProcess, key: str, scheduler: ScriptedAdmin
) -> None:
    ordinary = Admin(gateway, key)
    for call in (
        ordinary.fairness(),
        ordinary.set_fairness(Change(reset=True)),
        ordinary.undrain("worker-1"),
        ordinary.drain("worker-1").next(),
        ordinary.clear(),
    ):
        assert (await refusal(call)).code() is grpc.StatusCode.PERMISSION_DENIED
    assert scheduler.requests == []


async def test_without_a_scheduler_it_is_unavailable_with_a_delay(admin: Admin, backend: Backend) -> None:
    for call in (admin.fairness(), admin.undrain("worker-1"), admin.drain("worker-1").next()):
        error = from_rpc(await refusal(call))
        assert isinstance(error, Unavailable)
        assert error.message == "no scheduler answers"
        assert error.retry_delay_s is not None


async def test_a_silent_scheduler_is_not_waited_for_for_ever(admin: Admin, scheduler: ScriptedAdmin) -> None:
    scheduler.is_silent = True
    error = from_rpc(await refusal(admin.set_fairness(Change(reset=True))))
    assert isinstance(error, Unavailable)
    assert error.reason == "OUTCOME_UNKNOWN"


async def test_what_the_scheduler_refuses_keeps_its_code_and_field(
    admin: Admin, scheduler: ScriptedAdmin
) -> None:
    assert isinstance(from_rpc(await refusal(admin.undrain("unknown"))), NotFound)
    scheduler.error = InvalidArgument("cannot be", field="max_timeslice_tokens")
    error = from_rpc(await refusal(admin.set_fairness(Change(max_timeslice_tokens=1))))
    assert isinstance(error, InvalidArgument)
    assert (error.message, error.field) == ("cannot be", "max_timeslice_tokens")


@pytest.mark.parametrize("raw", [b"\xff\xff", b""])
async def test_an_answer_that_is_none_is_a_defect_and_not_a_crash(
    admin: Admin, scheduler: ScriptedAdmin, raw: bytes
) -> None:
    scheduler.raw = raw
    assert isinstance(from_rpc(await refusal(admin.fairness())), Internal)


async def test_a_drain_is_followed_until_the_worker_may_be_stopped(
    admin: Admin, scheduler: ScriptedAdmin
) -> None:
    scheduler.drains(2)
    draining = admin.drain("worker-1", hand_over_after_ms=1500)
    assert (await draining.until_resident(2)).state == scheduler_pb2.WORKER_STATE_DRAINING
    scheduler.drains(1)
    await draining.until_resident(1)
    scheduler.drains(0, is_drained=True)
    assert (await draining.until_resident(0)).is_drained
    assert await draining.next() is None
    first, *others = scheduler.requests
    assert first.drain == scheduler_pb2.DrainRequest(worker_id="worker-1", hand_over_after_ms=1500)
    assert all(request.HasField("get_drain") for request in others), "watching must not drain again"


async def test_nothing_is_handed_over_unless_asked_for(admin: Admin, scheduler: ScriptedAdmin) -> None:
    scheduler.drains(0, is_drained=True)
    await admin.drain("worker-1").next()
    assert not scheduler.requests[0].drain.HasField("hand_over_after_ms")


async def test_a_drain_goes_on_when_the_one_who_watches_leaves(
    admin: Admin, scheduler: ScriptedAdmin
) -> None:
    scheduler.drains(2)
    draining = admin.drain("worker-1")
    await draining.next()
    draining.call.cancel()
    await admin.fairness()
    assert sum(request.HasField("drain") for request in scheduler.requests) == 1


async def test_a_drain_is_followed_from_one_scheduler_to_the_next(
    admin: Admin, scheduler: ScriptedAdmin, backend: Backend
) -> None:
    scheduler.drains(2)
    draining = admin.drain("worker-1")
    await draining.next()
    await scheduler.close()
    scheduler.error = NotFound("it is not known yet")
    await scheduler.start()
    received = len(scheduler.requests)
    await until(lambda: len(scheduler.requests) > received)
    scheduler.error = None
    scheduler.drains(0, is_drained=True)
    assert (await draining.until_resident(0)).is_drained


async def test_a_drain_that_is_undone_ends_undrained(admin: Admin, scheduler: ScriptedAdmin) -> None:
    scheduler.drains(2)
    draining = admin.drain("worker-1")
    await draining.next()
    scheduler.progress = scheduler_pb2.DrainProgress(residents=2, state=READY)
    last = None
    while (progress := await draining.next()) is not None:
        last = progress
    assert last is not None
    assert (last.is_drained, last.state) == (False, READY)


async def test_an_unknown_worker_is_not_drained(admin: Admin, scheduler: ScriptedAdmin) -> None:
    error = from_rpc(await refusal(admin.drain("unknown").next()))
    assert isinstance(error, NotFound)
    assert "unknown" in error.message


async def test_a_worker_is_told_to_take_requests_again(admin: Admin, scheduler: ScriptedAdmin) -> None:
    assert (await admin.undrain("worker-1")).state == READY
    (request,) = scheduler.requests
    assert request.drain == scheduler_pb2.DrainRequest(worker_id="worker-1", undo=True)


@pytest.mark.parametrize(("workers", "said"), [(1, "1 worker,"), (2, "2 workers,")])
async def test_status_counts_workers_in_words(
    gateway: GatewayProcess, admin_key: str, backend: Backend, workers: int, said: str
) -> None:
    answer = scheduler_pb2.SchedulerStatus(workers=[scheduler_pb2.WorkerView()] * workers)

    async def on_request(message: Message) -> None:
        await message.respond(answer.SerializeToString())

    serving = await backend.bus.serve(subjects.SCHEDULER_STATUS, on_request)
    try:
        await backend.bus.flush()
        status = await gateway.cluster.GetStatus(cluster_pb2.GetStatusRequest(), metadata=bearer(admin_key))
    finally:
        await serving.close()
    assert [s.detail for s in status.services if s.name == "scheduler"] == [f"{said} 0 running, 0 queued"]


@pytest.mark.parametrize("knows_pages", [True, False])
async def test_the_status_of_many_workers_comes_in_pages_whatever_the_scheduler_knows_of_them(
    gateway: GatewayProcess, admin_key: str, backend: Backend, knows_pages: bool
) -> None:
    worker_ids = [f"w{number}" for number in range(7)]

    async def on_request(message: Message) -> None:
        asked = scheduler_pb2.SchedulerStatusRequest.FromString(message.data)
        told = worker_ids
        if knows_pages:
            told = [each for each in told if each > asked.after_worker_id][: asked.page_size or None]
        answer = scheduler_pb2.SchedulerStatus(queued=5)
        if knows_pages:
            answer.worker_totals.workers = len(worker_ids)
        for worker_id in told:
            answer.workers.add().status.worker_id = worker_id
        await message.respond(answer.SerializeToString())

    serving = await backend.bus.serve(subjects.SCHEDULER_STATUS, on_request)
    told: list[str] = []
    try:
        await backend.bus.flush()
        request = cluster_pb2.GetStatusRequest(page_size=3)
        while True:
            page = await gateway.cluster.GetStatus(request, metadata=bearer(admin_key))
            assert page.scheduler.queued == 5
            assert len(page.scheduler.workers) <= 3
            if knows_pages:
                assert page.scheduler.worker_totals.workers == 7
                assert [s.detail for s in page.services if s.name == "scheduler"] == [
                    "7 workers, 0 running, 5 queued"
                ]
            told += [view.status.worker_id for view in page.scheduler.workers]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        whole = await gateway.cluster.GetStatus(cluster_pb2.GetStatusRequest(), metadata=bearer(admin_key))
    finally:
        await serving.close()
    assert told == worker_ids == [view.status.worker_id for view in whole.scheduler.workers]


@pytest.mark.parametrize(
    ("asked", "field"), [({"page_size": 10_001}, "page_size"), ({"page_token": "a b"}, "page_token")]
)
async def test_a_page_that_cannot_be_is_refused_by_name(
    gateway: GatewayProcess, admin_key: str, asked: dict[str, Any], field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.cluster.GetStatus(cluster_pb2.GetStatusRequest(**asked), metadata=bearer(admin_key))
    refused = from_rpc(caught.value)
    assert isinstance(refused, InvalidArgument)
    assert refused.field == field


FREED = scheduler_pb2.CacheCleared(sequences=2, cells=300, host_states=1, host_bytes=1000)


async def test_every_worker_of_a_model_is_asked_and_each_is_named(
    admin: Admin, scheduler: ScriptedAdmin, backend: Backend
) -> None:
    scheduler.worker_id = backend.worker_id
    scheduler.cleared.cleared.CopyFrom(FREED)
    response = await admin.clear(model=backend.card.name, tenant="acme", tiers=True)
    (cleared,) = response.workers
    assert (cleared.worker_id, cleared.cleared, cleared.error) == (backend.worker_id, FREED, "")
    assert not response.HasField("answers")
    (request,) = scheduler.requests
    assert request.clear_cache.clear == scheduler_pb2.ClearCache(cache_scope="tenant/acme", tiers=True)


async def test_without_a_choice_answers_prefixes_and_tiers_are_cleared(
    admin: Admin, scheduler: ScriptedAdmin, backend: Backend
) -> None:
    scheduler.worker_id = backend.worker_id
    response = await admin.clear()
    assert response.HasField("answers")
    assert response.answers.error == ""
    assert scheduler.requests[-1].clear_cache.clear == scheduler_pb2.ClearCache(prefixes=True, tiers=True)
    scheduler.requests.clear()
    response = await admin.clear(worker_id=backend.worker_id)
    assert not response.HasField("answers")
    assert scheduler.requests[-1].clear_cache.clear == scheduler_pb2.ClearCache(prefixes=True, tiers=True)
    assert list((await admin.clear(answers=True)).workers) == []


async def test_a_worker_that_is_not_cleared_is_named_with_the_reason(
    admin: Admin, scheduler: ScriptedAdmin, backend: Backend
) -> None:
    scheduler.error = Unavailable("it did not answer")
    response = await admin.clear(prefixes=True)
    (cleared,) = [worker for worker in response.workers if worker.worker_id == backend.worker_id]
    assert (cleared.worker_id, cleared.error) == (backend.worker_id, "it did not answer")
    error = from_rpc(await refusal(admin.clear(worker_id=backend.worker_id)))
    assert isinstance(error, Unavailable)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"worker_id": "a.b"}, "worker_id"),
        ({"worker_id": "worker-1", "answers": True}, "worker_id"),
        ({"tenant": "a tenant"}, "tenant"),
        ({"model": "m" * 300}, "model"),
    ],
)
async def test_what_cannot_be_cleared_is_refused_by_its_field(
    admin: Admin, scheduler: ScriptedAdmin, fields: dict[str, object], field: str
) -> None:
    error = from_rpc(await refusal(admin.clear(**fields)))
    assert isinstance(error, InvalidArgument)
    assert error.field == field
    assert scheduler.requests == []


async def test_a_worker_of_another_model_is_refused_by_name(
    admin: Admin, scheduler: ScriptedAdmin, backend: Backend
) -> None:
    error = from_rpc(await refusal(admin.clear(worker_id=backend.worker_id, model="another")))
    assert isinstance(error, InvalidArgument)
    assert error.field == "worker_id"
    assert scheduler.requests == []


async def test_what_is_cached_nowhere_is_not_found(admin: Admin, scheduler: ScriptedAdmin) -> None:
    assert isinstance(from_rpc(await refusal(admin.clear(worker_id="unknown"))), NotFound)
    for fields in ({"model": "unknown"}, {"model": "unknown", "tiers": True}):
        error = from_rpc(await refusal(admin.clear(**fields)))
        assert isinstance(error, NotFound)
        assert "unknown" in error.message


async def test_who_changed_what_is_in_the_audit(
    admin: Admin, scheduler: ScriptedAdmin, backend: Backend, gateway: GatewayProcess
) -> None:
    scheduler.worker_id = backend.worker_id
    scheduler.cleared.cleared.CopyFrom(FREED)
    await admin.clear(tenant="audited-tenant", prefixes=True)
    await admin.undrain(backend.worker_id)

    def lines(method: str) -> list[dict[str, object]]:
        return [line for line in gateway.audit() if line["method"] == method]

    def clearings() -> list[dict[str, object]]:
        return [line for line in lines("ClearCache") if line.get("of_tenant") == "audited-tenant"]

    await until(lambda: bool(clearings() and lines("UndrainWorker")))
    (cleared,) = clearings()
    assert cleared["outcome"] == "done"
    assert (cleared["cleared_cells"], cleared["cleared_bytes"]) == (300, 1000)
    assert cleared["key_id"]
