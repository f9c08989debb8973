"""What operators change of a running scheduler, and what is kept of it for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.bus.key_value import Entry
from inferflux.common.contract.errors import (
    Aborted,
    DeadlineExceeded,
    InferFluxError,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from inferflux.common.contract.partitions import OTHER_PARTITION, UNKNOWN_WORKER, WHOLE, Partition, divide
from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.types.actions import Action, SendCommand
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.scheduler.core.types.moves import Move, Why
from inferflux.scheduler.core.workers.drains import DrainProgress
from inferflux.scheduler.core.workers.hosts import HostTable
from inferflux.scheduler.operator import admin
from inferflux.scheduler.operator.admin import Administration
from inferflux.scheduler.operator.fairness_store import FairnessStore, applied, merged
from inferflux.scheduler.operator.host_admin import ModelAdministration
from inferflux.v1 import host_pb2, model_pb2, scheduler_pb2, worker_pb2

Change = scheduler_pb2.SetFairness
Request = scheduler_pb2.SchedulerAdminRequest
DRAINING = scheduler_pb2.WORKER_STATE_DRAINING
READY = scheduler_pb2.WORKER_STATE_READY
NOW = 1000.0


class FakeCore:
    """One worker, `worker-1`, with two resident requests."""

    def __init__(self, settings: FairnessSettings | None = None) -> None:
        self.fairness = settings or FairnessSettings()
        self.drains: list[tuple[str, bool, float | None, float]] = []
        self.hosts = HostTable()
        self.term = 7
        self.moving: Move | None = None

    @property
    def commands(self) -> FakeCore:
        return self

    def set_fairness(self, settings: FairnessSettings) -> None:
        self.fairness = settings

    def drain(
        self, worker_id: str, *, now: float, undo: bool = False, hand_over_after_s: float | None = None
    ) -> list[Action]:
        self.drain_progress(worker_id)
        self.drains.append((worker_id, undo, hand_over_after_s, now))
        return [SendCommand(worker_id, worker_pb2.WorkerCommand())]

    def drain_progress(self, worker_id: str) -> DrainProgress:
        if worker_id != "worker-1":
            raise NotFound(f"no worker {worker_id} is alive", reason=UNKNOWN_WORKER)
        return DrainProgress(residents=2, is_drained=False, state=DRAINING)

    def clear_cache(self, worker_id: str, clear: scheduler_pb2.ClearCache) -> worker_pb2.WorkerCommand:
        self.drain_progress(worker_id)
        return worker_pb2.WorkerCommand(clear_cache=clear, term=7)

    def move(self, key: RequestKey, worker_id: str, *, now: float) -> tuple[list[Action], RequestKey, Move]:
        self.drain_progress(worker_id)
        source = scheduler_pb2.KvSource()
        self.moving = Move(Why.ADMIN, "worker-0", source, 1, worker_id, "i", now, now + 10)
        return [SendCommand(worker_id, worker_pb2.WorkerCommand())], RequestKey("acme", key[1]), self.moving


class FakeBucket:
    """Keeps entries; `before_write` runs once, before the next write."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.error: InferFluxError | None = None
        self.before_write: Callable[[], None] | None = None

    async def get(self, key: str) -> Entry | None:
        if self.error is not None:
            raise self.error
        return self.entries.get(key)

    async def create(self, key: str, value: bytes) -> int | None:
        return await self.update(key, value, revision=0)

    async def update(self, key: str, value: bytes, *, revision: int) -> int | None:
        if self.before_write is not None:
            act, self.before_write = self.before_write, None
            act()
        entry = self.entries.get(key)
        if revision != (0 if entry is None else entry.revision):
            return None
        self.entries[key] = Entry(value, revision + 1)
        return revision + 1

    def overwrite(self, change: Change) -> None:
        revision = max((entry.revision for entry in self.entries.values()), default=0)
        self.entries["fairness"] = Entry(change.SerializeToString(), revision + 1)


