"""The answer cache with every process: what is asked again is answered alike, and no worker computes it."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator

import pytest
from harness.client import Answer, Client, Request, countdown, prompt
from harness.inferctl import run

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.calls import grpc_client
from inferflux.v1 import generation_pb2, inference_pb2, policy_pb2, policy_pb2_grpc

pytestmark = pytest.mark.e2e

LENGTH = generation_pb2.FINISH_REASON_LENGTH
STOP = generation_pb2.FINISH_REASON_STOP


@pytest.fixture(scope="module")
async def stack() -> AsyncIterator[Stack]:
    env = {
        "INFERFLUX_GATEWAY_ANSWER_CACHE_BYTES": str(8 << 20),
        # Other tests may take the machine's time meanwhile.
        "INFERFLUX_GATEWAY_ANSWER_CACHE_WAIT_S": "1",
    }
    async with Stack(StackOptions(service_env={"gateway": env})) as running:
        yield running


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310
        return str(reply.read().decode())


async def metric(stack: Stack, process: str, name: str) -> float:
    text = await asyncio.to_thread(read, f"http://{stack.metrics[process]}/metrics")
    return sum(float(v) for v in re.findall(rf"^inferflux_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


async def computed_tokens(stack: Stack) -> float:
    """Tokens that the worker has decoded, or prefilled, so far."""
    names = ("engine_prefill_tokens_total", "engine_decode_tokens_total")
    return sum([await metric(stack, "worker-0", name) for name in names])


async def compute(stack: Stack, client: Client, request: Request) -> Answer:
    """Have it computed, and wait until its answer is kept."""
    async with asyncio.timeout(30):
        while not await metric(stack, "gateway", "answer_cache_up"):
            await asyncio.sleep(0.02)
    before = await metric(stack, "gateway", "answer_cache_bytes")
    answer = await client.ask(request)
    assert not is_cached(answer)
    async with asyncio.timeout(30):
        while await metric(stack, "gateway", "answer_cache_bytes") <= before:
            await asyncio.sleep(0.02)
    return answer


def is_cached(answer: Answer) -> bool:
    assert answer.terminal is not None
    usage = answer.terminal.usage
    assert usage.cached_completion_tokens in (0, usage.completion_tokens)
    return usage.cached_completion_tokens > 0


def shorter(request: inference_pb2.ChatRequest, max_tokens: int) -> inference_pb2.ChatRequest:
    changed = inference_pb2.ChatRequest()
    changed.CopyFrom(request)
    changed.params.max_tokens = max_tokens
    return changed


def skipping(request: inference_pb2.ChatRequest) -> inference_pb2.ChatRequest:
    changed = inference_pb2.ChatRequest()
    changed.CopyFrom(request)
    changed.skip_answer_cache = True
    return changed


async def make_key(stack: Stack, **fields: object) -> str:
    address = stack.processes["policy"].spec.env["INFERFLUX_POLICY_LISTEN"]
    async with grpc_client.channel(address) as channel:
        stub = policy_pb2_grpc.PolicyServiceStub(channel)
        request = policy_pb2.CreateApiKeyRequest(name="test", scopes=["inference"])
        request.MergeFrom(policy_pb2.CreateApiKeyRequest(**fields))  # type: ignore[arg-type]
        made = await stub.CreateApiKey(request, metadata=grpc_client.outgoing(api_key=stack.api_key))
        return made.secret


async def test_a_greedy_request_asked_again_is_answered_alike_and_costs_no_worker(
    stack: Stack, client: Client
) -> None:
    request = countdown(30)
    first = await compute(stack, client, request)
    await client.until_idle()
    work = await computed_tokens(stack)
    second = await client.ask(request)
    assert (second.token_ids, second.text) == (first.token_ids, first.text)
    assert first.terminal is not None
    assert second.terminal is not None
    assert second.terminal.reason == first.terminal.reason == STOP
    assert is_cached(second)
    assert await computed_tokens(stack) == work


async def test_a_shorter_answer_is_the_computed_one(stack: Stack, client: Client) -> None:
    request = countdown(29)
    await compute(stack, client, request)
    for max_tokens in (1, 5, 17):
        asked = shorter(request, max_tokens)
        cached, computed = await client.ask(asked), await client.ask(skipping(asked))
        assert (is_cached(cached), is_cached(computed)) == (True, False)
        assert (cached.token_ids, cached.text) == (computed.token_ids, computed.text)
        assert cached.terminal is not None
        assert cached.terminal.reason == LENGTH


async def test_an_answer_with_stop_strings_is_cut_where_a_worker_would_hold_text_back(
    stack: Stack, client: Client
) -> None:
    request = countdown(28)
    request.params.stop.append("25, 24, 2X")  # all but its end comes
    await compute(stack, client, request)
    for max_tokens in range(1, 40):
        asked = shorter(request, max_tokens)
        cached, computed = await client.ask(asked), await client.ask(skipping(asked))
        assert is_cached(cached)
        assert (cached.token_ids, cached.text) == (computed.token_ids, computed.text)


async def test_another_tenant_and_a_key_that_skips_the_cache_compute(stack: Stack, client: Client) -> None:
    request = countdown(27)
    await compute(stack, client, request)
    for fields, is_hit in (
        ({"tenant": "other"}, False),
        ({"tenant": "default", "skip_answer_cache": True}, False),
        ({"tenant": "default"}, True),
    ):
        caller = Client(stack.endpoint, await make_key(stack, **fields))
        assert is_cached(await caller.ask(request)) is is_hit
        await caller.close()
    assert not is_cached(await client.ask(skipping(request)))


async def test_inferctl_says_that_an_answer_comes_from_the_cache(stack: Stack) -> None:
    env = {"INFERFLUX_ENDPOINT": stack.endpoint, "INFERFLUX_API_KEY": stack.api_key}
    arguments = ("complete", "--temperature", "0", "--max-tokens", "8", "--stats", "It was")
    first = await run(*arguments, env=env)
    assert "cache" not in first.stderr
    async with asyncio.timeout(30):
        while "from the answer cache" not in (again := await run(*arguments, env=env)).stderr:
            pass
    assert again.stdout == first.stdout


async def test_inferctl_has_an_answer_computed_that_is_kept(stack: Stack) -> None:
    env = {"INFERFLUX_ENDPOINT": stack.endpoint, "INFERFLUX_API_KEY": stack.api_key}
    arguments = ("complete", "--temperature", "0", "--max-tokens", "8", "--stats", "Not again")
    await run(*arguments, env=env)
    async with asyncio.timeout(30):
        while "from the answer cache" not in (await run(*arguments, env=env)).stderr:
            pass
    skipping_it = await run(*arguments, "--skip-answer-cache", env=env)
    assert skipping_it.returncode == 0
    assert "cache" not in skipping_it.stderr


async def test_what_an_operator_clears_is_computed_again_and_what_runs_goes_on(
    stack: Stack, client: Client
) -> None:
    env = {"INFERFLUX_ENDPOINT": stack.endpoint, "INFERFLUX_API_KEY": stack.api_key}
    request = countdown(26)
    first = await compute(stack, client, request)
    assert is_cached(await client.ask(request))
    answer = Answer()
    running = asyncio.create_task(client.ask(prompt("Epic:", max_tokens=1500), answer=answer))
    async with asyncio.timeout(30):
        await answer.first_token.wait()
    result = await run("admin", "cache", "clear", "--json", env=env)
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    (worker,) = said["workers"]
    assert worker["worker_id"] == "worker-0"
    assert worker["cleared"]["cells"] > 0
    assert int(said["answers"]["answers"]) > 0
    assert int(said["answers"]["bytes"]) > 0
    again = await client.ask(request)
    assert not is_cached(again)
    assert again.terminal is not None
    assert again.terminal.usage.cached_prompt_tokens == 0
    assert (again.token_ids, again.text) == (first.token_ids, first.text)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert answer.epochs == {1}
    await client.until_idle()
    table = await run("admin", "cache", "clear", "--prefixes", "--tiers", env=env)
    assert table.returncode == 0, table.stderr
    assert "worker-0" in table.stdout
    await client.until_status(lambda s: s.scheduler.workers[0].status.kv_cells_cached == 0)
