"""Worker processes fetch KV state from each other, and answer as if they had computed it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from harness.worker import WorkerProcess, batch_item, read_to_end, resume_item, token_ids

from inferflux.common.bus import Bus, StreamLimits, TokenSubscription
from inferflux.common.contract import subjects
from inferflux.common.contract.callers.cache_scope import cache_scope_of, prefix_tokens
from inferflux.common.process.pieces import READ, UNFINISHED
from inferflux.v1 import scheduler_pb2, tokens_pb2, worker_pb2

# No two tokens of its answer are nearly as likely as each other: any steps compute the same.
PROMPT = [int(token) for token in np.random.default_rng(38).integers(300, 900, 700)]
ANSWER = 60
CARRIERS = ["shm", "tcp", "nats"]


@pytest.fixture
async def kv_bus(bus: Bus) -> Bus:
    await bus.ensure_streams(StreamLimits())
    return bus


@asynccontextmanager
async def two_workers(
    directory: Path, nats_url: str, bus: Bus, carrier: str
) -> AsyncIterator[tuple[WorkerProcess, WorkerProcess]]:
    """Workers that share an exchange only where names of files are carried."""
    made = []
    for name in ("from", "to"):
        variables = {
            "INFERFLUX_KV_TRANSPORT": carrier,
            "INFERFLUX_WORKER_PREFILL_CELLS": "0",
            "INFERFLUX_WORKER_THREADS": "1",
        }
        if carrier != "shm":
            variables["INFERFLUX_WORKER_DISK_PATH"] = str(directory / name)
        made.append(
            WorkerProcess(directory, nats_url, bus, f"{directory.name[:30]}-{carrier}-{name}", **variables)
        )
    try:
        for worker in made:
            await worker.start_ready()
        yield made[0], made[1]
    finally:
        for worker in made:
            worker.kill()


def item(request_id: str, *, epoch: int = 1, generated: Sequence[int] = ()) -> worker_pb2.BatchItem:
    return batch_item(request_id, prompt=PROMPT, max_tokens=ANSWER, epoch=epoch, generated=generated)


def source_of(worker: WorkerProcess) -> scheduler_pb2.KvSource:
    assert worker.status is not None
    assert worker.status.HasField("kv_source")
    return worker.status.kv_source


def origin_of(worker: WorkerProcess) -> worker_pb2.StateOrigin:
    return worker_pb2.StateOrigin(source=source_of(worker), epoch=1)


def transfers_of(worker: WorkerProcess) -> scheduler_pb2.KvTransfers:
    assert worker.status is not None
    return worker.status.kv_transfers


def taken(worker: WorkerProcess) -> list[scheduler_pb2.StateTaken]:
    return [event.state_taken for event in worker.events if event.HasField("state_taken")]


async def whole_answer(worker: WorkerProcess) -> list[int]:
    """The answer of a request that stays."""
    stream = await worker.read("stays")
    assert not (await worker.submit(item("stays"))).refused
    chunks = await read_to_end(stream)
    stream.close()
    return token_ids(chunks)


async def begun(worker: WorkerProcess, request_id: str) -> tuple[list[int], TokenSubscription]:
    """A request that runs; its first tokens, and its stream."""
    stream = await worker.read(request_id)
    assert not (await worker.submit(item(request_id))).refused
    tokens: list[int] = []
    while len(tokens) < 5:
        tokens += tokens_pb2.TokenChunk.FromString(await stream.next(30)).token_ids
    return tokens, stream


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_prefix_that_another_worker_has_is_fetched(
    tmp_path: Path, nats_url: str, kv_bus: Bus, carrier: str
) -> None:
    async with two_workers(tmp_path, nats_url, kv_bus, carrier) as (old, new):
        expected = await whole_answer(old)
        asked = item("asks")
        asked.state_from.source.CopyFrom(source_of(old))
        stream = await new.read("asks")
        assert not (await new.submit(asked)).refused
        assert token_ids(await read_to_end(stream)) == expected
        await new.until(lambda: any(e.HasField("request_finished") for e in new.events))
        usage = next(e.request_finished.usage for e in new.events if e.HasField("request_finished"))
        assert usage.cached_prompt_tokens >= len(PROMPT) - 64
        assert not taken(new)


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_request_whose_source_is_killed_is_computed(
    tmp_path: Path, nats_url: str, kv_bus: Bus, carrier: str
) -> None:
    async with two_workers(tmp_path, nats_url, kv_bus, carrier) as (old, new):
        expected = await whole_answer(new)
        tokens, stream = await begun(old, "lost")
        origin = origin_of(old)
        take = worker_pb2.TakeState(tenant="t", request_id="lost", origin=origin, limit_ms=10_000)
        await new.command(worker_pb2.WorkerCommand(take_state=take))
        old.kill()
        await new.until(lambda: bool(taken(new)))
        moved = item("lost", epoch=2, generated=tokens)
        moved.state_from.CopyFrom(origin)
        stream.close()
        again = await new.read("lost")
        assert not (await new.submit(moved)).refused
        async with asyncio.timeout(20):
            assert tokens + token_ids(await read_to_end(again)) == expected


async def test_a_move_that_is_given_up_leaves_nothing_behind(
    tmp_path: Path, nats_url: str, kv_bus: Bus
) -> None:
    async with two_workers(tmp_path, nats_url, kv_bus, "tcp") as (old, new):
        expected = await whole_answer(new)
        tokens, stream = await begun(old, "stays-here")
        await old.preempt("stays-here")  # its export ends no sooner than its fetch
        take = worker_pb2.TakeState(tenant="t", request_id="stays-here", origin=origin_of(old))
        await new.command(worker_pb2.WorkerCommand(take_state=take))
        await new.until(lambda: bool(taken(new)))
        assert not taken(new)[0].error
        drop = worker_pb2.DropRequest(tenant="t", request_id="stays-here", epoch=1)
        await new.command(worker_pb2.WorkerCommand(drop=drop))
        async with asyncio.timeout(15):  # it is given up after 30 s anyhow
            await new.until(lambda: not transfers_of(new).under_way and transfers_of(new).failed == 1)
        # The source uses its files again.
        assert not [*(tmp_path / "to").rglob("pieces/*")]
        assert not [path for path in tmp_path.rglob("pieces/*") if path.suffix not in (READ, UNFINISHED)]
        assert not (await old.resume(resume_item("stays-here"))).refused
        assert tokens + token_ids(await read_to_end(stream)) == expected
        stream.close()


async def moved(old: WorkerProcess, new: WorkerProcess, request_id: str, cached: bytes) -> list[int]:
    """The answer of a request that moves.

    Args:
        cached: tokens that the new worker may have already.
    """
    tokens, stream = await begun(old, request_id)
    stream.close()
    await old.preempt(request_id)
    done, origin = transfers_of(new).done, origin_of(old)
    take = worker_pb2.TakeState(tenant="t", request_id=request_id, origin=origin, token_ids=cached)
    take.cache_scope = cache_scope_of(item(request_id).request)
    await new.command(worker_pb2.WorkerCommand(take_state=take))
    await new.until(lambda: any(each.request_id == request_id for each in taken(new)))
    drop = worker_pb2.DropRequest(tenant="t", request_id=request_id, epoch=1, leaves_state=True)
    await old.command(worker_pb2.WorkerCommand(drop=drop))
    going_on = item(request_id, epoch=2, generated=tokens)
    going_on.state_from.CopyFrom(origin)
    stream = await new.read(request_id)
    assert not (await new.submit(going_on)).refused
    answer = token_ids(await read_to_end(stream))
    stream.close()
    await new.until(lambda: transfers_of(new).done == done + 1)
    return tokens + answer


async def test_the_part_of_a_prompt_that_is_cached_is_not_sent(
    tmp_path: Path, nats_url: str, kv_bus: Bus
) -> None:
    async with two_workers(tmp_path, nats_url, kv_bus, "tcp") as (old, new):
        expected = await whole_answer(old)
        sent: list[int] = []
        for number, cached in enumerate((b"", prefix_tokens(item("").request))):
            clear = worker_pb2.WorkerCommand(clear_cache=scheduler_pb2.ClearCache(prefixes=True, tiers=True))
            where = subjects.worker_command(new.worker_id)
            await kv_bus.request(where, clear.SerializeToString(), timeout_s=30)
            half = batch_item(f"half-{number}", prompt=PROMPT[: len(PROMPT) // 2], max_tokens=1)
            stream = await new.read(f"half-{number}")
            assert not (await new.submit(half)).refused
            await read_to_end(stream)
            stream.close()
            before = transfers_of(new).bytes
            assert await moved(old, new, f"moves-{number}", cached) == expected
            sent.append(transfers_of(new).bytes - before)
        print("bytes without and with what is known:", *sent)
        assert sent[1] < 0.6 * sent[0]