class Desk:
    """An administration before a core and a bucket of fakes."""

    def __init__(
        self,
        bucket: FakeBucket | None = None,
        settings: FairnessSettings | None = None,
        *,
        partition: Partition = WHOLE,
    ) -> None:
        self.bucket = bucket or FakeBucket()
        self.core = FakeCore(settings)
        self.done: list[list[Action]] = []
        self.is_lease_held = True
        # What workers were sent that they answer.
        self.commands: list[tuple[str, worker_pb2.WorkerCommand]] = []
        self.worker_error: InferFluxError | None = None
        self.until_answered: asyncio.Event | None = None
        self.administration = Administration(
            self.core,
            FairnessStore(self.bucket),
            self.done.append,
            lambda: NOW,
            is_lease_held=lambda: self.is_lease_held,
            guarded=lambda _what, work: work(),
            ask_worker=self._ask_worker,
            models=ModelAdministration(
                self.core.hosts,
                self.core.term,
                self._ask_host,
                ask_store=self._ask_store,
                partition=partition,
            ),
        )

    async def _ask_host(self, host_id: str, command: host_pb2.HostCommand) -> host_pb2.HostedModel:
        raise AssertionError(f"{host_id} was asked: {command}")

    async def _ask_store(self, host_id: str, command: host_pb2.HostCommand) -> model_pb2.StoreJob:
        raise AssertionError(f"{host_id} was asked: {command}")

    async def _ask_worker(
        self, worker_id: str, command: worker_pb2.WorkerCommand
    ) -> scheduler_pb2.ClearedWorker:
        self.commands.append((worker_id, command))
        if self.worker_error is not None:
            raise self.worker_error
        if self.until_answered is not None:
            await self.until_answered.wait()
        return scheduler_pb2.ClearedWorker(worker_id="another", cleared=scheduler_pb2.CacheCleared(cells=42))

    async def ask(self, request: Request) -> scheduler_pb2.SchedulerAdminReply:
        reply = await self.administration.answer(request.SerializeToString())
        assert reply is not None
        return reply

    async def change(self, **fields: int) -> scheduler_pb2.SchedulerAdminReply:
        return await self.ask(Request(set_fairness=Change(**fields)))  # type: ignore[arg-type]


def fairness(**fields: int) -> scheduler_pb2.Fairness:
    return scheduler_pb2.Fairness(**({"high_priority_threshold": 5, "version": 2} | fields))  # type: ignore[arg-type]


async def test_what_is_not_set_stays_as_it_was() -> None:
    desk = Desk()
    await desk.change(enable_preemption=True)
    reply = await desk.change(max_timeslice_tokens=64)
    assert reply.fairness == fairness(enable_preemption=True, max_timeslice_tokens=64, version=3)
    assert desk.core.fairness == FairnessSettings(True, 5, 64)
    assert (await desk.ask(Request(get_fairness=scheduler_pb2.GetFairness()))).fairness == reply.fairness


async def test_a_value_can_be_set_to_nothing() -> None:
    desk = Desk(settings=FairnessSettings(True, 5, 64))
    reply = await desk.change(enable_preemption=False, high_priority_threshold=0, max_timeslice_tokens=0)
    assert reply.fairness == scheduler_pb2.Fairness(version=2)


async def test_the_core_plans_anew_after_a_change_and_not_without_one() -> None:
    desk = Desk()
    await desk.change(max_timeslice_tokens=64)
    await desk.change(max_timeslice_tokens=64)
    assert desk.done == [[]]


async def test_the_next_leader_goes_by_what_was_changed() -> None:
    first = Desk()
    await first.change(enable_preemption=True, high_priority_threshold=0)
    second = Desk(first.bucket, FairnessSettings(max_timeslice_tokens=32))
    await second.administration.load()
    assert second.core.fairness == FairnessSettings(True, 0, 32)


async def test_a_reset_goes_back_to_the_configuration_and_is_kept() -> None:
    desk = Desk(settings=FairnessSettings(max_timeslice_tokens=32))
    await desk.change(enable_preemption=True, max_timeslice_tokens=0)
    reply = await desk.change(reset=True, high_priority_threshold=7)
    assert reply.fairness == fairness(high_priority_threshold=7, max_timeslice_tokens=32, version=3)
    following = Desk(desk.bucket)
    await following.administration.load()
    assert following.core.fairness == FairnessSettings(high_priority_threshold=7)


