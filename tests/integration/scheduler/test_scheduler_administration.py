"""Scheduler processes that are administered while they run."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest
from harness.scheduler_stage import Stage

from inferflux.common.bus.leaders import ask_who_has
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError, InvalidArgument, NotFound
from inferflux.common.contract.partitions import divide
from inferflux.v1 import scheduler_pb2

Request = scheduler_pb2.SchedulerAdminRequest
Reply = scheduler_pb2.SchedulerAdminReply
LIMIT_S = 15.0
# After one change.
PREEMPTING = scheduler_pb2.Fairness(
    enable_preemption=True, high_priority_threshold=5, max_timeslice_tokens=7, version=2
)


@pytest.fixture
def theatre(theatre: Stage) -> Stage:
    """What the environment says holds until an administrator changes it."""
    theatre.env["INFERFLUX_FAIRNESS_TIMESLICE"] = "7"
    return theatre


async def ask(stage: Stage, request: Request) -> Reply:
    """The answer of the leader, once there is one."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                data = await stage.bus.request(
                    subjects.SCHEDULER_ADMIN, request.SerializeToString(), timeout_s=1
                )
            except InferFluxError:
                await asyncio.sleep(0.05)
            else:
                return Reply.FromString(data)


async def until(
    stage: Stage, request: Request, is_wanted: Callable[[scheduler_pb2.DrainProgress], bool]
) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_wanted((await ask(stage, request)).drain):
            await asyncio.sleep(0.05)


PREEMPT = Request(set_fairness=scheduler_pb2.SetFairness(enable_preemption=True))
GET = Request(get_fairness=scheduler_pb2.GetFairness())


async def test_a_change_is_kept_from_leader_to_leader(theatre: Stage) -> None:
    first = await theatre.add_scheduler("s0")
    assert (await ask(theatre, PREEMPT)).fairness == PREEMPTING
    second = await theatre.add_scheduler("s1")
    first.signal(signal.SIGKILL)
    await second.until_ready("leads in term")
    assert (await ask(theatre, GET)).fairness == PREEMPTING
    assert (await theatre.status(lambda s: s.leader == "s1")).fairness == PREEMPTING


async def test_a_change_holds_for_every_partition(theatre: Stage) -> None:
    for name in ("s0", "s1"):
        await theatre.add_scheduler(name, INFERFLUX_SCHEDULER_PARTITIONS="2")
    await ask(theatre, PREEMPT)
    for partition in divide(2):
        await theatre.status(lambda s, name=partition.name: s.partition == name and s.fairness == PREEMPTING)


async def test_a_worker_of_one_partition_is_drained_though_the_other_does_not_know_it(theatre: Stage) -> None:
    for name in ("s0", "s1"):
        await theatre.add_scheduler(name, INFERFLUX_SCHEDULER_PARTITIONS="2")
    worker = await theatre.add_worker("w1")
    await theatre.status(lambda s: len(s.workers) == 1)
    for _ in range(5):  # whichever is faster
        reply = await ask_who_has(
            theatre.bus,
            subjects.SCHEDULER_ADMIN,
            Request(drain=scheduler_pb2.DrainRequest(worker_id="w1")),
            Reply,
            timeout_s=LIMIT_S,
            is_found=lambda each: each.WhichOneof("reply") == "drain",
        )
        assert reply.WhichOneof("reply") == "drain"
    async with asyncio.timeout(LIMIT_S):
        while not worker.is_draining:
            await asyncio.sleep(0.02)


async def test_a_worker_is_drained_when_its_last_request_has_ended(theatre: Stage) -> None:
    await theatre.add_scheduler("s0")
    worker = await theatre.add_worker("w1")
    await theatre.submit("last")
    await worker.has("last")
    reply = await ask(theatre, Request(drain=scheduler_pb2.DrainRequest(worker_id="w1")))
    assert (reply.drain.residents, reply.drain.is_drained) == (1, False)
    await theatre.submit("late")
    progress = Request(get_drain=scheduler_pb2.GetDrain(worker_id="w1"))
    await until(theatre, progress, lambda p: p.state == scheduler_pb2.WORKER_STATE_DRAINING)
    await worker.emit("last", 1, is_last=True)
    await until(theatre, progress, lambda p: p.is_drained)
    assert worker.items == {}
    await ask(theatre, Request(drain=scheduler_pb2.DrainRequest(worker_id="w1", undo=True)))
    await worker.has("late")
    await worker.emit("late", 1, is_last=True)


@pytest.mark.parametrize(
    ("payload", "code", "said"),
    [
        (b"\xff\xff", InvalidArgument.code, "request"),
        (b"", InvalidArgument.code, "request"),
        (
            Request(drain=scheduler_pb2.DrainRequest(worker_id="unknown")).SerializeToString(),
            NotFound.code,
            "unknown",
        ),
    ],
)
async def test_what_cannot_be_done_is_refused(stage: Stage, payload: bytes, code: int, said: str) -> None:
    data = await stage.bus.request(subjects.SCHEDULER_ADMIN, payload, timeout_s=2)
    refused = Reply.FromString(data).refused
    assert refused.code == code
    assert said in f"{refused.field} {refused.message}"
