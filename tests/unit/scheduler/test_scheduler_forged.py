"""What a message that no worker of ours sent can do to the core: nothing for long."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from harness.profiles import examples
from harness.scheduler_world import CONTEXT, MODEL, World, make_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferflux.common.contract.epochs import MAX_EPOCH
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.chunks import parse_chunk
from inferflux.common.contract.messages.heartbeats import check_status
from inferflux.scheduler.core.lifecycle import checks
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.scheduler.core.types.limits import Limits
from inferflux.scheduler.core.types.replayed import assemble
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2

YEAR_S = 365.25 * 86_400


def world_of_today() -> World:
    return World(Limits(settle_s=0.0), now=1_800_000_000.0)


def test_a_job_that_claims_to_be_years_old_is_served_like_others() -> None:
    world = world_of_today()
    world.add_worker("w1")
    world.settle()
    old = world.submit(make_request("old", at=world.now - 13.7 * YEAR_S))
    ancient = world.submit(make_request("ancient", at=-YEAR_S * 290_000))
    world.live(30)
    world.check_quiet()
    for key in (old, ancient):
        assert world.read(key).outcome == "length"
        assert world.read(key).epoch <= MAX_EPOCH


def test_a_job_in_the_highest_epoch_is_retried_in_it() -> None:
    world = world_of_today()
    worker = world.add_worker("w1")
    world.settle()
    request = make_request("r", at=world.now)
    request.epoch = MAX_EPOCH
    key = world.submit(request)
    world.settle()
    worker.step()
    worker.die_engine()
    world.settle()
    world.live(30)
    world.check_quiet()
    assert world.read(key).outcome == "length"
    assert world.read(key).epoch == MAX_EPOCH


def serves(world: World) -> bool:
    """Whether a new request is served to its end within ten seconds."""
    key = world.submit(make_request(f"probe{world.now}", at=world.now))
    world.live(10)
    return world.read(key).outcome == "length"


@pytest.mark.parametrize(("prompt", "generated"), [(3, 100_000), (100_000, 0), (3, CONTEXT - 3)])
def test_a_job_beyond_every_context_ends_by_name_and_none_waits_for_it(prompt: int, generated: int) -> None:
    world = world_of_today()
    world.add_worker("w1", kv_cells=CONTEXT)
    world.settle()
    request = make_request("endless", prompt=prompt, at=world.now)
    request.params.ClearField("max_tokens")
    request.generated_token_ids.extend([5] * generated)
    key = world.submit(request)
    assert serves(world)
    assert world.read(key).outcome == "REQUEST_TOO_LARGE"
    world.check_quiet()


def test_a_job_that_fits_no_worker_does_not_wait_for_one_that_is_ready_without_memory() -> None:
    world = world_of_today()
    world.add_worker("w1")
    world.add_worker("odd", kv_cells=0)
    world.settle()
    key = world.submit(make_request("large", prompt=60, at=world.now))
    world.live(2)
    assert world.read(key).outcome == "REQUEST_TOO_LARGE"


def test_a_forged_start_of_a_worker_silences_the_real_one_for_seconds_only() -> None:
    world = world_of_today()
    real = world.add_worker("w1")
    world.settle()
    forged = real.status()
    forged.incarnation, forged.started_unix_ms = "forged", 2**53
    world.do(world.core.on_heartbeat(forged, world.now))
    for _ in range(8):
        real.beat()
        world.settle()
        world.pass_time(1.0)
    assert world.core.table.workers["w1"].incarnation == real.incarnation
    assert serves(world)


def test_a_forged_leave_of_a_worker_silences_it_for_seconds_only() -> None:
    world = world_of_today()
    real = world.add_worker("w1")
    world.settle()
    event = real.event()
    event.worker_left.SetInParent()
    world.do(world.core.on_event(event, world.now))
    assert "w1" not in world.core.table.workers
    for _ in range(5):
        real.beat()
        world.settle()
        world.pass_time(1.0)
    assert serves(world)


def test_a_late_heartbeat_does_not_bring_back_a_worker_that_left() -> None:
    world = world_of_today()
    worker = world.add_worker("w1")
    world.settle()
    worker.leave()
    worker.beat()
    world.settle()
    assert not world.core.table.workers


U32 = st.sampled_from([0, 1, 2, 3, 255, 256, MAX_EPOCH, MAX_EPOCH + 1, 2**31 - 1, 2**32 - 1])
FEW = st.integers(0, 4)
DOUBLES = st.sampled_from([0.0, 1.0, -1.0, 1e9, 1e308, float("nan"), float("inf")])
NAMES = st.sampled_from(["r0", "r1", "r2", "unknown", "", "a b"])
TENANTS = st.sampled_from(["acme", "acme", "acme", "bolt", "a.b"])
WORKERS = st.sampled_from(["w1", "w2", "forged", ""])
INCARNATIONS = st.sampled_from(["i1", "i2", "new", ""])
ENUMS = st.sampled_from([0, 1, 2, 2, 3, 4, 99])


@st.composite
def heartbeats(draw: st.DrawFn) -> scheduler_pb2.WorkerStatus:
    status = scheduler_pb2.WorkerStatus(
        worker_id=draw(WORKERS),
        incarnation=draw(INCARNATIONS),
        slots=draw(FEW | U32),
        kv_cells=draw(st.just(32) | U32),
        prefill_tokens_per_s=draw(DOUBLES),
        decode_tokens_per_s=draw(DOUBLES),
        started_unix_ms=draw(st.sampled_from([0, 1, 2**53, 2**62, -1])),
        term=draw(st.sampled_from([0, 1, 2**64 - 1])),
    )
    status.state = scheduler_pb2.WorkerState.ValueType(draw(ENUMS))
    for _ in range(draw(FEW)):
        status.models.add(name=draw(st.sampled_from([MODEL, MODEL, "other", ""])), context_length=draw(U32))
    for _ in range(draw(FEW)):
        status.residents.add(
            request_id=draw(NAMES),
            tenant=draw(TENANTS),
            epoch=draw(FEW | U32),
            run=draw(FEW | U32),
            slot=draw(FEW | U32),
            prompt_tokens=draw(U32),
            generated_tokens=draw(U32),
            residence=scheduler_pb2.Residence.ValueType(draw(ENUMS)),
        )
    for _ in range(draw(FEW)):
        status.finished.add(request_id=draw(NAMES), tenant=draw(TENANTS), epoch=draw(FEW | U32))
    return status


@st.composite
def events(draw: st.DrawFn) -> scheduler_pb2.WorkerEvent:
    event = scheduler_pb2.WorkerEvent(worker_id=draw(WORKERS), incarnation=draw(INCARNATIONS))
    named: dict[str, Any] = {"request_id": draw(NAMES), "tenant": draw(TENANTS), "epoch": draw(FEW | U32)}
    match draw(st.integers(0, 4)):
        case 0:
            event.request_finished.MergeFrom(
                scheduler_pb2.RequestFinished(
                    **named, outcome=draw(NAMES), time_to_first_token_ms=draw(DOUBLES)
                )
            )
            event.request_finished.usage.completion_tokens = draw(U32)
        case 1:
            event.engine_died.residents.add(**named)
        case 2:
            event.worker_left.residents.add(**named)
        case 3:
            event.request_yielded.MergeFrom(
                scheduler_pb2.RequestYielded(
                    **named,
                    run=draw(FEW | U32),
                    reason=scheduler_pb2.YieldReason.ValueType(draw(ENUMS)),
                    residence=scheduler_pb2.Residence.ValueType(draw(ENUMS)),
                    generated_tokens=draw(U32),
                )
            )
    return event


@st.composite
def answers(draw: st.DrawFn) -> worker_pb2.BatchAccepted:
    """Of any batch on its way: `batch_id` is a number among those."""
    answer = worker_pb2.BatchAccepted(batch_id=str(draw(FEW)))
    answer.accepted_request_ids.extend(draw(st.lists(NAMES, max_size=3)))
    for _ in range(draw(FEW)):
        answer.refused.add(
            request_id=draw(NAMES), reason=worker_pb2.RefusalReason.ValueType(draw(st.integers(0, 12)))
        )
    return answer


@st.composite
def jobs(draw: st.DrawFn) -> scheduler_pb2.InferenceRequest:
    request = make_request(
        draw(NAMES),
        tenant=draw(TENANTS),
        prompt=draw(FEW),
        max_tokens=draw(st.integers(-1, 6)),
        priority=draw(st.sampled_from([0, 1, 100, 101, -(2**31)])),
        deadline=draw(st.sampled_from([0.0, 1.0, 9e15])),
    )
    request.enqueued_unix_ms = draw(st.sampled_from([0, -(2**63), 2**63 - 1, 1_800_000_000_000, 1]))
    request.epoch = draw(U32)
    return request


@st.composite
def chunks(draw: st.DrawFn) -> tokens_pb2.TokenChunk:
    chunk = tokens_pb2.TokenChunk(request_id=draw(NAMES), epoch=draw(FEW | U32), offset=draw(FEW | U32))
    chunk.token_ids.extend(draw(st.lists(st.integers(-1, 3), max_size=3)))
    if draw(st.booleans()):
        chunk.finished.reason = generation_pb2.FinishReason.ValueType(draw(ENUMS))
    return chunk


SECONDS = st.sampled_from([0.1, 1.1, 4.0])
MESSAGES = heartbeats() | events() | answers() | jobs() | chunks() | SECONDS


def receive(world: World, message: object) -> None:
    """As the processes do: what fails its check is ignored."""
    core, now = world.core, world.now
    match message:
        case scheduler_pb2.WorkerStatus():
            check_status(message)
            world.do(core.on_heartbeat(message, now))
        case scheduler_pb2.WorkerEvent():
            checks.check_event(message)
            world.do(core.on_event(message, now))
        case worker_pb2.BatchAccepted() if world.in_flight:
            checks.check_answer(message)
            batches = list(world.in_flight)
            message.batch_id = batches[int(message.batch_id) % len(batches)]
            del world.in_flight[message.batch_id]
            world.do(core.on_batch_answer(message, now))
        case scheduler_pb2.InferenceRequest():
            checks.check_job(message)
            if message.request_id in ("", "a b") or message.tenant == "a.b":
                return  # parse has refused it
            world.submit(message)
        case tokens_pb2.TokenChunk():
            chunk = parse_chunk(message.SerializeToString())
            key = RequestKey("acme", chunk.request_id)
            if key in world.log:
                world.log[key].append(chunk)
            for reading in [j for j in core.jobs.values() if j.key == key]:
                world.do(core.on_replay(key, reading.replay.read_id, assemble(world.log[key]), now))
        case float():
            world.pass_time(message)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(MESSAGES, max_size=25))
def test_no_sequence_of_messages_makes_the_core_raise_or_lose_count_of_slots(messages: list[object]) -> None:
    world = world_of_today()
    world.add_worker("w1")
    world.add_worker("w2")
    for i in range(3):
        world.submit(make_request(f"r{i}", at=world.now, max_tokens=3))
    world.settle()
    for message in messages:
        with contextlib.suppress(InvalidArgument):
            receive(world, message)
        world.check()
        world.core.handle_nothing()
        if world.network:
            world.deliver()
            world.check()
    world.add_worker("w1")
    world.settle()
    for batch_id in list(world.in_flight):
        world.time_out(batch_id)
    world.live(200)
    world.check()
    assert not world.core.jobs, "something keeps a place for ever"
