"""Gateways' notices about readers, over a real NATS to the scheduler process."""

from __future__ import annotations

import asyncio
import string

import pytest
from harness.scheduler_stage import Stage
from harness.starting import patched

from inferflux.common.bus.leaders import ask_who_has
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded
from inferflux.common.contract.partitions import Partition, divide
from inferflux.scheduler.core.types.replayed import assemble
from inferflux.v1 import generation_pb2, scheduler_pb2

GATEWAY = "g1"


def read(request_id: str, attempt_id: str = "", *, tenant: str = "acme") -> scheduler_pb2.ReadRequest:
    return scheduler_pb2.ReadRequest(tenant=tenant, request_id=request_id, attempt_id=attempt_id)


def joined(request: scheduler_pb2.ReadRequest) -> scheduler_pb2.ReaderNotice:
    return scheduler_pb2.ReaderNotice(gateway_id=GATEWAY, joined=scheduler_pb2.ReaderJoined(request=request))


def left(request: scheduler_pb2.ReadRequest) -> scheduler_pb2.ReaderNotice:
    return scheduler_pb2.ReaderNotice(gateway_id=GATEWAY, left=scheduler_pb2.ReaderLeft(request=request))


async def ask(
    stage: Stage, notice: scheduler_pb2.ReaderNotice, *, timeout_s: float = 5
) -> scheduler_pb2.ReaderReply:
    data = await stage.bus.request(
        subjects.SCHEDULER_READERS, notice.SerializeToString(), timeout_s=timeout_s
    )
    return scheduler_pb2.ReaderReply.FromString(data)


async def test_a_gateway_is_told_what_is_known_of_a_request(stage: Stage) -> None:
    worker = await stage.add_worker("w1")
    await stage.submit("windowed", attempt="a1", window_s=60)
    await worker.has("windowed")
    reply = await ask(stage, joined(read("windowed", tenant=stage.tenant)))
    assert (reply.was_found, reply.attempt_id, reply.resume_window_s) == (True, "a1", 60)
    assert not reply.has_answer_format
    form = generation_pb2.AnswerFormat(reasoning=generation_pb2.REASONING_FORMAT_OPEN)
    await stage.submit("chat", attempt="a1", window_s=60, answer_format=form)
    await worker.has("chat")
    assert (await ask(stage, joined(read("chat", tenant=stage.tenant)))).has_answer_format
    assert not (await ask(stage, joined(read("windowed", "a2", tenant=stage.tenant)))).was_found
    reply = await ask(stage, left(read("windowed", "a1", tenant=stage.tenant)))
    assert (reply.was_found, reply.may_cancel) == (True, False)
    assert not (await ask(stage, left(read("unknown", tenant=stage.tenant)))).was_found
    await worker.emit("windowed", 1, is_last=True)
    await worker.emit("chat", 1, is_last=True)
    await stage.is_quiet(workers=1)


async def test_bad_notices_about_readers_are_ignored(stage: Stage) -> None:
    bad = [
        b"\xff\xff",
        b"",
        scheduler_pb2.ReaderNotice(gateway_id="a b").SerializeToString(),
        scheduler_pb2.ReaderNotice(gateway_id=GATEWAY).SerializeToString(),
        left(scheduler_pb2.ReadRequest(tenant="a b", request_id="\x00" * 1000)).SerializeToString(),
    ]
    for data in bad:
        await stage.bus.publish(subjects.SCHEDULER_READERS, data)
    assert not (await ask(stage, joined(read("nothing", tenant=stage.tenant)))).was_found


async def test_a_request_without_a_reader_is_cancelled_wherever_it_is(theatre: Stage) -> None:
    """One runs, one waits; a third is read and goes on."""
    await theatre.add_scheduler("s1", **patched("inferflux.scheduler.settings:_LIMITS.unread_limit_s", 2.0))
    worker = await theatre.add_worker("w1", slots=2)
    await theatre.submit("runs", attempt="a1")
    await theatre.submit("read", attempt="a2")
    for request_id in ("runs", "read"):
        await worker.has(request_id)
    await theatre.submit("waits", attempt="a3")
    ended: dict[str, str] = {}
    async with asyncio.timeout(30):
        while len(ended) < 2:
            now = scheduler_pb2.ReadersNow(requests=[read("read", "a2")])
            notice = scheduler_pb2.ReaderNotice(gateway_id=GATEWAY, now=now)
            await theatre.bus.publish(subjects.SCHEDULER_READERS, notice.SerializeToString())
            for request_id in ("runs", "waits"):
                if outcome := assemble(await theatre.chunks(request_id)).outcome:
                    ended[request_id] = outcome
            assert not assemble(await theatre.chunks("read")).outcome
            # Answered in order: what was published before has been taken in.
            assert (await ask(theatre, joined(read("read", "a2")))).was_found
    assert ended == {"runs": "cancelled", "waits": "cancelled"}
    await worker.emit("read", 1, is_last=True)
    assert (await theatre.read("read")).outcome == "stop"
    await theatre.is_quiet(workers=1)


def a_model_of(partition: Partition) -> str:
    return next(name for name in string.ascii_lowercase if partition.has(name))


async def test_the_partition_that_has_a_request_is_found_and_of_an_unknown_one_all_say_so(
    theatre: Stage,
) -> None:
    for name in ("s0", "s1"):
        await theatre.add_scheduler(name, INFERFLUX_SCHEDULER_PARTITIONS="2")

    async def find(request_id: str) -> scheduler_pb2.ReaderReply:
        return await ask_who_has(
            theatre.bus,
            subjects.SCHEDULER_READERS,
            joined(read(request_id)),
            scheduler_pb2.ReaderReply,
            timeout_s=5,
            is_found=lambda reply: reply.was_found,
        )

    async with asyncio.timeout(30):
        for partition in divide(2):  # no worker: both wait in the queue
            model = a_model_of(partition)
            await theatre.submit(f"queued-{model}", model=model, attempt=f"a-{model}", window_s=60)
            while not (reply := await find(f"queued-{model}")).was_found:  # the job is on its way
                await asyncio.sleep(0.05)
            assert (reply.partition, reply.attempt_id) == (partition.name, f"a-{model}")
    assert not (await find("unknown")).was_found


async def test_an_unknown_request_is_not_denied_while_a_partition_has_no_leader(theatre: Stage) -> None:
    """Another one may have it: a leader of one partition alone answers."""
    reply = scheduler_pb2.ReaderReply(partition="0-of-2").SerializeToString()
    serving = await theatre.bus.serve(subjects.SCHEDULER_READERS, lambda message: message.respond(reply))
    try:
        with pytest.raises(DeadlineExceeded) as caught:
            await ask_who_has(
                theatre.bus,
                subjects.SCHEDULER_READERS,
                joined(read("unknown")),
                scheduler_pb2.ReaderReply,
                timeout_s=0.3,
                is_found=lambda reply: reply.was_found,
            )
        assert "1-of-2" in caught.value.message
    finally:
        await serving.close()