async def test_a_reset_of_what_was_never_changed_writes_nothing() -> None:
    desk = Desk()
    assert (await desk.change(reset=True)).fairness == fairness(version=1)
    assert desk.bucket.entries == {}


async def test_what_cannot_be_kept_is_not_done() -> None:
    desk = Desk()
    desk.bucket.error = Unavailable("no bucket")
    reply = await desk.change(enable_preemption=True)
    assert (reply.refused.code, reply.refused.message) == (Unavailable.code, "no bucket")
    assert desk.core.fairness == FairnessSettings()


async def test_another_leaders_change_at_the_same_time_is_not_lost() -> None:
    desk = Desk()
    desk.bucket.before_write = lambda: desk.bucket.overwrite(Change(max_timeslice_tokens=16))
    reply = await desk.change(enable_preemption=True)
    assert reply.fairness == fairness(enable_preemption=True, max_timeslice_tokens=16)


async def test_a_change_that_names_another_version_is_refused_and_the_present_one_shown() -> None:
    desk = Desk()
    assert (await desk.change(max_timeslice_tokens=64, version=1)).fairness.version == 2
    desk.bucket.overwrite(Change(max_timeslice_tokens=16, version=3))
    refused = (await desk.change(enable_preemption=True, version=2)).refused
    assert (refused.code, refused.reason) == (Aborted.code, "VERSION_MISMATCH")
    now = (await desk.ask(Request(get_fairness=scheduler_pb2.GetFairness()))).fairness
    assert now == fairness(max_timeslice_tokens=16, version=3)
    assert (await desk.change(enable_preemption=True, version=3)).fairness.version == 4


async def test_a_version_that_is_no_longer_there_when_it_is_kept_is_refused() -> None:
    desk = Desk()
    desk.bucket.before_write = lambda: desk.bucket.overwrite(Change(max_timeslice_tokens=16, version=2))
    assert (await desk.change(enable_preemption=True, version=1)).refused.code == Aborted.code
    assert not desk.core.fairness.enable_preemption


async def test_leaders_of_two_partitions_make_one_change_of_a_request_that_names_a_version() -> None:
    first = Desk()
    second = Desk(first.bucket)
    for desk in (first, second):
        reply = await desk.change(enable_preemption=True, version=1)
        assert reply.fairness == fairness(enable_preemption=True, version=2)
    for desk in (second, first):
        assert (await desk.change(max_timeslice_tokens=8, version=1)).refused.code == Aborted.code
        assert (await desk.change(reset=True, version=2)).fairness == fairness(version=3)


async def test_a_version_survives_a_reset_and_the_scheduler() -> None:
    desk = Desk()
    await desk.change(enable_preemption=True)
    await desk.change(reset=True)
    following = Desk(desk.bucket)
    await following.administration.load()
    assert following.core.fairness.to_message() == fairness(version=3)


async def test_a_version_alone_changes_nothing() -> None:
    refused = (await Desk().change(version=1)).refused
    assert (refused.code, refused.field) == (InvalidArgument.code, "change")


async def test_a_change_fails_while_others_write_the_bucket_all_the_time() -> None:
    desk = Desk()

    def write_again() -> None:
        desk.bucket.overwrite(Change(high_priority_threshold=len(desk.bucket.entries)))
        desk.bucket.before_write = write_again

    desk.bucket.before_write = write_again
    assert (await desk.change(enable_preemption=True)).refused.code == Unavailable.code


async def test_settings_that_cannot_be_read_count_as_none() -> None:
    desk = Desk()
    desk.bucket.entries["fairness"] = Entry(b"\xff", 1)
    await desk.administration.load()
    assert desk.core.fairness == FairnessSettings()
    assert (await desk.change(enable_preemption=True)).fairness == fairness(enable_preemption=True)


async def test_a_drain_is_decided_by_the_core_and_its_progress_answered() -> None:
    desk = Desk()
    reply = await desk.ask(
        Request(drain=scheduler_pb2.DrainRequest(worker_id="worker-1", hand_over_after_ms=1500))
    )
    assert reply.drain == scheduler_pb2.DrainProgress(residents=2, state=DRAINING)
    assert desk.core.drains == [("worker-1", False, 1.5, NOW)]
    assert [type(action) for todo in desk.done for action in todo] == [SendCommand]


