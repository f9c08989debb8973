"""Which models are served, as heartbeats tell it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from harness.memory_nats import MemoryNats

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InvalidArgument, NotFound, Unavailable
from inferflux.common.contract.known_workers import MAX_WORKERS
from inferflux.gateway.models.hosts import LIVE_S
from inferflux.gateway.models.models import ModelRegistry
from inferflux.gateway.models.table import REMEMBERED_S, ModelTable
from inferflux.gateway.policy.caller import Caller
from inferflux.v1 import model_pb2, scheduler_pb2

READY, LOADING, DRAINING = (
    scheduler_pb2.WORKER_STATE_READY,
    scheduler_pb2.WORKER_STATE_LOADING,
    scheduler_pb2.WORKER_STATE_DRAINING,
)


def beat(
    worker: str,
    *models: str,
    state: scheduler_pb2.WorkerState.ValueType = READY,
    digest: str = "d",
    context_length: int = 2048,
) -> scheduler_pb2.WorkerStatus:
    cards = [model_pb2.ModelCard(name=name, digest=digest, context_length=context_length) for name in models]
    return scheduler_pb2.WorkerStatus(worker_id=worker, state=state, models=cards)


def counts(table: ModelTable, now: float) -> dict[str, int]:
    return {model.card.name: model.workers for model in table.all_models(now)}


def test_workers_are_counted_per_model() -> None:
    table = ModelTable()
    table.note(beat("w1", "a", "b"), 0.0)
    table.note(beat("w2", "a"), 0.0)
    assert counts(table, 1.0) == {"a": 2, "b": 1}


def test_a_silent_worker_stops_counting_and_its_model_stays_known() -> None:
    table = ModelTable()
    table.note(beat("w1", "a"), 0.0)
    assert table.card("a", LIVE_S) is not None
    assert table.card("a", LIVE_S + 0.1) is None
    assert counts(table, LIVE_S + 0.1) == {"a": 0}


def test_a_model_that_no_worker_served_for_long_is_forgotten() -> None:
    table = ModelTable()
    table.note(beat("w1", "a"), 0.0)
    table.forget_old(REMEMBERED_S + 1)
    assert table.get("a", REMEMBERED_S + 1) is None


def test_loading_and_draining_workers_do_not_serve_but_are_worth_waiting_for() -> None:
    table = ModelTable()
    for state in (LOADING, DRAINING):
        table.note(beat("w1", "a", state=state), 0.0)
        assert counts(table, 1.0) == {"a": 0}
        assert table.card("a", 1.0) is not None


def test_the_card_of_a_ready_worker_is_preferred() -> None:
    table = ModelTable()
    table.note(beat("w1", "a", digest="old"), 0.0)
    table.note(beat("w2", "a", state=LOADING, digest="new"), 1.0)
    card = table.card("a", 1.0)
    assert card is not None
    assert card.digest == "old"
    table.note(beat("w2", "a", digest="new"), 2.0)
    card = table.card("a", 2.0)
    assert card is not None
    assert card.digest == "new"


def test_a_worker_that_changes_its_model_no_longer_has_the_old_one() -> None:
    table = ModelTable()
    table.note(beat("w1", "a"), 0.0)
    table.note(beat("w1", "b"), 1.0)
    assert counts(table, 1.0) == {"b": 1}


def test_a_worker_that_loads_a_model_again_does_not_take_its_limits_away() -> None:
    table = ModelTable()
    table.note(beat("w1", "a"), 0.0)
    table.note(beat("w2", "a"), 0.0)
    loading = beat("w1", "a", state=LOADING, context_length=0)
    table.note(loading, LIVE_S + 1)
    card = table.card("a", LIVE_S + 1)
    assert card is not None
    assert card.context_length == 2048


def test_a_model_that_no_worker_has_loaded_yet_cannot_be_asked_of() -> None:
    table = ModelTable()
    table.note(beat("w1", "a", state=LOADING, context_length=0), 0.0)
    assert table.card("a", 0.0) is None
    assert table.get("a", 0.0) is not None


def test_the_limits_of_another_model_of_the_same_name_do_not_count() -> None:
    table = ModelTable()
    table.note(beat("w1", "a", digest="old"), 0.0)
    table.note(beat("w1", "a", digest="new", state=LOADING, context_length=0), 1.0)
    assert table.card("a", 1.0) is None


def test_digests_are_forgotten_with_the_workers_that_named_them() -> None:
    table = ModelTable()
    table.note(beat("w1", "a", digest="old"), 0.0)
    table.note(beat("w2", "b", digest="kept"), REMEMBERED_S)
    table.forget_old(REMEMBERED_S + 1)
    assert table.digests() == {"kept"}
    table.note(beat("w2", "b", digest="new"), REMEMBERED_S)
    assert table.digests() == {"new"}


def test_a_model_that_its_host_knows_no_more_is_forgotten_at_once_and_no_other() -> None:
    table = ModelTable()
    for worker_id, model in (("h", "a"), ("h--1", "b"), ("other", "a")):
        table.note(beat(worker_id, model), 0.0)
    table.keep_known("h", {"a", "c"})
    assert counts(table, 0.0) == {"a": 2}


async def test_a_flood_of_invented_workers_is_bounded_and_counted() -> None:
    refused: list[str] = []
    ahead: list[str] = []
    bad = SimpleNamespace(note=lambda _kind, _why, subject: refused.append(subject))
    registry = ModelRegistry(
        None,  # type: ignore[arg-type]
        bad,  # type: ignore[arg-type]
        on_model=ahead.append,
        clock=lambda: 1.0,
    )
    for i in range(MAX_WORKERS + 10):
        status = beat(f"w{i}", "a", digest=f"{i:064x}")
        status.incarnation = "i"
        message = SimpleNamespace(
            data=status.SerializeToString(), subject=subjects.worker_status(status.worker_id)
        )
        await registry._on_status(message)  # type: ignore[arg-type]
    assert counts(registry.table, 1.0) == {"a": MAX_WORKERS}
    assert refused == [subjects.worker_status(f"w{i}") for i in range(MAX_WORKERS, MAX_WORKERS + 10)]
    assert len(ahead) == 64


def test_a_card_that_was_found_holds_while_no_worker_changes() -> None:
    table = ModelTable()
    table.note(beat("w1", "a"), 0.0)
    table.note(beat("w2", "a", digest="other"), 0.5)
    table.note(beat("w3", "a"), 0.6)
    found = table.card("a", 1.0)
    assert found is not None
    table.note(beat("w1", "a"), 1.5)
    assert table.card("a", 2.0) is found
    table.note(beat("w1", "a", state=DRAINING), 2.1)
    table.forget("w3")
    changed = table.card("a", 2.2)
    assert changed is not None
    assert changed.digest == "other"  # the ready one
    # w2 is silent for too long: w1 alone is left.
    table.note(beat("w1", "a", state=DRAINING), 3.4)
    left = table.card("a", 0.5 + LIVE_S + 0.1)
    assert left is not None
    assert left.digest == found.digest


async def test_after_a_reconnect_workers_have_time_for_a_heartbeat_before_streams_are_there() -> None:
    nats, now_s = MemoryNats(), 0.0
    bus, worker = await nats.connect(), await nats.connect()

    async def never() -> None:
        """As where the servers elect, and streams are not there yet."""
        await asyncio.Event().wait()

    bus.on_reconnect(never)
    bad = SimpleNamespace()
    registry = ModelRegistry(bus, bad, clock=lambda: now_s)  # type: ignore[arg-type]
    await registry.start()
    heartbeat = beat("w1", "a", digest="d" * 64)
    heartbeat.incarnation = "i"
    await worker.publish(subjects.worker_status("w1"), heartbeat.SerializeToString())
    assert (await registry.card("a")).name == "a"
    nats.stop()
    now_s = 100.0
    nats.start()
    asked = asyncio.create_task(registry.card("a"))
    await asyncio.sleep(0)
    await worker.publish(subjects.worker_status("w1"), heartbeat.SerializeToString())
    async with asyncio.timeout(10):
        assert (await asked).name == "a"
    for each in (bus, worker):
        await each.close()


async def test_a_gateway_that_knows_no_model_at_all_does_not_say_that_there_is_none() -> None:
    bus, now_s = await MemoryNats().connect(), 0.0
    registry = ModelRegistry(bus, SimpleNamespace(), clock=lambda: now_s)  # type: ignore[arg-type]
    await registry.start()
    now_s = 60.0
    with pytest.raises(Unavailable) as caught:
        await registry.card("a")
    assert (caught.value.reason, caught.value.retry_delay_s) == ("NO_MODELS", 1.0)
    registry.table.note(beat("w1", "b"), now_s)
    with pytest.raises(NotFound):
        await registry.card("a")
    await bus.close()


EMBEDDING = model_pb2.MODEL_ROLE_EMBEDDING
GENERATION = model_pb2.MODEL_ROLE_GENERATION


CALLER = Caller("t", "k")


def serving(
    *models: str,
    takes_any_name: bool,
    role: int = GENERATION,
    state: scheduler_pb2.WorkerState.ValueType = READY,
) -> ModelRegistry:
    """A registry that has listened for long enough."""
    connected = SimpleNamespace(check_connection=lambda: asyncio.sleep(0))
    registry = ModelRegistry(
        connected,  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        takes_any_name=takes_any_name,
        clock=lambda: 0.0,
    )
    registry._listening_since = -10.0
    for i, name in enumerate(models):
        status = beat(f"w{i}", name, state=state)
        status.models[0].role = role  # type: ignore[assignment]
        registry.table.note(status, 0.0)
    return registry


@pytest.mark.parametrize("takes_any_name", [False, True])
@pytest.mark.parametrize("name", ["", "gpt-4o"])
async def test_the_only_model_is_meant_without_a_name_and_by_any_name_where_that_is_set(
    *, takes_any_name: bool, name: str
) -> None:
    registry = serving("only", takes_any_name=takes_any_name)
    meant = name if name and not takes_any_name else "only"
    assert await registry.meant(name, GENERATION, CALLER) == meant
    assert await registry.meant("only", GENERATION, CALLER) == "only"


@pytest.mark.parametrize("name", ["", "gpt-4o"])
async def test_a_model_whose_worker_is_not_ready_is_meant_too(name: str) -> None:
    registry = serving("only", takes_any_name=True, state=scheduler_pb2.WORKER_STATE_LOADING)
    assert await registry.meant(name, GENERATION, CALLER) == "only"


async def test_an_unknown_name_means_nothing_beside_several_models() -> None:
    registry = serving("a", "b", takes_any_name=True)
    assert await registry.meant("gpt-4o", GENERATION, CALLER) == "gpt-4o"
    assert await registry.meant("b", GENERATION, CALLER) == "b"
    with pytest.raises(InvalidArgument) as caught:
        await registry.meant("", GENERATION, CALLER)
    assert (caught.value.field, caught.value.message) == ("model", "name a model: 'a', 'b' are served")


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ((), ", 'm07' and 12 more are served"),
        (("m0*",), "name a model: 'm00', 'm01'"),
        (("m03",), "name a model: 'm03' is served"),
        (("x",), "name a model: none is served"),
    ],
)
async def test_a_caller_without_a_model_s_name_is_told_those_that_it_may_use(
    models: tuple[str, ...], said: str
) -> None:
    registry = serving(*(f"m{i:02}" for i in range(20)), takes_any_name=False)
    with pytest.raises(InvalidArgument) as caught:
        await registry.meant("", GENERATION, replace(CALLER, models=models))
    assert said in caught.value.message


async def test_a_model_for_something_else_is_not_meant() -> None:
    registry = serving("minilm", takes_any_name=True, role=EMBEDDING)
    assert await registry.meant("gpt-4o", GENERATION, CALLER) == "gpt-4o"
    assert await registry.meant("text-embedding-3-small", EMBEDDING, CALLER) == "minilm"
