"""A worker process that is set to draft, and one that cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.gguf_files import tiny_model
from harness.servers import ServerProcess
from harness.worker import DEMO_MODEL, WorkerProcess, batch_item, read_to_end, token_ids

from inferflux.common.bus import Bus
from inferflux.common.contract.requests.stream_limits import StreamLimits
from inferflux.common.llama.vocab import Vocab
from inferflux.v1 import generation_pb2

DRAFT_MODEL = DEMO_MODEL.with_name("inferflux-demo-draft.gguf")
TEXT = b"one two three four five six seven eight nine ten one two three four"


@pytest.fixture
async def bus(private_nats: ServerProcess) -> AsyncIterator[Bus]:
    connection = await Bus.connect(private_nats.url, name="test")
    await connection.ensure_streams(StreamLimits())
    yield connection
    await connection.close()


def worker_of(tmp_path: Path, nats: ServerProcess, bus: Bus, **variables: str) -> WorkerProcess:
    return WorkerProcess(tmp_path, nats.url, bus, "mine", INFERFLUX_WORKER_THREADS="1", **variables)


async def test_each_request_has_the_source_that_it_asks_for_and_the_same_answer(
    private_nats: ServerProcess, bus: Bus, tmp_path: Path
) -> None:
    worker = worker_of(
        tmp_path,
        private_nats,
        bus,
        INFERFLUX_WORKER_SPECULATION="ngram",
        INFERFLUX_WORKER_DRAFT_MODEL=str(DRAFT_MODEL),
        INFERFLUX_WORKER_PREFIX_CACHE="false",
    )
    prompt = Vocab.load(DEMO_MODEL).tokenize(TEXT, add_special=False, parse_special=False)
    answers, drafted = {}, {}
    try:
        await worker.start_ready()
        for name, source in generation_pb2.Speculation.items():
            item = batch_item(name, prompt=prompt, max_tokens=200)
            item.request.params.speculation = source
            stream = await worker.read(name)
            await worker.submit(item)
            chunks = await read_to_end(stream)
            answers[name] = token_ids(chunks)
            timings = chunks[-1].finished.timings
            drafted[name] = timings.draft_n
            assert timings.draft_n_accepted <= timings.draft_n
    finally:
        worker.kill()
    assert len(set(map(tuple, answers.values()))) == 1
    assert drafted.pop("SPECULATION_OFF") == 0
    assert all(drafted.values())


async def test_a_draft_model_that_does_not_fit_ends_the_worker_with_one_line(
    private_nats: ServerProcess, bus: Bus, tmp_path: Path
) -> None:
    other = tiny_model().write(tmp_path / "other.gguf")
    worker = worker_of(tmp_path, private_nats, bus, INFERFLUX_WORKER_DRAFT_MODEL=str(other))
    try:
        await worker.start()
        assert await worker.wait() == 2
    finally:
        worker.kill()
    (line,) = (line for line in worker.log_path.read_text().splitlines() if "DRAFT_MODEL" in line)
    assert f"INFERFLUX_WORKER_DRAFT_MODEL is {other}: its vocabulary has 260 tokens" in line


async def test_a_draft_model_that_is_no_model_is_refused_by_its_variable(
    private_nats: ServerProcess, bus: Bus, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing else")
    worker = worker_of(tmp_path, private_nats, bus, INFERFLUX_WORKER_DRAFT_MODEL=str(broken))
    try:
        await worker.start()
        assert await worker.wait() == 2
    finally:
        worker.kill()
    assert "INFERFLUX_WORKER_DRAFT_MODEL" in worker.log_path.read_text()
