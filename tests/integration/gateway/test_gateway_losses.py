"""Token streams with losses, repeats, retries and returning readers, over a real NATS."""

from __future__ import annotations

import pytest
from harness.gateway import (
    Backend,
    Client,
    GatewayProcess,
    finished,
    ids_of,
    started,
    text_of,
    tokens,
    until,
)

from inferflux.common.contract.errors import AlreadyExists, InvalidArgument, NotFound
from inferflux.v1 import scheduler_pb2


async def test_repeats_and_chunks_of_replaced_workers_are_dropped(client: Client, backend: Backend) -> None:
    stream = client.generate("loss-1")
    job = await backend.job("loss-1")
    await backend.say(job, started(), tokens(0), tokens(0), tokens(1), tokens(0), tokens(1))
    await backend.say(job, started(offset=2, epoch=2), tokens(2), tokens(2, epoch=2), tokens(3), finished(4))
    await backend.say(job, tokens(3, epoch=2), finished(4, epoch=2), finished(4, epoch=2))
    chunks = await stream.rest()
    assert ids_of(chunks) == [0, 1, 2, 3]
    assert text_of(chunks) == "0 1 2 3 "
    assert chunks[-1].epoch == 2
    await backend.done("loss-1")


async def test_a_hole_is_filled_when_the_tokens_come_after_all(client: Client, backend: Backend) -> None:
    stream = client.generate("loss-2")
    job = await backend.job("loss-2")
    await backend.say(job, tokens(0), tokens(3), tokens(4), finished(5))
    assert list((await stream.until_tokens()).token_ids) == [0]
    await backend.say(job, tokens(1), tokens(2))
    chunks = await stream.rest()
    assert ids_of(chunks) == [1, 2, 3, 4]
    assert chunks[-1].HasField("finished")
    await backend.done("loss-2")


async def test_a_stream_is_resumed_at_its_offset(client: Client, backend: Backend) -> None:
    stream = client.generate("resume-1")
    job = await backend.job("resume-1")
    await backend.say(job, started(), *(tokens(i) for i in range(6)))
    first = await stream.until_tokens()
    seen = first.offset + len(first.token_ids)
    # As if the gateway had been lost: another stream takes over while the first is still there.
    resumed = client.resume("resume-1", seen)
    await backend.say(job, tokens(6), finished(7))
    chunks = await resumed.rest()
    assert ids_of(chunks) == list(range(seen, 7))
    assert chunks[0].offset == seen
    assert chunks[-1].HasField("finished")
    await stream.rest()
    await backend.done("resume-1")


@pytest.mark.parametrize("offset", [0, 3, 5])
async def test_a_finished_stream_can_be_read_again(client: Client, backend: Backend, offset: int) -> None:
    request_id = f"resume-2-{offset}"
    stream = client.generate(request_id)
    await backend.finish(await backend.job(request_id), n=5)
    await stream.rest()
    chunks = await client.resume(request_id, offset).rest()
    assert ids_of(chunks) == list(range(offset, 5))
    assert text_of(chunks) == "".join(f"{i} " for i in range(offset, 5))
    assert chunks[-1].finished.usage.completion_tokens == 5


async def test_resume_of_an_unknown_request_is_not_found(client: Client) -> None:
    assert isinstance(await client.resume("resume-nothing", 0).error(), NotFound)


async def test_resume_of_another_tenants_request_is_not_found(
    gateway: GatewayProcess, other_key: str, client: Client, backend: Backend
) -> None:
    stream = client.generate("resume-3")
    await backend.finish(await backend.job("resume-3"), n=2)
    await stream.rest()
    assert isinstance(await Client(gateway, other_key).resume("resume-3", 0).error(), NotFound)


async def test_resume_of_a_malformed_id_is_refused(client: Client) -> None:
    error = await client.resume("a.b", 0).error()
    assert isinstance(error, InvalidArgument)
    assert error.field == "request_id"


async def test_a_silent_request_that_runs_can_be_resumed(client: Client, backend: Backend) -> None:
    """Nothing is in the replay buffer, but the scheduler knows the request."""
    backend.reader_replies["resume-4"] = scheduler_pb2.ReaderReply(was_found=True)
    stream = client.resume("resume-4", 0)
    await until(lambda: any(n.joined.request.request_id == "resume-4" for n in backend.reader_notices))
    job = scheduler_pb2.InferenceRequest(request_id="resume-4", tenant="acme")
    await backend.say(job, tokens(0), finished(1))
    assert ids_of(await stream.rest()) == [0]


async def test_a_request_id_in_use_is_refused(client: Client, backend: Backend) -> None:
    stream = client.generate("twice-1")
    job = await backend.job("twice-1")
    assert isinstance(await client.generate("twice-1").error(), AlreadyExists)
    await backend.finish(job, n=2)
    assert ids_of(await stream.rest()) == [0, 1]
    assert isinstance(await client.chat("twice-1").error(), AlreadyExists)
    assert "twice-1" not in backend.cancelled


async def test_two_tenants_may_use_the_same_request_id(
    gateway: GatewayProcess, other_key: str, client: Client, backend: Backend
) -> None:
    first = client.generate("same-1")
    job = await backend.job("same-1")
    second = Client(gateway, other_key).generate("same-1")
    await second.call.initial_metadata()
    await until(lambda: backend.jobs["same-1"].tenant == "other")
    await backend.say(job, tokens(0), finished(1))
    await backend.say(backend.jobs["same-1"], tokens(0, 2), finished(3))
    assert ids_of(await first.rest()) == [0]
    assert ids_of(await second.rest()) == [0, 1, 2]


async def test_the_whole_of_a_long_stream_arrives_at_a_reader_that_was_away(
    client: Client, backend: Backend
) -> None:
    """More than a subscription keeps: the rest comes from the replay buffer."""
    stream = client.generate("slow-1")
    job = await backend.job("slow-1")
    n = 30_000
    for first in range(0, n, 1000):
        await backend.say(job, *(tokens(i) for i in range(first, first + 1000)))
    await backend.say(job, finished(n))
    chunks = await stream.rest()
    assert ids_of(chunks) == list(range(n))
    assert chunks[-1].HasField("finished")
    await backend.done("slow-1")
