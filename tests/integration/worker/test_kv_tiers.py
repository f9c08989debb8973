"""A real model gives the same tokens after state was restored from host memory or disk, whole or in part."""

from __future__ import annotations

import asyncio
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness.children import has_ended
from harness.worker import DEMO_MODEL, WAIT_S, WorkerProcess, batch_item, read_to_end, token_ids

from inferflux.cli.stack.servers import free_port
from inferflux.common.bus import Bus, TokenSubscription
from inferflux.v1 import engine_pb2, tokens_pb2
from inferflux.worker.engine.kv.envelope import Envelope, Identity
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.step.core import Engine
from inferflux.worker.engine.tiers.disk import Disk
from inferflux.worker.engine.tiers.rates import Tier
from inferflux.worker.engine.tiers.tiers import Tiers

# Every choice of the demo model is clear after these: a batch of another shape changes last bits, no token.
CLEAR_PROMPT = [10, 20, 30, 51]
TEXT_TOKENS = 150
KEPT_TOKENS = 130
ROOM = 1 << 30
ANSWER_TOKENS = 16


def config(**changed: object) -> engine_pb2.EngineConfig:
    wanted = {
        "model_path": str(DEMO_MODEL),
        "slots": 1,
        "sequences": 1,
        "kv_cells": 1024,
        "batch_tokens": 512,
        "threads": 1,
        "flash_attention": True,
        "prefill_cells": 0,
    }
    return engine_pb2.EngineConfig(**(wanted | changed))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def backend() -> Backend:
    return Backend(config())


class Driven:
    """An engine that is stepped by hand."""

    def __init__(self, backend: Backend, tiers: Tiers[Sequence]) -> None:
        self.engine = Engine(backend, worker_id="w", max_itl_factor=5.0, step_limit_s=1.0, tiers=tiers)
        self.restored = self.prefilled = 0

    def answer(self, request_id: str, prompt: list[int], *, until: int = ANSWER_TOKENS) -> list[int]:
        """Its first `until` tokens; it goes on after fewer than `TEXT_TOKENS`."""
        self.prefilled = 0
        self.engine.start(batch_item(request_id, prompt=prompt, max_tokens=TEXT_TOKENS))
        tokens: list[int] = []
        while len(tokens) < until:
            time.sleep(self.engine.idle_s() or 0)
            self.engine.step()
            report = self.engine.take_report()
            if report is None:
                continue
            stats = report.step.stats
            self.restored += len(stats.host.restore_us) + len(stats.disk.restore_us)
            self.prefilled += stats.prefill_tokens
            for emission in report.step.emissions:
                tokens += tokens_pb2.TokenChunk.FromString(emission.chunk).token_ids
        return tokens

    def leave_behind(self, prompt: list[int]) -> None:
        """Have a prompt computed, preempted, evicted and cancelled."""
        self.answer("left", prompt, until=1)
        self.engine.deschedule(engine_pb2.EngineDeschedule(key="t.left", epoch=1))
        self.answer("other", [1, 2, 3], until=TEXT_TOKENS)
        self.engine.cancel("t.left", is_silent=True)


@pytest.fixture(params=Tier)
def driven(request: pytest.FixtureRequest, backend: Backend, tmp_path: Path) -> Iterator[Driven]:
    """An engine whose evicted states go to one of the tiers."""
    if request.param is Tier.HOST:
        yield Driven(backend, Tiers(backend.identity, host_bytes=ROOM))
        return
    disk = Disk(tmp_path, backend.identity)
    made = Driven(backend, Tiers(backend.identity, host_bytes=0, disk=disk, disk_bytes=ROOM))
    leave = made.leave_behind

    def leave_on_disk(prompt: list[int]) -> None:
        leave(prompt)
        disk.flush()

    made.leave_behind = leave_on_disk  # type: ignore[method-assign]
    yield made
    made.engine.close()


@pytest.fixture(scope="module")
def text(backend: Backend) -> list[int]:
    """A prompt, and what the model says after it."""
    answer = Driven(backend, Tiers.off()).answer("text", CLEAR_PROMPT, until=TEXT_TOKENS)
    return CLEAR_PROMPT + answer


@pytest.mark.parametrize(
    ("prompt_tokens", "computed"), [(132, 2), (130, 1), (90, 1)], ids=["longer", "the same", "a part"]
)
def test_a_restored_prompt_is_answered_as_a_computed_one(
    driven: Driven, text: list[int], prompt_tokens: int, computed: int
) -> None:
    driven.leave_behind(text[:KEPT_TOKENS])
    answer = driven.answer("again", text[:prompt_tokens])
    driven.engine.cancel("t.again", is_silent=True)
    assert answer == text[prompt_tokens:][:ANSWER_TOKENS]
    assert (driven.restored, driven.prefilled) == (1, computed)


