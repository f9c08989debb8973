"""A worker over a real nats-server: what it takes, what it streams, and what survives its engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.children import WITNESS, child_of
from harness.servers import ServerProcess
from harness.worker import DEMO_MODEL, WorkerProcess, batch_item, read_to_end, token_ids

from inferflux.common.bus import Bus, jetstream
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded, NotFound, Unavailable
from inferflux.common.contract.requests.stream_limits import StreamLimits
from inferflux.common.llama.vocab import Vocab
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2

STOP = generation_pb2.FINISH_REASON_STOP
LENGTH = generation_pb2.FINISH_REASON_LENGTH
CANCELLED = generation_pb2.FINISH_REASON_CANCELLED

StartWorker = Callable[..., Awaitable[WorkerProcess]]


@pytest.fixture
async def private_bus(private_nats: ServerProcess) -> AsyncIterator[Bus]:
    connection = await Bus.connect(private_nats.url, name="test")
    await connection.ensure_streams(StreamLimits())
    yield connection
    await connection.close()


@pytest.fixture(scope="session")
async def worker(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerProcess]:
    """One worker for the tests that leave it as it was."""
    bus = await Bus.connect(nats_url, name="worker-tests")
    made = WorkerProcess(tmp_path_factory.mktemp("worker"), nats_url, bus, "shared")
    try:
        await made.start_ready()
        yield made
    finally:
        made.kill()
        await bus.close()


@pytest.fixture
async def private_worker(
    private_nats: ServerProcess, private_bus: Bus, tmp_path: Path
) -> AsyncIterator[WorkerProcess]:
    """A worker that the test may break."""
    made = WorkerProcess(tmp_path, private_nats.url, private_bus, "mine")
    try:
        await made.start_ready()
        yield made
    finally:
        made.kill()


@pytest.fixture
async def one_context_worker(
    private_nats: ServerProcess, private_bus: Bus, tmp_path: Path
) -> AsyncIterator[WorkerProcess]:
    """Without a prefill context, whose arithmetic is another: see docs/decisions/prefill-context.md."""
    made = WorkerProcess(
        tmp_path, private_nats.url, private_bus, "one-context", INFERFLUX_WORKER_PREFILL_CELLS="0"
    )
    try:
        await made.start_ready()
        yield made
    finally:
        made.kill()


async def run(worker: WorkerProcess, item: worker_pb2.BatchItem) -> list[tokens_pb2.TokenChunk]:
    stream = await worker.read(item.request.request_id)
    answer = await worker.submit(item)
    assert not answer.refused, answer
    chunks = await read_to_end(stream)
    stream.close()
    return chunks


async def delete_stream(bus: Bus, stream: str) -> None:
    """As an operator might, and return when it is another one."""
    await bus._link.api(f"STREAM.DELETE.{stream}")
    async with asyncio.timeout(30):
        while not await jetstream.exists(bus._link, stream):
            await asyncio.sleep(0.02)


async def test_it_offers_its_tokenizer_under_the_digest_of_its_card(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    assert worker.status is not None
    card = worker.status.models[0]
    path = tmp_path / "tokenizer.gguf"
    path.write_bytes(await worker.bus.get_object(card.digest))
    vocab = Vocab.load(path)
    assert vocab.size == card.vocabulary_size
    assert card.has_chat_template
    assert card.can_speculate
    vocab.close()


async def test_a_request_streams_contiguous_tokens_and_one_terminal_chunk(worker: WorkerProcess) -> None:
    chunks = await run(worker, batch_item("plain"))
    assert len(token_ids(chunks)) == 24
    next_offset = 0
    for chunk in chunks:
        assert chunk.offset == next_offset
        next_offset += len(chunk.token_ids)
    terminal = chunks[-1].finished
    assert terminal.reason == LENGTH
    assert (terminal.usage.prompt_tokens, terminal.usage.completion_tokens) == (4, 24)
    assert [c.WhichOneof("event") for c in chunks].count("finished") == 1
    await worker.until(lambda: any(e.request_finished.request_id == "plain" for e in worker.events))


async def test_greedy_output_is_the_same_alone_and_beside_others(worker: WorkerProcess) -> None:
    alone = token_ids(await run(worker, batch_item("alone")))
    streams = [await worker.read(f"beside-{i}") for i in range(4)]
    items = [
        batch_item(f"beside-{i}", slot=i, prompt=(10, 20, 30, 40) if i == 2 else tuple(range(5, 40 + i)))
        for i in range(4)
    ]
    answer = await worker.submit(*items)
    assert len(answer.accepted_request_ids) == 4
    assert token_ids(await read_to_end(streams[2])) == alone
    for stream in (streams[0], streams[1], streams[3]):
        await read_to_end(stream)


async def test_a_greedy_retry_goes_on_where_the_tokens_stopped(worker: WorkerProcess) -> None:
    await check_retry(worker, {})


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
        {"temperature": 1.0, "repeat_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    ],
)
async def test_a_seeded_retry_goes_on_where_the_tokens_stopped(
    one_context_worker: WorkerProcess, sampling: dict[str, Any]
) -> None:
    await check_retry(one_context_worker, sampling)


async def check_retry(worker: WorkerProcess, sampling: dict[str, Any]) -> None:
    name = f"whole-{len(sampling)}"
    whole = await run(worker, batch_item(name, **sampling))
    ids = token_ids(whole)
    again = await run(worker, batch_item(f"{name}-again", epoch=2, generated=ids[:9], **sampling))
    assert again[0].offset == 9
    assert ids[:9] + token_ids(again) == ids
    assert again[-1].finished.usage.completion_tokens == 24
    held = "".join(c.text for c in whole)
    assert held.endswith("".join(c.text for c in again))


async def test_the_text_ends_before_a_stop_string(worker: WorkerProcess) -> None:
    text = "".join(c.text for c in await run(worker, batch_item("unstopped")))
    stop = text[len(text) // 2 :][:3]
    chunks = await run(worker, batch_item("stopped", stop=[stop]))
    assert "".join(c.text for c in chunks) == text[: text.index(stop)]
    assert chunks[-1].finished.reason == STOP


async def test_log_probabilities_come_with_the_tokens(worker: WorkerProcess) -> None:
    chunks = await run(worker, batch_item("logprobs", logprobs=3, max_tokens=4))
    entries = [entry for chunk in chunks for entry in chunk.logprobs]
    assert [e.chosen.token_id for e in entries] == token_ids(chunks)
    for entry in entries:
        assert len(entry.top) == 3
        assert entry.top[0].token_id == entry.chosen.token_id
        assert 0 >= entry.top[0].logprob >= entry.top[1].logprob >= entry.top[2].logprob


async def test_a_cancel_notice_ends_a_running_request(worker: WorkerProcess) -> None:
    stream = await worker.read("cancelled")
    await worker.submit(batch_item("cancelled", max_tokens=1500))
    await stream.next(30)
    notice = scheduler_pb2.CancelNotice(tenant="t", request_id="cancelled")
    await worker.bus.publish(subjects.cancel("t", "cancelled"), notice.SerializeToString())
    assert (await read_to_end(stream))[-1].finished.reason == CANCELLED
    chunks = await run(worker, batch_item("slot-is-free"))
    assert chunks[-1].finished.reason == LENGTH


async def test_a_request_cancelled_on_its_way_is_refused(worker: WorkerProcess) -> None:
    notice = scheduler_pb2.CancelNotice(tenant="t", request_id="early", attempt_id="first")
    await worker.bus.publish(subjects.cancel("t", "early"), notice.SerializeToString())
    item = batch_item("early")
    item.request.attempt_id = "first"
    answer = await worker.submit(item)
    assert [r.reason for r in answer.refused] == [worker_pb2.REFUSAL_REASON_CANCELLED]


async def test_a_deadline_ends_a_running_request(worker: WorkerProcess) -> None:
    chunks = await run(
        worker,
        batch_item("late", max_tokens=1500, deadline_unix_ms=time.time_ns() // 1_000_000 + 150),
    )
    assert chunks[-1].failed.reason == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("ahead_s", [-600, 600])
async def test_a_schedulers_clock_does_not_move_deadlines(worker: WorkerProcess, ahead_s: int) -> None:
    now_ms = time.time_ns() // 1_000_000 + ahead_s * 1000
    for name, left_ms, ended in (("is-late", 150, "DEADLINE_EXCEEDED"), ("has-time", 60_000, "")):
        name = f"{name}-{'ahead' if ahead_s > 0 else 'behind'}"
        stream = await worker.read(name)
        item = batch_item(name, max_tokens=24 if not ended else 1500, deadline_unix_ms=now_ms + left_ms)
        item.request.enqueued_unix_ms = now_ms
        await worker.submit(item, created_unix_ms=now_ms)
        last = (await read_to_end(stream))[-1]
        assert last.failed.reason == ended
        assert last.finished.timings.queue_ms < 60_000


async def test_a_batch_for_another_incarnation_or_model_is_refused(worker: WorkerProcess) -> None:
    stale = await worker.submit(batch_item("stale"), incarnation="before")
    other = await worker.submit(batch_item("other", model="another"))
    assert [r.reason for r in stale.refused] == [worker_pb2.REFUSAL_REASON_WRONG_INCARNATION]
    assert [r.reason for r in other.refused] == [worker_pb2.REFUSAL_REASON_UNKNOWN_MODEL]


async def test_it_answers_probes(worker: WorkerProcess) -> None:
    assert await worker.bus.request(subjects.worker_probe("shared"), b"", timeout_s=30) == b""


async def test_garbage_on_its_subjects_does_not_disturb_it(worker: WorkerProcess) -> None:
    for subject in (
        subjects.worker_batch("shared"),
        subjects.worker_probe("shared"),
        subjects.worker_command("shared"),
        subjects.cancel("t", "x"),
    ):
        await worker.bus.publish(subject, b"\xff\xff\xff garbage")
    notice = worker_pb2.LeaderNotice(partition="all", term=2**64 - 1)
    await worker.bus.publish(subjects.SCHEDULER_LEADER, notice.SerializeToString())
    assert (await run(worker, batch_item("after-garbage")))[-1].finished.reason == LENGTH


async def test_a_higher_epoch_takes_over_from_the_lower_one(worker: WorkerProcess) -> None:
    stream = await worker.read("twice")
    await worker.submit(batch_item("twice", max_tokens=1500))
    await stream.next(30)
    await worker.submit(batch_item("twice", slot=1, epoch=2, max_tokens=8))
    chunks = await read_to_end(stream)
    second = [c for c in chunks if c.epoch == 2]
    assert chunks[-1].epoch == 2
    assert len(token_ids(second)) == 8


async def test_when_the_engine_is_killed_the_scheduler_is_told_at_once_and_it_starts_again(
    private_worker: WorkerProcess,
) -> None:
    stream = await private_worker.read("victim")
    await private_worker.submit(batch_item("victim", max_tokens=1500))
    await stream.next(30)
    os.kill(private_worker.engine_pid(), signal.SIGKILL)
    await private_worker.until(lambda: any(e.HasField("engine_died") for e in private_worker.events))
    died = next(e.engine_died for e in private_worker.events if e.HasField("engine_died"))
    assert [(r.request_id, r.epoch) for r in died.residents] == [("victim", 1)]
    assert "SIGKILL" in died.message
    await private_worker.until(
        lambda: (
            private_worker.status is not None
            and private_worker.status.state == scheduler_pb2.WORKER_STATE_READY
            and not private_worker.status.residents
        )
    )
    assert (await run(private_worker, batch_item("next", slot=0)))[-1].finished.reason == LENGTH


async def test_sigterm_finishes_what_runs_and_leaves(private_worker: WorkerProcess) -> None:
    stream = await private_worker.read("last")
    await private_worker.submit(batch_item("last", max_tokens=200))
    await stream.next(30)
    private_worker.send(signal.SIGTERM)
    assert (await read_to_end(stream))[-1].finished.reason == LENGTH
    assert await private_worker.wait() == 0
    await private_worker.until(lambda: any(e.HasField("worker_left") for e in private_worker.events))


async def test_when_the_worker_is_killed_its_witness_tells_the_scheduler(
    private_worker: WorkerProcess,
) -> None:
    assert private_worker.process is not None
    assert private_worker.status is not None
    witness = child_of(private_worker.process.pid, WITNESS)
    assert witness is not None
    private_worker.kill()
    await private_worker.until(lambda: any(e.HasField("worker_died") for e in private_worker.events))
    (died,) = [e for e in private_worker.events if e.HasField("worker_died")]
    assert (died.worker_id, died.incarnation) == (
        private_worker.worker_id,
        private_worker.status.incarnation,
    )
    await asyncio.to_thread(psutil.wait_procs, _processes(witness), 30)
    assert not psutil.pid_exists(witness)


async def test_the_witness_of_a_worker_that_leaves_in_order_says_nothing(
    private_worker: WorkerProcess,
) -> None:
    assert private_worker.process is not None
    witness = child_of(private_worker.process.pid, WITNESS)
    assert witness is not None
    private_worker.send(signal.SIGTERM)
    assert await private_worker.wait() == 0
    assert not psutil.pid_exists(witness)
    await private_worker.bus.flush()
    assert not any(e.HasField("worker_died") for e in private_worker.events)


def _processes(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid)] if psutil.pid_exists(pid) else []


async def test_past_the_drain_limit_the_rest_is_handed_over(
    private_nats: ServerProcess, private_bus: Bus, tmp_path: Path
) -> None:
    worker = WorkerProcess(tmp_path, private_nats.url, private_bus, "hasty", INFERFLUX_DRAIN_LIMIT_S="0.1")
    try:
        await worker.start_ready()
        stream = await worker.read("unfinished")
        await worker.submit(batch_item("unfinished", max_tokens=1900))
        await stream.next(30)
        worker.send(signal.SIGTERM)
        await worker.until(lambda: any(e.HasField("worker_left") for e in worker.events))
        left = next(e.worker_left for e in worker.events if e.HasField("worker_left"))
        assert [r.request_id for r in left.residents] == ["unfinished"]
        assert await worker.wait() == 0
    finally:
        worker.kill()


async def stream_holds(bus: Bus, request_id: str, count: int) -> list[tokens_pb2.TokenChunk]:
    """What can be replayed of a request, once it is this many tokens and an end."""
    subject = subjects.tokens("t", request_id)
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Unavailable, DeadlineExceeded):
                chunks = [tokens_pb2.TokenChunk.FromString(data) for data in await bus.replay(subject)]
                if len(token_ids(chunks)) >= count and any(c.HasField("finished") for c in chunks):
                    return chunks
            await asyncio.sleep(0.02)


async def test_streams_deleted_while_it_runs_get_back_what_it_has_each_chunk_once(
    private_worker: WorkerProcess, private_bus: Bus
) -> None:
    assert private_worker.status is not None
    digest = private_worker.status.models[0].digest
    chunks = await run(private_worker, batch_item("short", max_tokens=20))
    for stream in (subjects.TOKENS_STREAM, jetstream.object_stream(subjects.TOKENIZERS_BUCKET)):
        await delete_stream(private_bus, stream)
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(NotFound):
                    await private_bus.get_object(digest)
                    break
                await asyncio.sleep(0.02)
        assert await stream_holds(private_bus, "short", 20) == chunks


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_after_a_broker_restart_the_stream_has_each_chunk_once(
    private_worker: WorkerProcess, private_bus: Bus, private_nats: ServerProcess, how: str
) -> None:
    undisturbed = token_ids(await run(private_worker, batch_item("reference", max_tokens=300)))
    stream = await private_worker.read("through")
    await private_worker.submit(batch_item("through", max_tokens=300))
    await stream.next(30)
    getattr(private_nats, how)()
    private_nats.start()
    private_nats.wait_ready()
    chunks = await stream_holds(private_bus, "through", 300)
    assert token_ids(chunks) == undisturbed
    assert [c.HasField("finished") for c in chunks].count(True) == 1


async def test_a_file_that_is_no_model_ends_the_worker_with_one_clear_line(
    private_nats: ServerProcess, private_bus: Bus, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\x00" * 10)
    worker = WorkerProcess(
        tmp_path, private_nats.url, private_bus, "broken", INFERFLUX_WORKER_MODEL_PATH=str(broken)
    )
    await worker.start()
    assert await worker.wait() == 2
    lines = worker.log_path.read_text().strip().splitlines()
    assert len(lines) == 1
    assert "broken.gguf" in lines[0]


async def test_a_model_whose_weights_are_missing_ends_the_worker_clearly(
    private_nats: ServerProcess, private_bus: Bus, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.gguf"
    whole = DEMO_MODEL.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    worker = WorkerProcess(
        tmp_path, private_nats.url, private_bus, "cut", INFERFLUX_WORKER_MODEL_PATH=str(cut)
    )
    await worker.start()
    assert await worker.wait() == 2
    assert "cut.gguf" in worker.log_path.read_text().splitlines()[-1]
