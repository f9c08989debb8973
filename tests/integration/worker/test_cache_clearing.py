"""A worker process that is told to clear its cache: what that frees, and what goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from harness.gateway import until
from harness.servers import ServerProcess
from harness.sure import chat_tokens, check_sure
from harness.worker import WAIT_S, WorkerProcess, batch_item, read_to_end, token_ids
from redis.asyncio import Redis

from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.redis import store
from inferflux.v1 import scheduler_pb2, tokens_pb2, worker_pb2

# A few more than 64 tokens, which llama.cpp computes in another way than the last of them alone.
PROMPT = chat_tokens(
    "Hello", "Hello! How can I help you today?", "What is 12 + 7?", "12 + 7 = 19", "Count down from 30 to 1."
)
LONG = 400


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    connection = await Bus.connect(nats_url, name="clearing-tests")
    yield connection
    await connection.close()


@pytest.fixture
async def redis(private_valkey: ServerProcess) -> AsyncIterator[Redis]:
    client = store.connect(private_valkey.url)
    yield client
    await client.aclose()


@pytest.fixture
async def worker(
    nats_url: str, tmp_path: Path, bus: Bus, private_valkey: ServerProcess
) -> AsyncIterator[WorkerProcess]:
    """One whose KV cache has room for a few prompts; what leaves it goes to the disk."""
    made = WorkerProcess(
        tmp_path,
        nats_url,
        bus,
        "cleared",
        INFERFLUX_REDIS_URL=private_valkey.url,
        INFERFLUX_WORKER_SLOTS="2",
        INFERFLUX_WORKER_KV_CELLS="768",
        INFERFLUX_WORKER_CONTEXT_LENGTH="700",
        INFERFLUX_WORKER_HOST_BYTES="0",
        INFERFLUX_WORKER_DISK_PATH=str(tmp_path / "kv"),
    )
    try:
        await made.start_ready()
        yield made
    finally:
        made.kill()


async def clear(worker: WorkerProcess, **fields: object) -> scheduler_pb2.ClearedWorker:
    wanted = scheduler_pb2.ClearCache(**fields)  # type: ignore[arg-type]
    command = worker_pb2.WorkerCommand(clear_cache=wanted)
    subject = subjects.worker_command(worker.worker_id)
    reply = await worker.bus.request(subject, command.SerializeToString(), timeout_s=WAIT_S)
    return scheduler_pb2.ClearedWorker.FromString(reply)


async def ask(
    worker: WorkerProcess, request_id: str, prompt: list[int], *, slot: int = 0, is_sure: bool = False
) -> tuple[list[int], int]:
    """(its tokens, how many tokens of its prompt were not computed)."""
    stream = await worker.read(request_id)
    item = batch_item(request_id, prompt=prompt, max_tokens=8, slot=slot, logprobs=2)
    assert not (await worker.submit(item)).refused
    chunks = await read_to_end(stream)
    stream.close()
    if is_sure:
        check_sure(chunks)
    return token_ids(chunks), chunks[-1].finished.usage.cached_prompt_tokens


def status_is(
    worker: WorkerProcess, wanted: Callable[[scheduler_pb2.WorkerStatus], bool]
) -> Callable[[], bool]:
    return lambda: worker.status is not None and wanted(worker.status)


async def test_device_disk_and_index_are_empty_afterwards_and_what_runs_goes_on(
    worker: WorkerProcess, redis: Redis, tmp_path: Path
) -> None:
    async def blocks() -> int:
        keys = [key async for key in redis.scan_iter("inferflux:{prefixes}:blocks:cleared:*")]
        return sum([await redis.hlen(key) - 1 for key in keys])

    for i in range(6):  # more than there is room for
        assert (await ask(worker, f"r{i}", [i + 1, *PROMPT[: 16 * i], *range(i, i + 90)]))[1] == 0
    await worker.until(status_is(worker, lambda s: s.kv_cells_cached > 0))
    await until(lambda: bool(list(tmp_path.glob("kv/0/*.kv"))))

    stream = await worker.read("runs")
    item = batch_item("runs", prompt=PROMPT, max_tokens=LONG, slot=1)
    assert not (await worker.submit(item)).refused
    first = tokens_pb2.TokenChunk.FromString(await stream.next(WAIT_S))
    cleared = await clear(worker, prefixes=True, tiers=True)
    assert (cleared.worker_id, cleared.error) == ("cleared", "")
    freed = cleared.cleared
    assert freed.sequences > 0
    assert freed.cells > 0
    assert freed.disk_states > 0
    assert freed.disk_bytes > 0
    # The running request is found still, and nothing else.
    assert await blocks() <= (len(PROMPT) + LONG) // 16
    await until(lambda: not list(tmp_path.glob("kv/0/*.kv")))
    chunks = [first, *await read_to_end(stream)]
    assert len(token_ids(chunks)) == LONG
    assert chunks[-1].epoch == 1
    again = await clear(worker, prefixes=True, tiers=True)
    assert again.cleared.disk_states == 0
    assert await blocks() == 0


async def test_what_was_cleared_is_computed_again_to_the_same_answer(worker: WorkerProcess) -> None:
    """What is computed again has other bits, so the model has to be sure of the answer."""
    first = await ask(worker, "first", PROMPT, is_sure=True)
    assert await ask(worker, "second", PROMPT) == (first[0], len(PROMPT) - 1)
    assert (await clear(worker, tiers=True)).cleared.sequences == 0
    assert (await ask(worker, "third", PROMPT))[1] == len(PROMPT) - 1
    assert (await clear(worker, prefixes=True, cache_scope="tenant/t")).cleared.sequences == 1
    assert await ask(worker, "fourth", PROMPT) == (first[0], 0)
    assert (await clear(worker, prefixes=True, cache_scope="tenant/other")).cleared.sequences == 0


async def test_a_command_that_clears_nothing_is_ignored(worker: WorkerProcess) -> None:
    await worker.command(worker_pb2.WorkerCommand(clear_cache=scheduler_pb2.ClearCache()))
    assert (await ask(worker, "after", PROMPT))[1] == 0
