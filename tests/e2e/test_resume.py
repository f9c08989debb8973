"""Clients whose connection is lost, with every process: what goes on, what ends, and what is counted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio
from harness.another_gateway import another_gateway
from harness.client import MODEL, Answer, Client, countdown, prompt, undisturbed
from harness.cuttable import CuttableProxy
from harness.inferctl import run
from harness.keys import key_of

from inferflux.cli.stack import Stack, StackOptions
from inferflux.policy.storage.usage_store import UsageStore
from inferflux.v1 import generation_pb2, inference_pb2

pytestmark = pytest.mark.e2e

LENGTH = generation_pb2.FINISH_REASON_LENGTH
CANCELLED = generation_pb2.FINISH_REASON_CANCELLED
STARTS = (30, 29, 28, 27, 26)
LONG_TOKENS = 700
# An answer that the model is sure of: which cells it lies in changes the last bits of the logits.
SURE_ANSWER = (
    "chat",
    "--model",
    MODEL,
    "--temperature",
    "0",
    "--max-tokens",
    "300",
    "Count down from 30 to 1.",
)
# Bytes to a client: far more than the start of an answer, and far less than all of it.
CUT_AFTER = 1000
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
async def stack() -> AsyncIterator[Stack]:
    """Few threads, so that streams are under way for a while."""
    async with Stack(StackOptions(slots=12, threads=1)) as running:
        yield running


@pytest.fixture
async def other(stack: Stack) -> AsyncIterator[Client]:
    """Speaks to a second gateway of the stack."""
    async with another_gateway(stack) as gateway:
        made = Client(gateway.endpoint, stack.api_key)
        yield made
        await made.close()


async def resumed(client: Client, request_id: str, answer: Answer) -> Answer:
    """The rest of an answer."""
    request = inference_pb2.ResumeRequest(request_id=request_id, offset=len(answer.token_ids))
    async for response in client.inference.Resume(request, metadata=client.metadata()):
        answer.add(response.chunk)
    return answer


async def test_streams_of_a_gateway_that_was_cut_off_are_resumed_at_another(
    stack: Stack, client: Client, other: Client
) -> None:
    """It stands still for longer than a worker may, and finds its clients gone when it goes on."""
    requests = [countdown(start, end) for start in STARTS for end in (1, 2)]
    expected = await undisturbed(client, requests)
    answers = [Answer() for _ in requests]
    lost = Client(stack.endpoint, stack.api_key)
    asking = []
    for i, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        request.resume_window_s = 60
        asking.append(asyncio.create_task(lost.ask(request, request_id=f"cut-{i}", answer=answer)))
    long = prompt("Tell me a story", max_tokens=LONG_TOKENS)
    long.resume_window_s = 60
    story = Answer()
    asking.append(asyncio.create_task(lost.ask(long, request_id="cut-long", answer=story)))
    async with asyncio.timeout(60):
        for answer in [*answers, story]:
            await answer.first_token.wait()
    gateway = stack.processes["gateway"].pid
    os.kill(gateway, signal.SIGSTOP)
    try:
        await lost.close()
        await asyncio.gather(*asking, return_exceptions=True)
        rest = asyncio.create_task(resumed(other, "cut-long", story))
        await asyncio.gather(*(resumed(other, f"cut-{i}", answer) for i, answer in enumerate(answers)))
        await asyncio.sleep(1)
    finally:
        os.kill(gateway, signal.SIGCONT)
    async with asyncio.timeout(120):
        await rest
    for answer, reference in zip(answers, expected, strict=True):
        assert answer.token_ids == reference.token_ids
        assert answer.text == reference.text
    assert story.terminal is not None
    assert (story.terminal.reason, len(story.token_ids)) == (LENGTH, LONG_TOKENS)


@pytest.mark.parametrize("window_s", [0, 60])
async def test_a_resumed_stream_outlives_its_first_connection(
    stack: Stack, client: Client, window_s: int
) -> None:
    request_id = f"first-{window_s}"
    answer = Answer()
    request = prompt("Tell me a story", max_tokens=LONG_TOKENS)
    request.resume_window_s = window_s
    async with CuttableProxy(stack.endpoint) as proxy:
        first = Client(proxy.endpoint, stack.api_key)
        asking = asyncio.create_task(first.ask(request, request_id=request_id, answer=answer))
        async with asyncio.timeout(60):
            await answer.first_token.wait()
        proxy.freeze()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        rest = asyncio.create_task(resumed(client, request_id, answer))
        n = len(answer.token_ids)
        async with asyncio.timeout(60):
            while len(answer.token_ids) == n:
                await asyncio.sleep(0.01)
        proxy.break_up()
        async with asyncio.timeout(120):
            await rest
        await first.close()
    assert answer.terminal is not None
    assert (answer.terminal.reason, len(answer.token_ids)) == (LENGTH, LONG_TOKENS)


async def test_requests_that_no_client_resumes_end_with_their_window_and_are_counted(
    stack: Stack, client: Client
) -> None:
    """Too many at once for any of them to be complete by then."""
    key = await key_of(stack, "leaver")
    leaving, later = Client(stack.endpoint, key), Client(stack.endpoint, key)
    answers = [Answer() for _ in range(12)]
    asking = []
    for i, answer in enumerate(answers):
        request = prompt(f"Story number {i}:", max_tokens=1900)
        request.resume_window_s = 1
        asking.append(asyncio.create_task(leaving.ask(request, request_id=f"unread-{i}", answer=answer)))
    async with asyncio.timeout(60):
        for answer in answers:
            await answer.first_token.wait()
    await leaving.close()
    await asyncio.gather(*asking, return_exceptions=True)
    await client.until_idle()
    n_tokens = 0
    for i in range(len(answers)):
        ended = (await resumed(later, f"unread-{i}", Answer())).terminal
        assert ended is not None
        assert ended.reason == CANCELLED
        n_tokens += ended.usage.completion_tokens
    await later.close()
    async with redis.asyncio.Redis.from_url(stack.redis_url) as connection:
        store = UsageStore(connection, timeout_s=5)
        async with asyncio.timeout(20):
            while (await store.usage("leaver")).get("requests") != len(answers):
                await asyncio.sleep(0.05)
        assert (await store.usage("leaver"))["completion_tokens"] == n_tokens


async def test_inferctl_resumes_by_itself_without_losing_or_repeating_a_token(stack: Stack) -> None:
    env = {"INFERFLUX_ENDPOINT": stack.endpoint, "INFERFLUX_API_KEY": stack.api_key}
    expected = await run(*SURE_ANSWER, env=env)
    async with CuttableProxy(stack.endpoint, breaks_after=CUT_AFTER) as proxy:
        through = {**env, "INFERFLUX_ENDPOINT": proxy.endpoint}
        result = await run(*SURE_ANSWER, "--resume-window", "60", env=through)
        assert proxy.has_broken
    assert result.returncode == 0, result.stderr
    assert result.stdout == expected.stdout


async def test_without_a_window_a_lost_connection_is_an_error_of_inferctl(stack: Stack) -> None:
    async with CuttableProxy(stack.endpoint, breaks_after=CUT_AFTER) as proxy:
        env = {"INFERFLUX_ENDPOINT": proxy.endpoint, "INFERFLUX_API_KEY": stack.api_key}
        result = await run(*SURE_ANSWER, env=env)
        assert proxy.has_broken
    assert result.returncode == 1


async def test_the_example_answers_with_and_without_a_window(stack: Stack) -> None:
    """With one the answer is whole though the connection was lost, without one it is cut short."""
    expected = await example(stack.endpoint, stack.api_key)
    assert expected.returncode == 0, expected.stderr
    for flags in ((), ("--resume-window", "60")):
        async with CuttableProxy(stack.endpoint, breaks_after=CUT_AFTER) as proxy:
            done = await example(proxy.endpoint, stack.api_key, *flags)
            assert proxy.has_broken
        assert (done.returncode == 0) == bool(flags), done.stderr
        assert (done.stdout == expected.stdout) == bool(flags)


async def example(endpoint: str, api_key: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """`examples/chat_client.py` on a long answer."""
    env = {**os.environ, "INFERFLUX_ENDPOINT": endpoint, "INFERFLUX_API_KEY": api_key}
    script = str(ROOT / "examples" / "chat_client.py")
    command = [sys.executable, script, *flags, "--model", MODEL, "Count down from 30 to 1."]
    return await asyncio.to_thread(
        subprocess.run, command, env=env, capture_output=True, text=True, timeout=60, check=False
    )
