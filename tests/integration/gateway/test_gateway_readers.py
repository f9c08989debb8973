"""Readers that leave, come back, or were never there: what ends, what goes on, and what is counted."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import redis.asyncio
from harness.gateway import (
    Backend,
    Client,
    GatewayProcess,
    StartGateway,
    finished,
    ids_of,
    tokens,
    until,
)
from harness.policy import PolicyProcess
from harness.servers import ServerProcess

from inferflux.common.contract.errors import InvalidArgument
from inferflux.policy.storage.usage_store import UsageStore
from inferflux.v1 import generation_pb2, scheduler_pb2

CANCELLED = generation_pb2.FINISH_REASON_CANCELLED
KEPT = scheduler_pb2.ReaderReply(was_found=True)

Usage = Callable[[], Awaitable[dict[str, int]]]


@pytest.fixture
async def tenant(request: pytest.FixtureRequest) -> str:
    """One of each test's own, so that its account is its own."""
    return f"t-{abs(hash(request.node.name)) % 10**12}"


@pytest.fixture
async def payer(policy: PolicyProcess, admin_key: str, gateway: GatewayProcess, tenant: str) -> Client:
    return Client(gateway, (await policy.create_key(admin_key, tenant=tenant)).secret)


@pytest.fixture
async def usage(valkey_url: str, tenant: str) -> AsyncIterator[Usage]:
    """The counters of the test's tenant."""
    async with redis.asyncio.Redis.from_url(valkey_url) as connection:
        yield lambda: UsageStore(connection, timeout_s=5).usage(tenant)


async def until_counted(usage: Usage, **wanted: int) -> None:
    async def is_so() -> bool:
        counted = await usage()
        return all(counted.get(name) == n for name, n in wanted.items())

    await until(is_so)


async def test_a_job_carries_its_window_and_an_attempt_of_its_own(client: Client, backend: Backend) -> None:
    for call, request_id in ((client.generate, "window-1"), (client.chat, "window-2")):
        stream = call(request_id, resume_window_s=17)
        job = await backend.job(request_id)
        assert job.resume_window_s == 17
        await backend.finish(job, n=1)
        await stream.rest()
    attempts = {backend.jobs[request_id].attempt_id for request_id in ("window-1", "window-2")}
    assert len(attempts) == 2
    assert "" not in attempts


async def test_a_window_beyond_the_bound_is_refused_by_name(client: Client, backend: Backend) -> None:
    for call in (client.generate, client.chat):
        error = await call("window-3", resume_window_s=301).error()
        assert isinstance(error, InvalidArgument)
        assert error.field == "resume_window_s"
    assert "window-3" not in backend.jobs


async def test_readers_are_reported_while_they_are_there(client: Client, backend: Backend) -> None:
    stream = client.generate("read-1")
    job = await backend.job("read-1")
    await until(lambda: len(backend.reports("read-1")) >= 2)
    assert {read.attempt_id for read in backend.reports("read-1")} == {job.attempt_id}
    await backend.finish(job, n=1)
    await stream.rest()
    n = len(backend.reports("read-1"))
    other = client.generate("read-2")
    await until(lambda: len(backend.reports("read-2")) >= 2)
    assert len(backend.reports("read-1")) <= n + 1
    await backend.finish(backend.jobs["read-2"], n=1)
    await other.rest()


async def test_a_request_with_a_window_goes_on_without_its_client(
    payer: Client, backend: Backend, usage: Usage
) -> None:
    backend.reader_replies["leave-1"] = KEPT
    stream, job = await payer.begin(backend, "leave-1", resume_window_s=60)
    stream.cancel()
    await until(lambda: bool(backend.left("leave-1")))
    await backend.say(job, tokens(1))
    resumed = payer.resume("leave-1", 1)
    await backend.say(job, tokens(2), finished(3, attempt=job.attempt_id))
    assert ids_of(await resumed.rest()) == [1, 2]
    assert "leave-1" not in backend.cancelled
    await until_counted(usage, requests=1, completion_tokens=3, prompt_tokens=5)
    await backend.done("leave-1")


async def test_a_request_that_no_client_resumes_is_counted_all_the_same(
    payer: Client, backend: Backend, usage: Usage
) -> None:
    backend.reader_replies["leave-2"] = KEPT
    stream, job = await payer.begin(backend, "leave-2", resume_window_s=60)
    stream.cancel()
    await until(lambda: bool(backend.left("leave-2")))
    await backend.say(job, tokens(1, 8), finished(9, attempt=job.attempt_id))
    await until_counted(usage, requests=1, completion_tokens=9)
    await backend.done("leave-2")