async def test_handing_over_at_once_is_not_the_same_as_never() -> None:
    desk = Desk()
    for request in (
        scheduler_pb2.DrainRequest(worker_id="worker-1", hand_over_after_ms=0),
        scheduler_pb2.DrainRequest(worker_id="worker-1"),
    ):
        await desk.ask(Request(drain=request))
    assert [after_s for _, _, after_s, _ in desk.core.drains] == [0.0, None]


async def test_a_drain_is_undone() -> None:
    desk = Desk()
    await desk.ask(Request(drain=scheduler_pb2.DrainRequest(worker_id="worker-1", undo=True)))
    assert desk.core.drains == [("worker-1", True, None, NOW)]


async def test_asking_for_progress_drains_nothing() -> None:
    desk = Desk()
    reply = await desk.ask(Request(get_drain=scheduler_pb2.GetDrain(worker_id="worker-1")))
    assert reply.drain.residents == 2
    assert desk.core.drains == []


@pytest.mark.parametrize(
    "request_",
    [
        Request(drain=scheduler_pb2.DrainRequest(worker_id="unknown")),
        Request(get_drain=scheduler_pb2.GetDrain(worker_id="unknown")),
    ],
    ids=["drain", "get_drain"],
)
async def test_an_unknown_worker_is_refused_by_name(request_: Request) -> None:
    refused = (await Desk().ask(request_)).refused
    assert refused.code == NotFound.code
    assert "unknown" in refused.message


CLEAR = scheduler_pb2.ClearCache(cache_scope="tenant/acme", prefixes=True)


def clearing(worker_id: str = "worker-1") -> Request:
    return Request(clear_cache=scheduler_pb2.ClearWorkerCache(worker_id=worker_id, clear=CLEAR))


async def test_a_worker_is_told_to_clear_its_cache_and_what_it_says_is_answered_in_its_name() -> None:
    desk = Desk()
    reply = await desk.ask(clearing())
    assert reply.cleared.worker_id == "worker-1"
    assert reply.cleared.cleared.cells == 42
    assert desk.commands == [("worker-1", worker_pb2.WorkerCommand(clear_cache=CLEAR, term=7))]


async def test_a_worker_that_does_not_answer_keeps_no_other_waiting() -> None:
    desk = Desk()
    desk.until_answered = asyncio.Event()
    slow = asyncio.create_task(desk.ask(clearing()))
    async with asyncio.timeout(10):
        while not desk.commands:
            await asyncio.sleep(0)
        assert (await desk.change(enable_preemption=True)).fairness.enable_preemption
        assert not slow.done()
        desk.until_answered.set()
        assert (await slow).cleared.cleared.cells == 42


async def test_a_worker_that_is_not_cleared_is_refused_with_the_reason() -> None:
    desk = Desk()
    desk.worker_error = Unavailable("it did not answer")
    refused = (await desk.ask(clearing())).refused
    assert (refused.code, refused.message) == (Unavailable.code, "it did not answer")


async def test_an_unknown_workers_cache_is_refused_so_that_another_leader_may_have_it() -> None:
    refused = (await Desk().ask(clearing("unknown"))).refused
    assert (refused.code, refused.reason) == (NotFound.code, UNKNOWN_WORKER)


async def test_a_model_of_another_partition_is_refused_as_such_and_an_own_one_as_unknown() -> None:
    asked = Request(load_model=model_pb2.LoadModelRequest(name="m"))
    reasons = {
        partition.has("m"): (await Desk(partition=partition).ask(asked)).refused.reason
        for partition in divide(2)
    }
    assert reasons == {True: "UNKNOWN_MODEL", False: OTHER_PARTITION}


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff"])
async def test_what_is_no_request_is_refused(data: bytes) -> None:
    reply = await Desk().administration.answer(data)
    assert reply is not None
    assert (reply.refused.code, reply.refused.field) == (InvalidArgument.code, "request")


