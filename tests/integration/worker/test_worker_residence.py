"""Turns on a real worker: parked, swapped, resumed, and every request gives the tokens it gives alone."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness.starting import patched
from harness.worker import WorkerProcess, batch_item, read_to_end, resume_item, token_ids

from inferflux.common.bus import Bus, TokenSubscription
from inferflux.common.contract import subjects
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2

LENGTH = generation_pb2.FINISH_REASON_LENGTH
CANCELLED = generation_pb2.FINISH_REASON_CANCELLED
TIMESLICE = scheduler_pb2.YIELD_REASON_TIMESLICE
PREEMPTED = scheduler_pb2.YIELD_REASON_PREEMPTED
MEMORY = scheduler_pb2.YIELD_REASON_MEMORY
RUNNING = scheduler_pb2.RESIDENCE_RUNNING
PARKED = scheduler_pb2.RESIDENCE_PARKED
SWAPPED = scheduler_pb2.RESIDENCE_SWAPPED
READY = scheduler_pb2.WORKER_STATE_READY
DRAINING = scheduler_pb2.WORKER_STATE_DRAINING

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "penalised": {"temperature": 1.0, "repeat_penalty": 1.3, "frequency_penalty": 0.5},
}


@pytest.fixture(scope="module")
async def worker(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerProcess]:
    """Two run at once, four may be in the KV cache.

    Prefixes are not cached: what a step of one row gives depends in its last bits on which cells a sequence
    has, and a request alone is compared with one beside others here.
    """
    bus = await Bus.connect(nats_url, name="residence-tests")
    made = WorkerProcess(
        tmp_path_factory.mktemp("residence"),
        nats_url,
        bus,
        "residence",
        INFERFLUX_WORKER_SLOTS="2",
        INFERFLUX_WORKER_PREFIX_CACHE="false",
    )
    try:
        await made.start_ready()
        yield made
    finally:
        made.kill()
        await bus.close()


StartWorker = Callable[..., Awaitable[WorkerProcess]]


@pytest.fixture
async def start_worker(nats_url: str, tmp_path: Path) -> AsyncIterator[StartWorker]:
    """Starts workers that the test may break, each by a name of its own."""
    bus = await Bus.connect(nats_url, name="residence-tests")
    started: list[WorkerProcess] = []

    async def start(name: str, **variables: str) -> WorkerProcess:
        made = WorkerProcess(tmp_path, nats_url, bus, name, **variables)
        started.append(made)
        await made.start_ready()
        return made

    yield start
    for made in started:
        made.kill()
    await bus.close()


async def run(worker: WorkerProcess, item: worker_pb2.BatchItem) -> list[tokens_pb2.TokenChunk]:
    stream = await worker.read(item.request.request_id)
    answer = await worker.submit(item)
    assert not answer.refused, answer
    chunks = await read_to_end(stream)
    stream.close()
    return chunks


async def begin(worker: WorkerProcess, item: worker_pb2.BatchItem) -> TokenSubscription:
    """Submit a request and wait until it has a token."""
    stream = await worker.read(item.request.request_id)
    answer = await worker.submit(item)
    assert not answer.refused, answer
    await stream.next(30)
    return stream


async def begin_and_park(worker: WorkerProcess, item: worker_pb2.BatchItem) -> TokenSubscription:
    """Submit a request for a timeslice of 20 tokens, and wait until that is over."""
    item.token_budget = 20
    stream = await begin(worker, item)
    name = item.request.request_id
    await worker.until(lambda: worker.yields(name) == [(TIMESLICE, PARKED)])
    return stream


def text_of(chunks: list[tokens_pb2.TokenChunk]) -> str:
    return "".join(c.text for c in chunks)


def assert_contiguous(chunks: list[tokens_pb2.TokenChunk]) -> None:
    for before, after in itertools.pairwise(chunks):
        assert after.offset == before.offset + len(before.token_ids)


@pytest.mark.parametrize("kind", SAMPLINGS)
async def test_a_preempted_request_goes_on_as_if_nothing_had_been(worker: WorkerProcess, kind: str) -> None:
    sampling = SAMPLINGS[kind]
    alone = await run(worker, batch_item(f"{kind}-alone", max_tokens=600, **sampling))
    name = f"{kind}-preempted"
    stream = await worker.read(name)
    await worker.submit(batch_item(name, max_tokens=600, **sampling))
    await worker.preempt(name)
    assert [reason for reason, _ in worker.yields(name)] == [PREEMPTED]
    answer = await worker.resume(resume_item(name))
    assert answer.accepted_request_ids == [name]
    chunks = await read_to_end(stream)
    assert_contiguous(chunks)
    assert token_ids(chunks) == token_ids(alone)
    assert text_of(chunks) == text_of(alone)


async def test_a_timeslice_is_yielded_and_the_next_goes_on_there(worker: WorkerProcess) -> None:
    alone = token_ids(await run(worker, batch_item("unsliced", max_tokens=40)))
    stream = await worker.read("sliced")
    await worker.submit(batch_item("sliced", max_tokens=40, token_budget=15))
    for done in range(1, 3):
        await worker.until(lambda done=done: len(worker.yields("sliced")) == done)  # type: ignore[misc]
        await worker.resume(resume_item("sliced", token_budget=15))
    chunks = await read_to_end(stream)
    assert_contiguous(chunks)
    assert token_ids(chunks) == alone
    assert worker.yields("sliced") == [(TIMESLICE, PARKED)] * 2
    found = [e.request_yielded.generated_tokens for e in worker.events if e.HasField("request_yielded")]
    assert found[-2:] == [15, 30]


@pytest.mark.parametrize("host_bytes", ["2147483648", "0"])
async def test_an_evicted_request_goes_on_from_host_memory_or_is_computed_again(
    start_worker: StartWorker, host_bytes: str
) -> None:
    worker = await start_worker(
        f"takeover-{host_bytes}",
        INFERFLUX_WORKER_SLOTS="1",
        INFERFLUX_WORKER_SEQUENCES="1",
        INFERFLUX_WORKER_HOST_BYTES=host_bytes,
    )
    sampling = SAMPLINGS["penalised"]
    alone = await run(worker, batch_item("alone", max_tokens=200, **sampling))
    text = text_of(alone)
    late = (at for at in range(len(text) * 3 // 4, len(text) - 3) if text.index(text[at : at + 3]) == at)
    stop = [text[next(late) :][:3]]
    stream = await begin_and_park(worker, batch_item("first", max_tokens=200, stop=stop, **sampling))
    other = await worker.read("second")
    await worker.submit(batch_item("second", prompt=range(5, 60)))
    await worker.until(lambda: worker.yields("first") == [(TIMESLICE, PARKED), (MEMORY, SWAPPED)])
    assert (await read_to_end(other))[-1].finished.reason == LENGTH
    await worker.until(lambda: worker.status is not None and worker.residence("first") == SWAPPED)
    assert worker.status is not None
    assert bool(worker.status.swap_bytes_used) == bool(int(host_bytes))
    await worker.resume(resume_item("first"))
    chunks = await read_to_end(stream)
    assert_contiguous(chunks)
    whole = text[: text.index(stop[0])]
    assert whole.endswith(text_of(chunks))
    assert token_ids(chunks) == token_ids(alone)[chunks[0].offset :][: len(token_ids(chunks))]


# With these as last token of the prompt, every choice of the demo model is clear: swapping moves cells, and
# with them the last bits of the logits.
CLEAR_PROMPT_ENDS = (51, 64, 66, 70, 74, 83)


@pytest.mark.parametrize("host_bytes", ["2147483648", "0"])
async def test_requests_that_do_not_fit_together_all_end_exactly(
    start_worker: StartWorker, host_bytes: str
) -> None:
    """Six of 154 tokens over 256 cells, which hold one and a half; those that give way are resumed."""
    worker = await start_worker(
        f"tight-{host_bytes}",
        INFERFLUX_WORKER_SLOTS="6",
        INFERFLUX_WORKER_KV_CELLS="256",
        INFERFLUX_WORKER_CONTEXT_LENGTH="200",
        INFERFLUX_WORKER_HOST_BYTES=host_bytes,
    )
    items = [
        batch_item(f"tight-{i}", slot=i, urgency_key=i, prompt=(10, 20, 30, end), max_tokens=150)
        for i, end in enumerate(CLEAR_PROMPT_ENDS)
    ]
    alone = {}
    for item in items:
        twin = worker_pb2.BatchItem.FromString(item.SerializeToString())
        twin.request.request_id += "-alone"
        alone[item.request.request_id] = token_ids(await run(worker, twin))
    streams = [await worker.read(item.request.request_id) for item in items]
    answer = await worker.submit(*items)
    assert len(answer.accepted_request_ids) == 6
    readers = [asyncio.create_task(read_to_end(stream)) for stream in streams]

    async def resume_for_ever() -> None:
        for seen in itertools.count():
            await worker.until(lambda n=seen: len(worker.events) > n)  # type: ignore[misc]
            yielded = worker.events[seen].request_yielded
            if yielded.request_id:
                assert yielded.reason == MEMORY
                number = int(yielded.request_id.removeprefix("tight-"))
                await worker.resume(resume_item(yielded.request_id, slot=number, urgency_key=number))

    resuming = asyncio.create_task(resume_for_ever())
    done = await asyncio.wait_for(asyncio.gather(*readers), 60)
    resuming.cancel()
    for item, chunks in zip(items, done, strict=True):
        assert_contiguous(chunks)
        assert token_ids(chunks) == alone[item.request.request_id]
    assert any(worker.yields(item.request.request_id) for item in items)
    await worker.until(lambda: worker.status is not None and worker.status.kv_cells_used == 0)


@pytest.mark.parametrize("is_swapped", [False, True])
async def test_a_request_that_waits_to_resume_can_be_cancelled(
    worker: WorkerProcess, start_worker: StartWorker, is_swapped: bool
) -> None:
    name = f"waits-{is_swapped}"
    if is_swapped:
        worker = await start_worker(name, INFERFLUX_WORKER_SLOTS="1", INFERFLUX_WORKER_SEQUENCES="1")
    stream = await begin_and_park(worker, batch_item(name, max_tokens=1500))
    if is_swapped:
        await run(worker, batch_item(f"{name}-other"))
        assert worker.yields(name)[-1] == (MEMORY, SWAPPED)
    notice = scheduler_pb2.CancelNotice(tenant="t", request_id=name)
    await worker.bus.publish(subjects.cancel("t", name), notice.SerializeToString())
    assert (await read_to_end(stream))[-1].finished.reason == CANCELLED
    await worker.until(lambda: worker.residence(name) is None)
    assert worker.status is not None
    assert (worker.status.kv_cells_used, worker.status.swap_bytes_used) == (0, 0)


async def test_a_deadline_ends_a_parked_request(worker: WorkerProcess) -> None:
    soon = time.time_ns() // 1_000_000 + 2000
    item = batch_item("waits-late", max_tokens=1500, deadline_unix_ms=soon)
    stream = await begin_and_park(worker, item)
    assert (await read_to_end(stream))[-1].failed.reason == "DEADLINE_EXCEEDED"


async def test_only_residents_are_resumed(worker: WorkerProcess) -> None:
    answer = await worker.resume(resume_item("never-seen"))
    assert [r.reason for r in answer.refused] == [worker_pb2.REFUSAL_REASON_NOT_RESIDENT]


async def test_a_leader_notice_is_answered_by_a_heartbeat_and_older_terms_are_refused(
    start_worker: StartWorker,
) -> None:
    worker = await start_worker("led", **patched("inferflux.worker.host.heartbeat:HEARTBEAT_INTERVAL_S", 2.0))
    notice = worker_pb2.LeaderNotice(term=7)
    await worker.bus.publish(subjects.SCHEDULER_LEADER, notice.SerializeToString())
    await worker.until(lambda: worker.status is not None and worker.status.term == 7)
    old = await worker.submit(batch_item("of-old"), term=6)
    assert [r.reason for r in old.refused] == [worker_pb2.REFUSAL_REASON_OLD_TERM]
    new = await worker.submit(batch_item("of-new"), term=7)
    assert new.accepted_request_ids == ["of-new"]


async def test_a_dead_engine_is_told_with_all_that_waited_on_it(start_worker: StartWorker) -> None:
    worker = await start_worker("mortal")
    await begin_and_park(worker, batch_item("waited", max_tokens=1500))
    await begin(worker, batch_item("ran", slot=1, max_tokens=1500))
    os.kill(worker.engine_pid(), signal.SIGKILL)
    await worker.until(lambda: any(e.HasField("engine_died") for e in worker.events))
    died = next(e.engine_died for e in worker.events if e.HasField("engine_died"))
    assert {r.request_id for r in died.residents} == {"ran", "waited"}


async def test_an_engine_that_makes_no_step_is_killed_and_told_as_dead(start_worker: StartWorker) -> None:
    worker = await start_worker("stuck", INFERFLUX_WORKER_STUCK_S="1")
    await begin(worker, batch_item("held-up", max_tokens=1500))
    os.kill(worker.engine_pid(), signal.SIGSTOP)
    await worker.until(lambda: any(e.HasField("engine_died") for e in worker.events))
    died = next(e.engine_died for e in worker.events if e.HasField("engine_died"))
    assert [r.request_id for r in died.residents] == ["held-up"]
    assert "no step for 1 s" in died.message
    await worker.until(lambda: worker.status is not None and worker.status.state == READY)
    assert (await run(worker, batch_item("next")))[-1].finished.reason == LENGTH


async def test_a_draining_worker_resumes_its_parked_requests_and_takes_no_others(
    start_worker: StartWorker,
) -> None:
    worker = await start_worker("draining")
    stream = await begin_and_park(worker, batch_item("inside", max_tokens=100))
    await worker.command(worker_pb2.WorkerCommand(drain=worker_pb2.DrainWorker()))
    await worker.until(lambda: worker.status is not None and worker.status.state == DRAINING)
    refused = (await worker.submit(batch_item("outside", slot=1))).refused
    assert [r.reason for r in refused] == [worker_pb2.REFUSAL_REASON_NOT_READY]
    await worker.resume(resume_item("inside"))
    assert (await read_to_end(stream))[-1].finished.reason == LENGTH
    await worker.command(worker_pb2.WorkerCommand(undrain=worker_pb2.UndrainWorker()))
    await worker.until(lambda: worker.status is not None and worker.status.state == READY)
    assert (await run(worker, batch_item("outside")))[-1].finished.reason == LENGTH


async def test_sigterm_hands_over_at_once_what_only_waits_to_resume(start_worker: StartWorker) -> None:
    worker = await start_worker("leaving", INFERFLUX_DRAIN_LIMIT_S="600")
    await begin_and_park(worker, batch_item("waiting", max_tokens=1500))
    worker.send(signal.SIGTERM)
    await worker.until(lambda: any(e.HasField("worker_left") for e in worker.events))
    left = next(e.worker_left for e in worker.events if e.HasField("worker_left"))
    assert [r.request_id for r in left.residents] == ["waiting"]
    assert await worker.wait() == 0