async def test_who_hangs_up_is_counted_by_the_terminal_chunk(
    payer: Client, backend: Backend, usage: Usage
) -> None:
    """Tokens that were generated before the cancel took effect count, though no client read them."""
    backend.reader_replies["leave-3"] = scheduler_pb2.ReaderReply(was_found=True, may_cancel=True)
    stream, job = await payer.begin(backend, "leave-3")
    stream.cancel()
    await until(lambda: "leave-3" in backend.cancelled)
    assert job.attempt_id in backend.cancelled_attempts
    await backend.say(job, tokens(1, 5), finished(6, reason=CANCELLED, attempt=job.attempt_id))
    await until_counted(usage, requests=1, completion_tokens=6)
    await backend.done("leave-3")


async def test_a_reader_that_leaves_is_not_the_last(payer: Client, backend: Backend, usage: Usage) -> None:
    first, job = await payer.begin(backend, "second-1")
    second = payer.resume("second-1", 1)
    await backend.say(job, tokens(1))
    await second.until_tokens()
    first.cancel()
    await backend.say(job, tokens(2))
    await second.until_tokens()
    # What a reader's leaving leads to goes the way of this one, and would have come before.
    third = payer.generate("second-2")
    await backend.job("second-2")
    third.cancel()
    await until(lambda: bool(backend.left("second-2")))
    assert not backend.left("second-1")
    assert "second-1" not in backend.cancelled
    await backend.say(job, tokens(3), finished(4, attempt=job.attempt_id))
    assert ids_of(await second.rest()) == [3]
    await until_counted(usage, completion_tokens=4)
    for request_id in ("second-1", "second-2"):
        await backend.done(request_id)


async def test_an_offset_is_never_billed_and_ends_no_other_reader(
    payer: Client, backend: Backend, usage: Usage
) -> None:
    first, job = await payer.begin(backend, "offset-1")
    greedy = payer.resume("offset-1", 4_294_967_290)
    await until(lambda: any(n.joined.request.request_id == "offset-1" for n in backend.reader_notices))
    await backend.say(job, tokens(1))
    greedy.cancel()
    await first.until_tokens()
    await backend.say(job, tokens(2), finished(3, attempt=job.attempt_id))
    assert ids_of(await first.rest()) == [2]
    assert "offset-1" not in backend.cancelled
    await until_counted(usage, requests=1, completion_tokens=3)
    await backend.done("offset-1")


async def test_an_offset_beyond_the_end_is_refused_by_name(
    payer: Client, backend: Backend, usage: Usage
) -> None:
    stream = payer.generate("offset-2")
    job = await backend.job("offset-2")
    waiting = payer.resume("offset-2", 9)  # while it runs, the tokens may still come
    await until(lambda: any(n.joined.request.request_id == "offset-2" for n in backend.reader_notices))
    await backend.say(job, tokens(0, 3), finished(4, attempt=job.attempt_id))
    await stream.rest()
    for late in (waiting, payer.resume("offset-2", 5), payer.resume("offset-2", 4_294_967_290)):
        error = await late.error()
        assert isinstance(error, InvalidArgument)
        assert (error.field, error.reason) == ("offset", "OFFSET_BEYOND_END")
    assert ids_of(await payer.resume("offset-2", 4).rest()) == []
    await until_counted(usage, requests=1, completion_tokens=4)
    await backend.done("offset-2")


async def test_without_a_scheduler_the_workers_are_told_at_once(
    private_client: Client, private_backend: Backend
) -> None:
    assert private_backend.readers is not None
    await private_backend.readers.close()
    stream, job = await private_client.begin(private_backend, "alone-1")
    stream.cancel()
    await until(lambda: private_backend.cancelled_attempts == [job.attempt_id])


async def test_a_client_that_left_during_an_outage_ends_only_its_own_reading(
    private_client: Client, private_nats: ServerProcess, private_backend: Backend
) -> None:
    """No cancel notice waits for the connection: by then the request may have been resumed elsewhere."""
    private_backend.reader_replies["outage-1"] = KEPT
    stream, job = await private_client.begin(private_backend, "outage-1")
    private_nats.kill()
    await private_client.gateway.wait_ready(ready=False)
    stream.cancel()
    await until(lambda: bool(private_client.gateway.audit("outage-1")))
    await asyncio.to_thread(private_nats.restart)
    await until(lambda: bool(private_backend.left("outage-1")))
    assert private_backend.left("outage-1")[0].request.attempt_id == job.attempt_id
    assert private_backend.cancelled == []