def test_of_a_state_that_takes_too_long_to_copy_the_first_part_is_restored(text: list[int]) -> None:
    backend = Backend(config(sequences=2, kv_cells=256))
    tiers: Tiers[Sequence] = Tiers(backend.identity, host_bytes=ROOM)
    driven = Driven(backend, tiers)
    driven.answer("left", text[:KEPT_TOKENS], until=1)
    tiers.rates.copy_out.observe(backend.state_size(0), 2.0)  # a step may take 1 s
    driven.engine.deschedule(engine_pb2.EngineDeschedule(key="t.left", epoch=1))
    driven.answer("other", [1, 2, 3], until=TEXT_TOKENS)
    driven.engine.cancel("t.left", is_silent=True)
    assert driven.answer("again", text[:132]) == text[132:][:ANSWER_TOKENS]
    assert driven.restored == 1
    assert KEPT_TOKENS // 3 < driven.prefilled < KEPT_TOKENS


def identity_of(**changed: object) -> Identity:
    return Backend(config(kv_cells=256, **changed)).identity


def test_an_identity_tells_contexts_apart_whose_state_differs(backend: Backend) -> None:
    assert identity_of(slots=2, sequences=4).difference(backend.identity) == ""
    assert identity_of(flash_attention=False).difference(backend.identity) == "flash_attention"
    assert identity_of(model_digest="other").difference(backend.identity) == "model"


async def answer_of(worker: WorkerProcess, request_id: str, prompt: list[int]) -> tuple[list[int], int]:
    """(its tokens, how many tokens of its prompt were not computed)."""
    stream = await worker.read(request_id)
    submitted = await worker.submit(batch_item(request_id, prompt=prompt, max_tokens=ANSWER_TOKENS))
    assert not submitted.refused, submitted
    chunks = await read_to_end(stream)
    stream.close()
    return token_ids(chunks), chunks[-1].finished.usage.cached_prompt_tokens


def test_a_disk_slower_than_computing_is_tried_once_and_computing_is_chosen(
    backend: Backend, tmp_path: Path, text: list[int]
) -> None:
    disk = Disk(tmp_path, backend.identity)
    driven = Driven(backend, Tiers(backend.identity, host_bytes=0, disk=disk, disk_bytes=ROOM))
    driven.leave_behind(text[:KEPT_TOKENS])
    disk.flush()
    read = disk._folder.read

    def slow(name: str, identity: Identity) -> Envelope:
        time.sleep(2.0)  # far more than prefilling these tokens takes
        return read(name, identity)

    disk._folder.read = slow  # type: ignore[method-assign]
    for i in range(4):
        began_s = time.monotonic()
        assert driven.answer(f"again-{i}", text[:132]) == text[132:][:ANSWER_TOKENS]
        took_s = time.monotonic() - began_s
        driven.engine.cancel(f"t.again-{i}", is_silent=True)
        assert (driven.restored, driven.prefilled) == (0, 132)
        assert i == 0 or took_s < 2.0  # it does not wait for what is read
    driven.engine.close()


async def test_a_worker_that_is_stopped_puts_what_it_computed_on_disk(
    nats_url: str, tmp_path: Path, text: list[int]
) -> None:
    bus = await Bus.connect(nats_url, name="tier-tests")
    variables = {
        "INFERFLUX_WORKER_SLOTS": "1",
        "INFERFLUX_WORKER_KV_CELLS": "256",
        "INFERFLUX_WORKER_CONTEXT_LENGTH": "250",
        "INFERFLUX_WORKER_DISK_PATH": str(tmp_path / "kv"),
    }
    prompts = [text[:KEPT_TOKENS], text[:KEPT_TOKENS][::-1]]
    worker = WorkerProcess(tmp_path, nats_url, bus, "stopped", **variables)
    try:
        await worker.start_ready()
        answers = [await answer_of(worker, f"before-{i}", prompt) for i, prompt in enumerate(prompts)]
        # The KV cache has one, host memory the other, and the disk none.
        assert not list(tmp_path.glob("kv/0/*.kv"))
        worker.send(signal.SIGTERM)
        assert await worker.wait() == 0
        assert len(list(tmp_path.glob("kv/0/*.kv"))) == len(prompts), worker.log_path.read_text()
        worker.status = None
        await worker.start_ready()
        for i, prompt in enumerate(prompts):
            assert await answer_of(worker, f"after-{i}", prompt) == (answers[i][0], KEPT_TOKENS - 1)
    finally:
        worker.kill()
        await bus.close()