async def test_without_the_lease_nothing_is_done_or_said() -> None:
    desk = Desk()
    desk.is_lease_held = False
    for request in (
        Request(set_fairness=Change(enable_preemption=True)),
        Request(drain=scheduler_pb2.DrainRequest(worker_id="worker-1")),
        Request(get_fairness=scheduler_pb2.GetFairness()),
        clearing(),
        Request(),
    ):
        assert await desk.administration.answer(request.SerializeToString()) is None
    assert desk.bucket.entries == {}
    assert desk.core.drains == []
    assert desk.commands == []
    assert desk.core.fairness == FairnessSettings()


changes = st.builds(
    lambda fields, reset: Change(**fields, reset=reset),
    st.fixed_dictionaries(
        {},
        optional={
            "enable_preemption": st.booleans(),
            "high_priority_threshold": st.integers(-3, 3),
            "max_timeslice_tokens": st.integers(0, 3),
        },
    ),
    st.booleans(),
)


@given(st.lists(changes))
def test_changes_made_into_one_do_what_they_did_one_by_one(several: list[Change]) -> None:
    configured = FairnessSettings(True, 2, 1)
    settings, one = configured, Change()
    for change in several:
        settings = applied(configured if change.reset else settings, change)
        one = merged(one, change)
    assert applied(configured, one) == settings


MOVE = Request(move=scheduler_pb2.MoveRequest(request_id="r", worker_id="worker-1")).SerializeToString()


async def test_a_move_is_answered_once_the_request_runs_on_the_other_worker() -> None:
    desk = Desk()
    asked = asyncio.create_task(desk.administration.answer(MOVE))
    while desk.core.moving is None:
        await asyncio.sleep(0)
    assert (
        await desk.administration.answer(
            Request(get_fairness=scheduler_pb2.GetFairness()).SerializeToString()
        )
    ) is not None
    assert not asked.done()
    desk.core.moving.take(70, "")
    desk.core.moving.end("done")
    reply = await asked
    assert reply is not None
    moved = reply.moved
    assert (moved.tenant, moved.request_id, moved.from_worker_id) == ("acme", "r", "worker-0")
    assert (moved.worker_id, moved.tokens) == ("worker-1", 70)


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("error", "worker-1 cannot have its state: no route. It goes on at worker-0"),
        ("late", "its state did not reach worker-1 in time. It goes on at worker-0"),
        ("gone", "worker-1 is gone"),
        ("no_room", "worker-1 has no room for it any more"),
        ("over", "it has ended, or its worker has lost it"),
    ],
)
async def test_a_move_that_comes_to_nothing_says_why(outcome: str, said: str) -> None:
    desk = Desk()
    asked = asyncio.create_task(desk.administration.answer(MOVE))
    while desk.core.moving is None:
        await asyncio.sleep(0)
    desk.core.moving.take(0, "no route" if outcome == "error" else "")
    desk.core.moving.end(outcome)
    reply = await asked
    assert reply is not None
    assert reply.refused.message == f"request r was not moved: {said}"
    assert (reply.refused.code, reply.refused.reason) == (Aborted.code, f"MOVE_{outcome.upper()}")


async def test_a_move_that_takes_too_long_is_said_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_MOVE_LIMIT_S", 0.01)
    reply = await Desk().administration.answer(MOVE)
    assert reply is not None
    assert reply.refused.code == DeadlineExceeded.code
    assert reply.refused.message == "request r is on its way to worker-1 still"


@pytest.mark.parametrize(
    ("request_id", "worker_id", "tenant", "field"),
    [
        ("", "w", "", "request_id"),
        ("a.b", "w", "", "request_id"),
        ("r", "", "", "worker_id"),
        ("r", "a b", "", "worker_id"),
        ("r", "w", "a/b", "tenant"),
    ],
)
async def test_a_move_names_a_request_and_a_worker(
    request_id: str, worker_id: str, tenant: str, field: str
) -> None:
    move = scheduler_pb2.MoveRequest(request_id=request_id, worker_id=worker_id, tenant=tenant)
    reply = await Desk().administration.answer(Request(move=move).SerializeToString())
    assert reply is not None
    assert (reply.refused.code, reply.refused.field) == (InvalidArgument.code, field)