async def test_a_leaving_gateway_says_so_and_settles_what_it_saw(
    start_gateway: StartGateway,
    nats_url: str,
    backend: Backend,
    payer: Client,
    usage: Usage,
) -> None:
    leaving = await start_gateway(nats_url, INFERFLUX_DRAIN_LIMIT_S="0.3")
    backend.reader_replies["hand-1"] = KEPT
    stream = Client(leaving, payer.key).generate("hand-1", resume_window_s=60)
    job = await backend.job("hand-1")
    await backend.say(job, tokens(0))
    await stream.until_tokens()
    leaving.terminate()
    await stream.error()
    assert await leaving.ended() == 0
    assert [left.is_handed_over for left in backend.left("hand-1")] == [True]
    await until_counted(usage, requests=1, completion_tokens=1)
    resumed = payer.resume("hand-1", 1)
    await backend.say(job, tokens(1), finished(2, attempt=job.attempt_id))
    assert ids_of(await resumed.rest()) == [1]
    await until_counted(usage, requests=1, completion_tokens=2)
    await backend.done("hand-1")


async def test_a_leaving_gateway_settles_what_it_saw_of_requests_that_run_unread(
    start_gateway: StartGateway, nats_url: str, backend: Backend, payer: Client, usage: Usage
) -> None:
    leaving = await start_gateway(nats_url, INFERFLUX_DRAIN_LIMIT_S="8")
    # Another id if it is tried again: this one is known then. What is said has to come before the limit.
    request_id = f"hand-{secrets.token_hex(4)}"
    backend.reader_replies[request_id] = KEPT
    stream = Client(leaving, payer.key).generate(request_id, resume_window_s=60)
    job = await backend.job(request_id)
    await backend.say(job, tokens(0))
    await stream.until_tokens()
    stream.cancel()
    await until(lambda: bool(backend.left(request_id)))
    await backend.say(job, tokens(1, 4))
    leaving.terminate()
    assert await leaving.ended() == 0
    await until_counted(usage, requests=1, completion_tokens=5)
    await backend.done(request_id)


@pytest.mark.parametrize("window_s", [0, 60])
async def test_unread_requests_hold_their_places(
    start_gateway: StartGateway, nats_url: str, backend: Backend, key: str, window_s: int
) -> None:
    """A client that opens streams and hangs up takes no more of a gateway than one that stays."""
    small = await start_gateway(nats_url, INFERFLUX_GATEWAY_MAX_STREAMS="1")
    client = Client(small, key)
    request_id = f"place-{window_s}"
    backend.reader_replies[request_id] = KEPT
    stream, job = await client.begin(backend, request_id, resume_window_s=window_s)
    stream.cancel()
    await until(lambda: bool(backend.left(request_id)))
    assert (await client.generate(f"refused-{window_s}").error()).reason == "TOO_MANY_STREAMS"
    await backend.finish(job, n=2, offset=1)

    async def is_served() -> bool:
        """Whether a request gets a place; it ends at once."""
        request_id = f"place-{secrets.token_hex(4)}"
        reading = asyncio.create_task(client.generate(request_id).rest())
        await until(lambda: reading.done() or request_id in backend.jobs)
        if request_id in backend.jobs:
            await backend.finish(backend.jobs[request_id], n=1)
        return not isinstance((await asyncio.gather(reading, return_exceptions=True))[0], BaseException)

    await until(is_served)


async def test_the_audit_line_of_who_hangs_up_has_the_usage_that_is_settled(
    gateway: GatewayProcess, payer: Client, backend: Backend, usage: Usage
) -> None:
    backend.reader_replies["late-usage-1"] = KEPT
    stream, job = await payer.begin(backend, "late-usage-1", resume_window_s=60)
    stream.cancel()
    await until(lambda: bool(backend.left("late-usage-1")))
    await backend.say(job, tokens(1, 4), finished(5, attempt=job.attempt_id))
    await until_counted(usage, requests=1, completion_tokens=5)
    await until(lambda: bool(gateway.audit("late-usage-1")))
    (line,) = gateway.audit("late-usage-1")
    assert (line["outcome"], line["completion_tokens"]) == ("left", 5)


async def test_a_client_that_stops_resuming_leaves_at_the_scheduler(client: Client, backend: Backend) -> None:
    backend.reader_replies["stop-1"] = KEPT
    resumed = client.resume("stop-1", 0)
    await until(lambda: any(n.joined.request.request_id == "stop-1" for n in backend.reader_notices))
    resumed.cancel()
    await until(lambda: bool(backend.left("stop-1")))
    assert not backend.left("stop-1")[0].is_handed_over
    assert "stop-1" not in backend.cancelled
