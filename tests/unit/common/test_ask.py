"""A question over NATS and its answer."""

from __future__ import annotations

import pytest
from harness.memory_nats import MemoryNats

from inferflux.common.bus import Message
from inferflux.common.bus.ask import ask
from inferflux.common.contract.errors import Unavailable
from inferflux.v1 import scheduler_pb2

QUESTION = scheduler_pb2.CancelNotice(tenant="t", request_id="r")


async def answered(data: bytes) -> scheduler_pb2.CancelReply:
    """What is understood of an answer."""
    bus = await MemoryNats().connect("test")
    asked: list[bytes] = []

    async def answer(message: Message) -> None:
        asked.append(message.data)
        await message.respond(data)

    try:
        await bus.serve("asked", answer)
        return await ask(bus, "asked", QUESTION, scheduler_pb2.CancelReply, timeout_s=5)
    finally:
        await bus.close()
        assert asked == [QUESTION.SerializeToString()]


async def test_an_answer_is_decoded() -> None:
    reply = scheduler_pb2.CancelReply(was_found=True)
    assert await answered(reply.SerializeToString()) == reply


async def test_an_answer_that_is_none_is_refused() -> None:
    with pytest.raises(Unavailable, match="something else") as refused:
        await answered(b"\xff\xff")
    assert refused.value.reason == "BAD_ANSWER"
