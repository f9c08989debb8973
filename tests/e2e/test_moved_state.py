"""KV state goes from worker to worker, and no token changes: split prompts, moved streams, lost sides."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from chaos import caller
from chaos.workload import Order
from harness.children import ENGINE, child_of
from harness.client import Answer, Client, countdown, prompt

from inferflux.cli.stack import Stack, StackOptions
from inferflux.v1 import admin_pb2, cluster_pb2, generation_pb2, inference_pb2

pytestmark = [pytest.mark.e2e]

LIMIT_S = 90.0
# A countdown after others: of none of its tokens is the model in doubt, so any steps compute the same.
SURE = caller.asked(Order("", 28, 2, 0, 0, turns=6))
SURE_TOKENS = 40
# It draws other tokens than greedy answers have, and no error of a tenth in all logits changes it.
_DRAWN = {"temperature": 2.0, "top_k": 40, "top_p": 1.0, "min_p": 0.0, "seed": 158}
_PENALTIES = {"repeat_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1}
WAYS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "seeded": _DRAWN | _PENALTIES}


def options(directory: Path, *, roles: Sequence[str] = (), **variables: str) -> StackOptions:
    by_worker: dict[str, Mapping[str, str]] = {
        f"worker-{i}": {"INFERFLUX_ROLE": role} for i, role in enumerate(roles)
    }
    return StackOptions(
        workers=2,
        slots=8,
        threads=1,
        kv_cells=16384,
        restarts=False,
        state_dir=directory / "state",
        env={f"INFERFLUX_{name}": value for name, value in variables.items()},
        service_env={**by_worker, "scheduler": {"INFERFLUX_SCHEDULER_NO_WORKER_TIMEOUT_S": "60"}},
    )


def requests(tokens: int = SURE_TOKENS) -> list[inference_pb2.ChatRequest]:
    """One of each way."""
    found = []
    for way in WAYS.values():
        request = inference_pb2.ChatRequest()
        request.CopyFrom(SURE)
        request.params.MergeFrom(
            generation_pb2.GenerationParams(
                max_tokens=tokens, ignore_eos=True, sampling=generation_pb2.SamplingParams(**way)
            )
        )
        found.append(request)
    return found


async def alone(directory: Path, asked: Sequence[inference_pb2.ChatRequest]) -> list[list[int]]:
    """The tokens of each, by a worker that does all, one after the other."""
    async with Stack(options(directory)) as stack:
        client = Client(stack.endpoint, stack.api_key)
        answers = []
        for request in asked:
            answers.append(await client.ask(request))
            await clear_cache(client)
        await client.close()
    return [answer.token_ids for answer in answers]


async def move(client: Client, request_id: str, worker_id: str) -> None:
    request = admin_pb2.MoveRequestRequest(request_id=request_id, worker_id=worker_id)
    await client.admin.MoveRequest(request, metadata=client.metadata(), timeout=LIMIT_S)


def has_answers(status: cluster_pb2.GetStatusResponse) -> bool:
    """The scheduler knows of an answer that is decoded."""
    return any(r.generated_tokens for w in status.scheduler.workers for r in w.status.residents)


def has_transfers(status: cluster_pb2.GetStatusResponse) -> bool:
    """KV state is on its way between workers, or was."""
    transfers = [w.status.kv_transfers for w in status.scheduler.workers]
    return any(one.under_way or one.done for one in transfers)


def transfers_to(status: cluster_pb2.GetStatusResponse, worker_id: str) -> int:
    """States that a worker has fetched."""
    workers = (w.status for w in status.scheduler.workers if w.status.worker_id == worker_id)
    return sum(worker.kv_transfers.done for worker in workers)


async def clear_cache(client: Client) -> None:
    await client.admin.ClearCache(admin_pb2.ClearCacheRequest(), metadata=client.metadata(), timeout=LIMIT_S)


async def test_a_prompt_is_computed_by_one_worker_and_answered_by_the_other(tmp_path: Path) -> None:
    asked = requests()
    expected = await alone(tmp_path / "alone", asked)
    # It runs where answers are made: a prompt beside it would cost it. Its steps are its own, so that the
    # others' have no more rows than when each is alone.
    other = prompt(max_tokens=4000)
    other.params.deterministic = True
    async with Stack(options(tmp_path, roles=("prefill", "decode"))) as stack:
        client = Client(stack.endpoint, stack.api_key)
        busy = asyncio.create_task(client.ask(other))
        async with asyncio.timeout(LIMIT_S):
            await client.until_status(has_answers)
            found = []
            for request in asked:
                found.append(await client.ask(request))
                await clear_cache(client)
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
        await client.close()
    assert [answer.token_ids for answer in found] == expected
    assert [answer.worker_ids for answer in found] == [["worker-0", "worker-1"]] * len(asked)


@pytest.mark.parametrize("carrier", ["shm", "tcp", "nats"])
async def test_a_stream_that_is_moved_goes_on_with_the_same_tokens(tmp_path: Path, carrier: str) -> None:
    asked = countdown(30)
    async with Stack(options(tmp_path, KV_TRANSPORT=carrier)) as stack:
        client = Client(stack.endpoint, stack.api_key)
        expected = await client.ask(asked)
        await clear_cache(client)
        answer = Answer()
        # Beside them it takes seconds: alone it may be over before it has moved.
        beside = [Answer() for _ in range(6)]
        others = [
            asyncio.create_task(client.ask(prompt(f"Story {i}", max_tokens=3000), answer=each))
            for i, each in enumerate(beside)
        ]
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(each.first_token.wait() for each in beside))
            task = asyncio.create_task(client.ask(asked, request_id="moves", answer=answer))
            await answer.first_token.wait()
            first = answer.worker_ids[-1]
            other = "worker-1" if first == "worker-0" else "worker-0"
            await move(client, "moves", other)
            await task
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert answer.token_ids == expected.token_ids
        assert answer.worker_ids == [first, other]
        await client.close()


@pytest.mark.parametrize("side", ["worker-0", "worker-1"])
@pytest.mark.parametrize("part", ["worker", "engine"])
async def test_a_side_that_dies_while_state_moves_costs_no_token(
    tmp_path: Path, side: str, part: str
) -> None:
    asked = [prompt(" ".join(["word"] * 300) + str(i), max_tokens=300) for i in range(4)]
    beside = prompt(max_tokens=1500)
    async with Stack(options(tmp_path, roles=("prefill", "decode"))) as stack:
        client = Client(stack.endpoint, stack.api_key)
        answers = [Answer() for _ in (beside, *asked)]
        tasks = [asyncio.create_task(client.ask(beside, answer=answers[0]))]
        async with asyncio.timeout(LIMIT_S):
            await client.until_status(has_answers)
            tasks += [
                asyncio.create_task(client.ask(request, answer=answer))
                for request, answer in zip(asked, answers[1:], strict=True)
            ]
            await client.until_status(has_transfers)
            pid = stack.processes[side].pid
            if part == "engine":
                engine = child_of(pid, ENGINE)
                assert engine is not None
                os.kill(engine, signal.SIGKILL)
            else:
                psutil.Process(pid).kill()
            await asyncio.gather(*tasks)
        # `Answer` fails where a token is missing or comes twice.
        assert all(answer.terminal is not None for answer in answers)
        await client.close()


async def test_a_worker_that_is_stopped_has_its_streams_moved_with_their_state(tmp_path: Path) -> None:
    made = options(tmp_path, KV_TRANSPORT="tcp", DRAIN_LIMIT_S="10")  # they move once half of it is over
    async with Stack(made) as stack:
        client = Client(stack.endpoint, stack.api_key)
        answers = [Answer() for _ in range(12)]
        tasks = [
            asyncio.create_task(client.ask(prompt(f"Story {i}", max_tokens=2000), answer=answer))
            for i, answer in enumerate(answers)
        ]
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(answer.first_token.wait() for answer in answers))
            stopped = answers[0].worker_ids[-1]
            other = "worker-1" if stopped == "worker-0" else "worker-0"
            os.kill(stack.processes[stopped].pid, signal.SIGTERM)
            await client.until_status(lambda status: transfers_to(status, other) > 0, LIMIT_S)
            await asyncio.gather(*tasks)
        assert any(answer.worker_ids == [stopped, other] for answer in answers)
        await client.close()
