"""A worker is killed with long prompts on it: what is cached anywhere of them is not computed again."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from harness.children import ENGINE, child_of, has_ended
from harness.client import MODEL, Answer, Client

from inferflux.cli.stack import Stack, StackOptions
from inferflux.v1 import admin_pb2, generation_pb2, inference_pb2

pytestmark = [pytest.mark.e2e]

STREAMS = 8
SHARED_TOKENS = 480
OWN_TOKENS = 160
ANSWER_TOKENS = 700
LIMIT_S = 90.0


def options(directory: Path, *, workers: int = 2, **variables: str) -> StackOptions:
    env = {f"INFERFLUX_WORKER_{name}": value for name, value in variables.items()}
    return StackOptions(
        workers=workers,
        slots=STREAMS,
        threads=1,
        kv_cells=16384,
        restarts=False,
        state_dir=directory / "state",
        # A worker may take long to start on a busy machine.
        service_env={"worker": env, "scheduler": {"INFERFLUX_SCHEDULER_NO_WORKER_TIMEOUT_S": "60"}},
    )


def prompts(shared: int) -> list[list[int]]:
    """One for each stream; they begin with as many tokens that are the same."""
    draw = np.random.default_rng(5)
    beginning = draw.integers(300, 1900, shared).tolist()
    n_own = SHARED_TOKENS + OWN_TOKENS - shared
    return [beginning + draw.integers(300, 1900, n_own).tolist() for _ in range(STREAMS)]


def request_of(prompt: Sequence[int], max_tokens: int = ANSWER_TOKENS) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        model=MODEL,
        token_ids=inference_pb2.TokenIds(ids=prompt),
        params=generation_pb2.GenerationParams(
            max_tokens=max_tokens,
            ignore_eos=True,
            sampling=generation_pb2.SamplingParams(temperature=0.0),
        ),
    )


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310
        return str(reply.read().decode())


async def metric(stack: Stack, process: str, name: str) -> float:
    text = await asyncio.to_thread(read, f"http://{stack.metrics[process]}/metrics")
    return sum(float(v) for v in re.findall(rf"^inferflux_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


async def set_draining(client: Client, worker_id: str, *, undo: bool = False) -> None:
    if undo:
        request = admin_pb2.UndrainWorkerRequest(worker_id=worker_id)
        await client.admin.UndrainWorker(request, metadata=client.metadata())
        return
    drain = admin_pb2.DrainWorkerRequest(worker_id=worker_id)
    async for _ in client.admin.DrainWorker(drain, metadata=client.metadata()):
        pass


class Underway:
    """Streams that all run on one worker."""

    def __init__(self, client: Client, asked: Sequence[Sequence[int]]) -> None:
        self.answers = [Answer() for _ in asked]
        self._tasks = [
            asyncio.create_task(client.ask(request_of(prompt), answer=answer))
            for prompt, answer in zip(asked, self.answers, strict=True)
        ]

    async def have_begun(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            for answer in self.answers:
                await answer.first_token.wait()

    async def end(self) -> None:
        """All end whole, and none of them before the kill."""
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*self._tasks)
        for answer in self.answers:
            assert len(answer.token_ids) == ANSWER_TOKENS
            assert max(answer.epochs) == 2, "it ended too early"


async def found_part(stack: Stack, process: str) -> float:
    """Of the tokens of lost requests, those that did not have to be computed again."""
    tokens = await metric(stack, process, "retried_tokens_total")
    assert tokens >= STREAMS * (SHARED_TOKENS + OWN_TOKENS)
    return await metric(stack, process, "retried_found_tokens_total") / tokens


@pytest.mark.long
async def test_another_worker_of_the_machine_goes_on_with_what_the_dead_one_put_on_disk(
    tmp_path: Path,
) -> None:
    kv = tmp_path / "kv"
    made = options(tmp_path, DISK_PATH=str(kv), DISK_PROMPT_TOKENS="256")
    async with Stack(made) as stack:
        client = Client(stack.endpoint, stack.api_key)
        await set_draining(client, "worker-1")
        underway = Underway(client, prompts(0))
        await underway.have_begun()
        async with asyncio.timeout(LIMIT_S):
            while len(list(kv.glob("*/*.kv"))) < STREAMS:
                await asyncio.sleep(0.02)
        await set_draining(client, "worker-1", undo=True)
        await stack.kill("worker-0")
        await underway.end()
        assert {answer.worker_ids[-1] for answer in underway.answers} == {"worker-1"}
        assert await found_part(stack, "worker-1") > 0.5
        assert await metric(stack, "worker-1", "kv_tier_hits_total") > 0
        await client.close()


@pytest.mark.long
async def test_a_worker_that_starts_again_goes_on_with_what_it_had_put_on_disk(tmp_path: Path) -> None:
    kv = tmp_path / "kv"
    made = options(tmp_path, workers=1, DISK_PATH=str(kv), DISK_PROMPT_TOKENS="256")
    async with Stack(made) as stack:
        client = Client(stack.endpoint, stack.api_key)
        underway = Underway(client, prompts(0))
        await underway.have_begun()
        async with asyncio.timeout(LIMIT_S):
            while len(list(kv.glob("*/*.kv"))) < STREAMS:
                await asyncio.sleep(0.02)
        await stack.kill("worker-0")
        await stack.restart("worker-0")
        await underway.end()
        assert await found_part(stack, "worker-0") > 0.5
        await client.close()


async def test_a_killed_worker_that_starts_again_goes_on_where_its_requests_were(tmp_path: Path) -> None:
    """Its engine put prompts and generated tokens on disk when the worker was gone."""
    made = options(tmp_path, workers=1, DISK_PATH=str(tmp_path / "kv"))
    async with Stack(made) as stack:
        client = Client(stack.endpoint, stack.api_key)
        underway = Underway(client, prompts(0))
        await underway.have_begun()
        engine_pid = child_of(stack.processes["worker-0"].pid, ENGINE)
        assert engine_pid is not None
        engine = psutil.Process(engine_pid)
        await stack.kill("worker-0")
        async with asyncio.timeout(LIMIT_S):
            while not has_ended(engine):
                await asyncio.sleep(0.02)
        await stack.restart("worker-0")
        await underway.end()
        assert await found_part(stack, "worker-0") > 0.9
        await client.close()


@pytest.mark.long
async def test_another_worker_goes_on_with_the_beginning_that_it_shares(tmp_path: Path) -> None:
    """Without any disk: a system prompt that both have computed."""
    asked = prompts(SHARED_TOKENS)
    async with Stack(options(tmp_path)) as stack:
        client = Client(stack.endpoint, stack.api_key)
        await set_draining(client, "worker-0")
        await client.ask(request_of(asked[0][:SHARED_TOKENS], max_tokens=1))
        await set_draining(client, "worker-0", undo=True)
        await set_draining(client, "worker-1")
        underway = Underway(client, asked)
        await underway.have_begun()
        await set_draining(client, "worker-1", undo=True)
        await stack.kill("worker-0")
        await underway.end()
        assert await found_part(stack, "worker-1") > 0.3
        await client.close()


@pytest.mark.parametrize("way", ["killed", "stopped", "drained"])
async def test_another_worker_goes_on_with_what_is_left_in_shared_memory(tmp_path: Path, way: str) -> None:
    """As workers are set up by default: without a disk tier."""
    made = options(tmp_path)
    services = {**made.service_env, "worker": {"INFERFLUX_DRAIN_LIMIT_S": "0.1"}}
    made = replace(made, service_env=services)
    async with Stack(made) as stack:
        client = Client(stack.endpoint, stack.api_key)
        await set_draining(client, "worker-1")
        underway = Underway(client, prompts(0))
        await underway.have_begun()
        await set_draining(client, "worker-1", undo=True)
        if way == "killed":
            await stack.kill("worker-0")
        elif way == "stopped":
            os.kill(stack.processes["worker-0"].pid, signal.SIGTERM)
        else:
            drain = admin_pb2.DrainWorkerRequest(worker_id="worker-0", hand_over_after_ms=0)
            async for _ in client.admin.DrainWorker(drain, metadata=client.metadata()):
                pass
        await underway.end()
        assert {answer.worker_ids[-1] for answer in underway.answers} == {"worker-1"}
        assert await found_part(stack, "worker-1") > 0.9
        await client.close()
