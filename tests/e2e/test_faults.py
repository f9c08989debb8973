"""Every process, real servers, and something killed: what a client sees."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
import nats
import pytest
from harness.breakable_stack import BreakableStack
from harness.children import ENGINE, child_of
from harness.client import Answer, Client, Request, countdown, prompt, undisturbed
from harness.keys import key_of

from inferflux.cli.stack import Stack
from inferflux.common.contract.subjects import STREAMS
from inferflux.v1 import inference_pb2

pytestmark = pytest.mark.e2e

STARTS = (30, 29, 28, 27)
GREEDY: dict[str, Any] = {}
SEEDED: dict[str, Any] = {"temperature": 1.5, "seed": 7}
UNSURE = ("Winter garden", "Copper and salt", "Why is there", "Old paper bridge", "The doctor of the island")


@pytest.fixture(scope="module")
async def breakable() -> AsyncIterator[BreakableStack]:
    async with BreakableStack() as stack:
        yield stack


@pytest.fixture
async def stack(breakable: BreakableStack) -> Stack:
    """Two workers; what is killed stays dead unless the test starts it again."""
    return await breakable.whole()


def countdowns() -> list[inference_pb2.ChatRequest]:
    return [countdown(start, end) for start in STARTS for end in (1, 2)]


def endless() -> list[inference_pb2.GenerateRequest]:
    """Requests that run for as long as the test needs."""
    return [prompt(f"Story number {i}:", max_tokens=1900) for i in range(4)]


async def references(client: Client) -> list[Answer]:
    """What the requests answer when nothing goes wrong."""
    return await undisturbed(client, countdowns())


class Running:
    """Streams under way: `started` when each has a token, `finish` for their answers."""

    def __init__(self, client: Client, requests: Sequence[Request], *, prefix: str) -> None:
        self.answers = [Answer() for _ in requests]
        self._tasks = [
            asyncio.create_task(client.ask(request, request_id=f"{prefix}-{i}", answer=answer))
            for i, (request, answer) in enumerate(zip(requests, self.answers, strict=True))
        ]

    async def started(self) -> None:
        async with asyncio.timeout(60):  # two cores may have much else to do
            for answer in self.answers:
                await answer.first_token.wait()

    async def finish(self) -> list[Answer]:
        async with asyncio.timeout(60):
            return await asyncio.gather(*self._tasks)


def assert_same(answers: list[Answer], expected: list[Answer]) -> None:
    for answer, reference in zip(answers, expected, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.text == reference.text
        assert answer.terminal is not None


async def test_a_killed_workers_streams_go_on_elsewhere_as_if_nothing_had_happened(
    stack: Stack, client: Client
) -> None:
    expected = await references(client)
    running = Running(client, countdowns(), prefix="killed")
    await running.started()
    await stack.kill(running.answers[0].worker_ids[0])
    answers = await running.finish()
    assert_same(answers, expected)
    moved = [a for a in answers if len(a.epochs) > 1]
    assert moved, "the killed worker had none of the streams"
    await client.until_idle()


@pytest.mark.parametrize("is_the_keys", [False, True])
async def test_deterministic_streams_of_a_killed_worker_go_on_with_the_very_same_tokens(
    stack: Stack, client: Client, is_the_keys: bool
) -> None:
    """Greedy and seeded ones of which the model is not sure. Undisturbed, one runs at a time."""
    asker = Client(stack.endpoint, await key_of(stack, "same", deterministic=True)) if is_the_keys else client
    requests = [
        prompt(f"{words} {i}", max_tokens=48, **sampling)
        for i, words in enumerate(UNSURE)
        for sampling in (GREEDY, SEEDED)
    ]
    for request in requests:
        if not is_the_keys:
            request.params.deterministic = True
    expected = [await asker.ask(request) for request in requests]
    running = Running(asker, requests, prefix=f"same-{is_the_keys}")
    await running.started()
    await stack.kill(running.answers[0].worker_ids[0])
    answers = await running.finish()
    assert_same(answers, expected)
    assert any(len(answer.epochs) > 1 for answer in answers), "the killed worker had none of the streams"
    await client.until_idle()


async def test_a_killed_engines_streams_go_on_elsewhere(stack: Stack, client: Client) -> None:
    expected = await references(client)
    running = Running(client, countdowns(), prefix="engine")
    await running.started()
    worker = stack.processes[running.answers[0].worker_ids[0]].pid
    engine = child_of(worker, ENGINE)
    assert engine is not None
    os.kill(engine, signal.SIGKILL)
    assert_same(await running.finish(), expected)
    await client.until_idle()


async def test_without_any_worker_left_requests_end_unavailable_in_bounded_time(
    stack: Stack, client: Client
) -> None:
    running = Running(client, endless(), prefix="unowned")
    await running.started()
    await stack.kill("worker-0")
    await stack.kill("worker-1")
    began = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.finish()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert time.monotonic() - began < 30
    await client.until_status(lambda s: s.scheduler.queued == 0 and s.scheduler.running == 0)


async def test_running_streams_survive_a_restart_of_nats(stack: Stack, client: Client) -> None:
    expected = await references(client)
    running = Running(client, countdowns(), prefix="nats")
    await running.started()
    await stack.restart("nats")
    assert_same(await running.finish(), expected)
    await client.until_idle()
    assert (await client.ask(prompt(max_tokens=4))).terminal is not None


async def test_running_streams_survive_the_deletion_of_every_jetstream_stream(
    stack: Stack, client: Client
) -> None:
    expected = await references(client)
    running = Running(client, countdowns(), prefix="deleted")
    await running.started()
    operator = await nats.connect(stack.nats_url)
    for stream in STREAMS:
        await operator.jetstream().delete_stream(stream)
    await operator.close()
    assert_same(await running.finish(), expected)
    await _until_served(client)
    await client.until_idle()


async def test_without_redis_running_streams_go_on_and_new_ones_are_refused_until_it_is_back(
    stack: Stack, client: Client
) -> None:
    expected = await references(client)
    running = Running(client, countdowns(), prefix="redis")
    await running.started()
    await stack.kill("valkey")
    async with asyncio.timeout(20):
        # Policy's last answer about this key holds for a quarter of a second.
        while (code := await _code_of(client)) is grpc.StatusCode.OK:
            pass
    assert code is grpc.StatusCode.UNAVAILABLE
    await stack.restart("valkey")
    assert_same(await running.finish(), expected)
    await _until_served(client)
    await client.until_idle()


async def test_running_streams_do_not_notice_a_restart_of_the_scheduler(stack: Stack, client: Client) -> None:
    expected = await references(client)
    running = Running(client, countdowns(), prefix="scheduler")
    await running.started()
    await stack.kill("scheduler")
    late = asyncio.create_task(client.ask(prompt("Late", max_tokens=8)))
    await stack.restart("scheduler")
    answers = await running.finish()
    assert_same(answers, expected)
    assert all(answer.epochs == {1} for answer in answers)
    assert (await late).terminal is not None
    await client.until_idle()


async def test_after_the_gateway_died_a_client_gets_the_rest_from_the_next(
    stack: Stack, client: Client
) -> None:
    expected = (await references(client))[0]
    answer = Answer()
    task = asyncio.create_task(client.ask(countdowns()[0], request_id="resumed", answer=answer))
    async with asyncio.timeout(30):
        await answer.first_token.wait()
    await stack.kill("gateway")
    with pytest.raises(grpc.aio.AioRpcError):
        await task
    await stack.restart("gateway")
    fresh = Client(stack.endpoint, stack.api_key)
    request = inference_pb2.ResumeRequest(request_id="resumed", offset=len(answer.token_ids))
    async for response in fresh.inference.Resume(request, metadata=fresh.metadata(), wait_for_ready=True):
        answer.add(response.chunk)
    await fresh.close()
    assert answer.token_ids == expected.token_ids
    assert answer.text == expected.text


async def test_what_a_dead_engine_had_published_is_there_again_after_nats_has_lost_it(
    stack: Stack, client: Client
) -> None:
    expected = (await references(client))[0]
    answer = Answer()
    task = asyncio.create_task(client.ask(countdowns()[0], request_id="twice", answer=answer))
    async with asyncio.timeout(30):
        await answer.first_token.wait()
    engine = child_of(stack.processes[answer.worker_ids[0]].pid, ENGINE)
    assert engine is not None
    os.kill(engine, signal.SIGKILL)
    await task
    assert len(answer.epochs) > 1
    await stack.kill("gateway")  # it has read the answer
    await stack.restart("nats")
    await stack.restart("gateway")
    fresh, again = Client(stack.endpoint, stack.api_key), Answer()
    request = inference_pb2.ResumeRequest(request_id="twice")
    async with asyncio.timeout(30):
        async for response in fresh.inference.Resume(request, metadata=fresh.metadata(), wait_for_ready=True):
            again.add(response.chunk)
    await fresh.close()
    assert_same([again], [expected])


async def test_a_client_that_goes_away_frees_its_slot(stack: Stack, client: Client) -> None:
    running = Running(client, endless(), prefix="vanish")
    await running.started()
    await client.close()
    other = Client(stack.endpoint, stack.api_key)
    await other.until_idle()
    await other.close()
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError, grpc.aio.UsageError)):
        await running.finish()


async def _until_served(client: Client) -> None:
    """Return once a request succeeds; until then it is refused as unavailable and nothing else."""
    async with asyncio.timeout(20):
        while (code := await _code_of(client)) is not grpc.StatusCode.OK:
            assert code is grpc.StatusCode.UNAVAILABLE
            await asyncio.sleep(0.05)


async def _code_of(client: Client) -> grpc.StatusCode:
    try:
        await client.ask(prompt(max_tokens=4))
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
