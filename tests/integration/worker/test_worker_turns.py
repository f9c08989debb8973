"""Turns: a worker parks, swaps and resumes requests, and every one of them gives the tokens it gives alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harness.worker import WorkerProcess, batch_item, read_to_end, resume_item, token_ids

from inferflux.common import subjects
from inferflux.common.bus import Bus, TokenSubscription
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2

LENGTH = generation_pb2.FINISH_REASON_LENGTH
CANCELLED = generation_pb2.FINISH_REASON_CANCELLED
TIMESLICE = scheduler_pb2.YIELD_REASON_TIMESLICE
PREEMPTED = scheduler_pb2.YIELD_REASON_PREEMPTED
MEMORY = scheduler_pb2.YIELD_REASON_MEMORY
RUNNING = scheduler_pb2.RESIDENCE_RUNNING
PARKED = scheduler_pb2.RESIDENCE_PARKED
SWAPPED = scheduler_pb2.RESIDENCE_SWAPPED

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "penalised": {"temperature": 1.0, "repeat_penalty": 1.3, "frequency_penalty": 0.5},
}


@pytest.fixture(scope="module")
async def worker(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerProcess]:
    """Two run at once, four may be in the KV cache."""
    bus = await Bus.connect(nats_url, name="turn-tests")
    made = WorkerProcess(
        tmp_path_factory.mktemp("turns"), nats_url, bus, "turns", INFERFLUX_WORKER_SLOTS="2"
    )
    try:
        await made.start_ready()
        yield made
    finally:
        made.kill()
        await bus.close()


async def run(worker: WorkerProcess, item: worker_pb2.BatchItem) -> list[tokens_pb2.TokenChunk]:
    stream = await worker.read(item.request.request_id)
    answer = await worker.submit(item)
    assert not answer.refused, answer
    chunks = await read_to_end(stream)
    await stream.close()
    return chunks


async def begin(worker: WorkerProcess, item: worker_pb2.BatchItem) -> TokenSubscription:
    """Submit a request and wait until it has a token."""
    stream = await worker.read(item.request.request_id)
    answer = await worker.submit(item)
    assert not answer.refused, answer
    await stream.next(30)
    return stream


def text_of(chunks: list[tokens_pb2.TokenChunk]) -> str:
    return "".join(c.text for c in chunks)


def assert_contiguous(chunks: list[tokens_pb2.TokenChunk]) -> None:
    for before, after in zip(chunks, chunks[1:], strict=False):
        assert after.offset == before.offset + len(before.token_ids)


@pytest.mark.parametrize("kind", SAMPLINGS)
async def test_a_preempted_request_goes_on_as_if_nothing_had_been(worker: WorkerProcess, kind: str) -> None:
    sampling = SAMPLINGS[kind]
    alone = await run(worker, batch_item(f"{kind}-alone", max_tokens=300, **sampling))
    name = f"{kind}-preempted"
    stream = await worker.read(name)
    await worker.submit(batch_item(name, max_tokens=300, **sampling))
    await worker.preempt(name)
    assert worker.yields(name) == [(PREEMPTED, PARKED)]
    answer = await worker.resume(resume_item(name))
    assert answer.accepted_request_ids == [name]
    chunks = await read_to_end(stream)
    assert_contiguous(chunks)
    assert token_ids(chunks) == token_ids(alone)
    assert text_of(chunks) == text_of(alone)