async def test_a_worker_that_was_killed_finds_its_disk_tier_again(
    nats_url: str, tmp_path: Path, text: list[int]
) -> None:
    bus = await Bus.connect(nats_url, name="tier-tests")
    variables = {
        "INFERFLUX_WORKER_SLOTS": "1",
        "INFERFLUX_WORKER_KV_CELLS": "256",
        "INFERFLUX_WORKER_CONTEXT_LENGTH": "250",
        "INFERFLUX_WORKER_HOST_BYTES": "0",
        "INFERFLUX_WORKER_DISK_PATH": str(tmp_path / "kv"),
    }
    prompt = text[:KEPT_TOKENS]
    worker = WorkerProcess(tmp_path, nats_url, bus, "tiers", **variables)
    try:
        await worker.start_ready()
        assert await answer_of(worker, "first", prompt) == (text[KEPT_TOKENS:][:ANSWER_TOKENS], 0)
        await answer_of(worker, "other", prompt[::-1])  # the KV cache has no room for both
        async with asyncio.timeout(30):
            while not list(tmp_path.glob("kv/0/*.kv")):
                await asyncio.sleep(0.01)
        worker.kill()
        worker.status = None
        await worker.start_ready()
        answer = await answer_of(worker, "again", prompt)
        assert answer == (text[KEPT_TOKENS:][:ANSWER_TOKENS], KEPT_TOKENS - 1)
    finally:
        worker.kill()
        await bus.close()


@pytest.mark.parametrize(
    ("victim", "is_preempted"), [("engine", True), ("engine", False), ("worker", True), ("worker", False)]
)
async def test_what_is_killed_leaves_its_host_memory_to_the_next_engine(
    nats_url: str, tmp_path: Path, text: list[int], victim: str, is_preempted: bool
) -> None:
    """A cold prefix, and a preempted request; without a disk tier, as workers are set up by default."""
    bus = await Bus.connect(nats_url, name="tier-tests")
    port = free_port()
    variables = {
        "INFERFLUX_WORKER_SLOTS": "1",
        "INFERFLUX_WORKER_KV_CELLS": "256",
        "INFERFLUX_WORKER_CONTEXT_LENGTH": "250",
        "INFERFLUX_METRICS_LISTEN": f"127.0.0.1:{port}",
    }
    cold, prompt, n_answer = text[:KEPT_TOKENS][::-1], text[:100], 50
    worker = WorkerProcess(tmp_path, nats_url, bus, "heir", **variables)
    try:
        await worker.start_ready()
        expected, _ = await answer_of(worker, "cold", cold)
        stream = await worker.read("preempted")
        await worker.submit(batch_item("preempted", prompt=prompt, max_tokens=n_answer))
        generated = list(tokens_pb2.TokenChunk.FromString(await stream.next(WAIT_S)).token_ids)
        await worker.preempt("preempted")
        await answer_of(worker, "other", [1, *cold, *cold[:60]])  # the KV cache has no room for two
        generated += pending(stream)
        assert 0 < len(generated) < n_answer
        engine = psutil.Process(worker.engine_pid())
        folder = folder_of(engine)
        async with asyncio.timeout(WAIT_S):
            while len(list(folder.glob("*.kv"))) < 2:
                await asyncio.sleep(0.01)
        if victim == "engine":
            engine.kill()
            await worker.until(lambda: any(event.HasField("engine_died") for event in worker.events))
        else:
            worker.kill()
            async with asyncio.timeout(WAIT_S):
                while not has_ended(engine):
                    await asyncio.sleep(0.01)
            await worker.start()
        worker.status = None
        await worker.until_own_ready()
        # Whichever comes first: what that took may say that the other one is computed sooner.
        if is_preempted:
            going_on = batch_item(
                "preempted", epoch=2, prompt=prompt, generated=generated, max_tokens=n_answer
            )
            going_on.seeks_state = True
            stream = await worker.read("preempted")
            assert not (await worker.submit(going_on)).refused
            chunks = await read_to_end(stream)
            assert generated + token_ids(chunks) == text[len(prompt) :][:n_answer]
            found = await metric(port, "retried_found_tokens_total")
            assert found == len(prompt) + len(generated) - 1
        else:
            assert await answer_of(worker, "again", cold) == (expected, KEPT_TOKENS - 1)
        worker.send(signal.SIGTERM)
        assert await worker.wait() == 0
        assert not list(folder.parent.glob("[0-9]*"))
    finally:
        worker.kill()
        await bus.close()


def pending(stream: TokenSubscription) -> list[int]:
    """The tokens that have come."""
    chunks = iter(stream.next_nowait, None)
    return token_ids([tokens_pb2.TokenChunk.FromString(chunk) for chunk in chunks if chunk is not None])


def folder_of(engine: psutil.Process) -> Path:
    """The folder that an engine has in shared memory."""
    (lock,) = {each.path for each in engine.open_files() if each.path.endswith("/lock")}
    return Path(lock).parent


async def metric(port: int, name: str) -> float:
    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
            return str(reply.read().decode())

    found = re.findall(rf"^inferflux_{name}(?:{{.*}})? (\S+)$", await asyncio.to_thread(read), re.MULTILINE)
    return sum(float(value) for value in found)
