"""Several scheduler processes: one leads, the others take over."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest
from harness.scheduler_stage import Stage, Standby

from inferflux.common.bus import Message
from inferflux.common.contract import subjects
from inferflux.common.contract.partitions import WHOLE
from inferflux.scheduler.core.lease.lease import LeaseRecord
from inferflux.v1 import scheduler_pb2


@pytest.fixture
async def pair(theatre: Stage) -> tuple[Standby, Standby]:
    """The leader, and its standby."""
    first = await theatre.add_scheduler("s0")
    await first.until_ready("leads in term")
    second = await theatre.add_scheduler("s1")
    await second.until_ready("standby: s0 leads")
    return first, second


async def led_by(stage: Stage, name: str) -> scheduler_pb2.SchedulerStatus:
    return await stage.status(lambda s: s.leader == name)


async def run_to_its_end(stage: Stage, request_id: str) -> None:
    """Submit a request and have the only worker finish it."""
    await stage.submit(request_id)
    (worker,) = stage.workers
    await worker.has(request_id)
    await worker.emit(request_id, 1, is_last=True)
    assert (await stage.read(request_id)).token_ids == [0]


async def test_one_leads_and_the_other_answers_nothing(theatre: Stage, pair: tuple[Standby, Standby]) -> None:
    leader, standby = pair
    await theatre.add_worker("w1")
    await run_to_its_end(theatre, "one")
    answers: list[str] = []

    async def on_answer(message: Message) -> None:
        answers.append(scheduler_pb2.SchedulerStatus.FromString(message.data).leader)

    await theatre.bus.serve("_INBOX.answers", on_answer)
    await theatre.bus.flush()
    for _ in range(3):
        theatre.bus._link.send(subjects.SCHEDULER_STATUS, b"", "_INBOX.answers")
    await led_by(theatre, "s0")  # asked later, and answered later
    async with asyncio.timeout(5):
        while len(answers) < 3:
            await asyncio.sleep(0.01)
    assert answers == ["s0"] * 3
    name = "inferflux_scheduler_is_leader"
    assert (await leader.metric(name), await standby.metric(name)) == (1, 0)


async def test_a_standby_takes_a_killed_leaders_work_over_and_disturbs_nothing_that_runs(
    theatre: Stage, pair: tuple[Standby, Standby]
) -> None:
    leader, standby = pair
    worker = await theatre.add_worker("w1", slots=1)
    await theatre.submit("running")
    epoch = (await worker.has("running")).request.epoch
    await worker.emit("running", 2)
    await theatre.submit("waiting")
    before = await theatre.status(lambda s: s.queued == 1)
    leader.signal(signal.SIGKILL)
    await worker.emit("running", 1)
    await theatre.submit("meanwhile")
    after = await led_by(theatre, "s1")
    assert after.term > before.term
    await theatre.status(lambda s: s.running == 1 and s.queued == 2)
    await standby.until_ready("leads in term")
    assert worker.items["running"].request.epoch == epoch
    assert worker.dropped == []
    await worker.emit("running", 1, is_last=True)
    for request_id in ("waiting", "meanwhile"):
        await worker.has(request_id)
        await worker.emit(request_id, 1, is_last=True)
    assert (await theatre.read("running")).token_ids == [0, 1, 2, 3]
    await theatre.is_quiet(workers=1)
    assert await standby.metric("inferflux_scheduler_takeovers_total") == 1
    assert await standby.metric("inferflux_scheduler_term") == pytest.approx(after.term)


async def test_a_leader_that_is_told_to_end_leaves_the_lease_behind(
    theatre: Stage, pair: tuple[Standby, Standby]
) -> None:
    leader, standby = pair
    await theatre.add_worker("w1")
    await run_to_its_end(theatre, "before")
    leader.signal(signal.SIGTERM)
    assert await asyncio.to_thread(leader.process.wait, 10) == 0
    entry = await theatre.bus.key_value(subjects.SCHEDULERS_BUCKET).get(subjects.scheduler_lease(WHOLE))
    assert entry is not None
    assert LeaseRecord.decode(entry.value).holder in ("", "s1")
    await led_by(theatre, "s1")
    await run_to_its_end(theatre, "after")
    assert standby.process.poll() is None


async def test_a_leader_that_stood_still_steps_down_when_it_goes_on(
    theatre: Stage, pair: tuple[Standby, Standby]
) -> None:
    stopped, _ = pair
    worker = await theatre.add_worker("w1", slots=1)
    await theatre.submit("running")
    await worker.has("running")
    for i in range(4):
        await theatre.submit(f"waiting-{i}")
    old = await theatre.status(lambda s: s.queued == 4)
    stopped.signal(signal.SIGSTOP)
    new = await led_by(theatre, "s1")
    await worker.emit("running", 1, is_last=True)  # both leaders receive it: the slot is free
    stopped.signal(signal.SIGCONT)
    await stopped.until_ready("standby: s1 leads")
    for i in range(4):
        await worker.has(f"waiting-{i}")
        await worker.emit(f"waiting-{i}", 1, is_last=True)
    await theatre.is_quiet(workers=1)
    assert worker.batch_terms == [old.term] + [new.term] * 4
    for i in range(4):
        ends = [c for c in await theatre.chunks(f"waiting-{i}") if c.HasField("finished")]
        assert len(ends) == 1
    assert await stopped.metric("inferflux_scheduler_is_leader") == 0


async def test_the_leader_may_go_back_and_forth(theatre: Stage, pair: tuple[Standby, Standby]) -> None:
    await theatre.add_worker("w1")
    terms: list[int] = []
    for turn in range(4):
        leader, other = pair if turn % 2 == 0 else reversed(pair)
        terms.append((await led_by(theatre, leader.name)).term)
        await run_to_its_end(theatre, f"turn-{turn}")
        leader.signal(signal.SIGSTOP)
        await led_by(theatre, other.name)
        leader.signal(signal.SIGCONT)
        await leader.until_ready(f"standby: {other.name} leads")
    assert terms == sorted(set(terms))


async def test_a_restart_of_nats_leaves_one_leader_and_every_job(
    theatre: Stage, pair: tuple[Standby, Standby]
) -> None:
    worker = await theatre.add_worker("w1", slots=1)
    await theatre.submit("running")
    await worker.has("running")
    await theatre.submit("waiting")
    await theatre.status(lambda s: s.queued == 1)
    await asyncio.to_thread(theatre.nats.restart)
    await theatre.status(lambda s: s.running == 1 and s.queued == 1)
    assert worker.dropped == []
    await worker.emit("running", 1, is_last=True)
    await worker.has("waiting")
    await worker.emit("waiting", 1, is_last=True)
    await theatre.is_quiet(workers=1)
    async with asyncio.timeout(10):  # one that was replaced meanwhile may not know yet
        while sum([await s.metric("inferflux_scheduler_is_leader") for s in pair]) != 1:
            await asyncio.sleep(0.05)


async def test_the_lease_may_vanish_from_under_a_leader(
    theatre: Stage, pair: tuple[Standby, Standby]
) -> None:
    before = await led_by(theatre, "s0")
    key = subjects.scheduler_lease(WHOLE)
    await theatre.bus.publish(f"$KV.{subjects.SCHEDULERS_BUCKET}.{key}", b"", {"KV-Operation": "DEL"})
    bucket = theatre.bus.key_value(subjects.SCHEDULERS_BUCKET)
    async with asyncio.timeout(10):
        while (entry := await bucket.get(key)) is None or LeaseRecord.decode(entry.value).beat < 2:
            await asyncio.sleep(0.05)
    assert LeaseRecord.decode(entry.value).term == before.term
    await theatre.add_worker("w1")
    await run_to_its_end(theatre, "one")


async def test_who_loses_the_queue_without_the_lease_leads_again(
    theatre: Stage, pair: tuple[Standby, Standby]
) -> None:
    await theatre.add_worker("w1")
    await run_to_its_end(theatre, "before")
    thief = await theatre.bus.consume_jobs(max_outstanding=1)
    await thief.close()
    await run_to_its_end(theatre, "after")
    assert all(standby.process.poll() is None for standby in pair)


async def test_a_leader_that_cannot_renew_its_lease_pauses_and_goes_on_in_its_term(theatre: Stage) -> None:
    leader = await theatre.add_scheduler("s0")
    worker = await theatre.add_worker("w1", slots=1)
    before = await led_by(theatre, "s0")
    await theatre.submit("running")
    await worker.has("running")
    theatre.nats.pause()
    try:
        async with asyncio.timeout(15):
            while "could not be renewed" not in (await leader.get("/readyz"))[1]:
                await asyncio.sleep(0.02)
    finally:
        theatre.nats.resume()
    await leader.until_ready("leads in term")
    await worker.emit("running", 1, is_last=True)
    await run_to_its_end(theatre, "after")
    after = await theatre.is_quiet(workers=1)
    assert (after.leader, after.term) == ("s0", before.term)
    assert worker.dropped == []


async def test_no_value_of_the_lease_key_ends_a_scheduler(
    theatre: Stage, pair: tuple[Standby, Standby]
) -> None:
    await theatre.add_worker("w1")
    key = subjects.scheduler_lease(WHOLE)
    bucket = theatre.bus.key_value(subjects.SCHEDULERS_BUCKET)
    forged = LeaseRecord("forger", "f", 2**63 - 1, 1).encode()
    for value in (b"[" * 200_000, b'{"holder": ' + b"[" * 480, b"", forged):
        await theatre.bus.publish(f"$KV.{subjects.SCHEDULERS_BUCKET}.{key}", value)
        await theatre.bus.flush()
        async with asyncio.timeout(20):
            while (entry := await bucket.get(key)) is None or entry.value == value:
                await asyncio.sleep(0.02)
    await run_to_its_end(theatre, "after")
    for scheduler in pair:
        assert scheduler.process.poll() is None


async def test_what_tenants_were_served_outlives_the_leader(theatre: Stage) -> None:
    fair = {"INFERFLUX_SCHEDULER_POLICY": "fair"}
    first = await theatre.add_scheduler("s0", **fair)
    await first.until_ready("leads in term")
    await theatre.add_scheduler("s1", **fair)
    worker = await theatre.add_worker("w1", slots=1)
    for request_id, tenant in (("b", "other"), ("g1", "greedy"), ("m1", "modest"), ("g2", "greedy")):
        await theatre.submit(request_id, tenant=tenant)
    await theatre.submit("m2", tenant="modest")
    await worker.has("b")
    await worker.emit("b", 1, is_last=True)
    await worker.has("g1")
    await worker.emit("g1", 6)
    await worker.emit("g1", 1, is_last=True)
    await worker.has("m1")
    bucket = theatre.bus.key_value(subjects.SCHEDULERS_BUCKET)
    async with asyncio.timeout(10):
        while True:
            entry = await bucket.get(subjects.tenant_shares(WHOLE))
            shares = json.loads(entry.value) if entry is not None else {}
            if shares.get("greedy", 0) > shares.get("modest", 0):
                break
            await asyncio.sleep(0.05)
    first.signal(signal.SIGKILL)
    await led_by(theatre, "s1")
    await theatre.status(lambda s: s.running == 1 and s.queued == 2)
    await worker.emit("m1", 1, is_last=True)
    await worker.has("m2")  # g2 came first


async def test_the_next_leader_knows_which_images_engines_crashed_over(
    theatre: Stage, pair: tuple[Standby, Standby]
) -> None:
    image_id = "a" * 64
    worker = await theatre.add_worker("w1")
    await theatre.submit("first", image_id=image_id)
    await worker.has("first")
    await worker.die_engine(image_id)
    assert (await theatre.read("first")).outcome == "POISON_REQUEST"
    bucket = theatre.bus.key_value(subjects.SCHEDULERS_BUCKET)
    async with asyncio.timeout(10):
        while (entry := await bucket.get(subjects.killer_images(WHOLE))) is None or b"a" not in entry.value:
            await asyncio.sleep(0.05)
    pair[0].signal(signal.SIGKILL)
    await led_by(theatre, "s1")
    await theatre.submit("again", image_id=image_id)
    assert (await theatre.read("again")).outcome == "POISON_REQUEST"


async def test_leader_and_standby_are_ready_and_degraded_while_a_pool_lacks_workers(theatre: Stage) -> None:
    sizes = {"INFERFLUX_PREFILL_POOL_SIZE": "1", "INFERFLUX_DECODE_POOL_SIZE": "1"}
    pair = [await theatre.add_scheduler(name, **sizes) for name in ("s0", "s1")]

    async def until(reason: str) -> None:
        for scheduler in pair:
            told: list[object] = []
            async with asyncio.timeout(15):
                while told != [200, "degraded" if reason else "ok", "scheduler", reason]:
                    code, body = await scheduler.get("/readyz")
                    said = json.loads(body)
                    told = [code, said["status"], said["role"], said["reason"]]
                    await asyncio.sleep(0.02)

    await until("prefill pool not ready; decode pool not ready")
    prefill, decode = await theatre.add_worker("p"), await theatre.add_worker("d")
    prefill.role = scheduler_pb2.WORKER_ROLE_PREFILL
    await until("decode pool not ready")
    decode.role = scheduler_pb2.WORKER_ROLE_DECODE
    await until("")
    await prefill.vanish()
    await until("prefill pool not ready")
