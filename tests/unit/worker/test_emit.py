"""Chunks that NATS did not take reach their readers all the same."""

from __future__ import annotations

import asyncio

import pytest

from inferflux.common import subjects
from inferflux.common.errors import Unavailable
from inferflux.common.tracing import OFF
from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, worker_pb2
from inferflux.worker import emit
from inferflux.worker.emit import Emitter
from inferflux.worker.running import Limits, RunningTable
from inferflux.worker.spans import WorkerSpans


class MoodyBus:
    """Takes messages, or refuses them; the stream holds what it took."""

    def __init__(self) -> None:
        self.is_connected = True
        self.takes = True
        self.flushes = True
        self.published: list[tuple[str, bytes]] = []
        self.changed = asyncio.Event()

    async def publish(self, subject: str, payload: bytes) -> None:
        if not self.takes:
            raise Unavailable("full", reason="OUTBOUND_FULL")
        self.published.append((subject, payload))
        self.changed.set()

    async def flush(self) -> None:
        if not (self.takes and self.flushes):
            raise Unavailable("no answer", reason="FLUSH_TIMEOUT")

    async def replay(self, subject: str) -> list[bytes]:
        return [payload for to, payload in self.published if to == subject]

    def discard_unsent(self, prefix: str) -> None:
        assert subjects.tokens("t", "a").startswith(prefix)

    async def until_published(self, message: tuple[str, bytes]) -> None:
        while message not in self.published:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 10)


def table_with_a_request() -> RunningTable:
    table = RunningTable()
    table.limits = Limits(slots=1, sequences=1, kv_cells=100, context_length=100, vocabulary_size=10)
    request = scheduler_pb2.InferenceRequest(
        request_id="a",
        tenant="t",
        epoch=1,
        prompt_token_ids=[1],
        params=generation_pb2.GenerationParams(max_tokens=5),
    )
    table.admit(worker_pb2.BatchItem(request=request))
    return table


def a_chunk(payload: bytes = b"chunk") -> engine_pb2.StepReport:
    report = engine_pb2.StepReport()
    report.emissions.add(key="t.a", epoch=1, chunk=payload, generated_tokens=1)
    return report


def the_end() -> engine_pb2.StepReport:
    report = a_chunk(b"finished")
    report.ended.add(key="t.a", epoch=1)
    return report


MESSAGE = (subjects.tokens("t", "a"), b"chunk")


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> MoodyBus:
    monkeypatch.setattr(emit, "_REFUSED_WAIT_S", 0.0)
    monkeypatch.setattr(emit, "_TAKEN_IN_S", 0.0)
    return MoodyBus()


@pytest.fixture
def emitter(bus: MoodyBus) -> Emitter:
    return Emitter(bus, table_with_a_request(), WorkerSpans(OFF, "w"), "w", "i")  # type: ignore[arg-type]


async def test_what_was_refused_is_published_once_it_is_taken(bus: MoodyBus, emitter: Emitter) -> None:
    repeating = asyncio.create_task(emitter.repeat_refused())
    bus.takes = False
    await emitter.on_step(a_chunk())
    assert bus.published == []
    bus.takes = True
    await bus.until_published(MESSAGE)
    repeating.cancel()


async def test_a_repetition_that_is_not_confirmed_is_made_again(bus: MoodyBus, emitter: Emitter) -> None:
    await emitter.on_step(a_chunk())
    bus.flushes = False
    with pytest.raises(Unavailable):
        await emitter.republish()
    bus.flushes = True
    bus.published.clear()
    repeating = asyncio.create_task(emitter.repeat_refused())
    await bus.until_published(MESSAGE)
    repeating.cancel()


def tokens_of(bus: MoodyBus) -> list[bytes]:
    return [payload for subject, payload in bus.published if subject == MESSAGE[0]]


async def test_what_the_stream_holds_is_not_published_again(bus: MoodyBus, emitter: Emitter) -> None:
    await emitter.on_step(a_chunk(b"1"))
    await emitter.on_step(the_end())
    await emitter.republish()
    assert tokens_of(bus) == [b"1", b"finished"]


async def test_what_is_emitted_while_nats_is_away_comes_after_what_was_lost_and_once(
    bus: MoodyBus, emitter: Emitter
) -> None:
    await emitter.on_step(a_chunk(b"1"))
    bus.is_connected = False
    emitter.on_disconnect()
    await emitter.on_step(a_chunk(b"2"))
    bus.published.clear()  # a memory stream does not outlive its server
    bus.is_connected = True
    await emitter.on_step(the_end())
    assert tokens_of(bus) == []
    await emitter.republish()
    assert tokens_of(bus) == [b"1", b"2", b"finished"]


async def test_what_is_emitted_during_the_repetition_follows_it(bus: MoodyBus, emitter: Emitter) -> None:
    await emitter.on_step(a_chunk(b"1"))
    emitter.on_disconnect()
    bus.published.clear()
    replay, is_emitted = bus.replay, False

    async def emit_meanwhile(subject: str) -> list[bytes]:
        nonlocal is_emitted
        if not is_emitted:
            is_emitted = True
            await emitter.on_step(the_end())
        return await replay(subject)

    bus.replay = emit_meanwhile  # type: ignore[method-assign]
    await emitter.republish()
    assert tokens_of(bus) == [b"1", b"finished"]


async def test_readers_do_not_wait_for_a_stream_that_stays_away(
    bus: MoodyBus, emitter: Emitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live readers need no JetStream."""
    emitter.on_disconnect()
    await emitter.on_step(a_chunk(b"1"))
    monkeypatch.setattr(emit, "_BEHIND_LIMIT_S", 0.0)
    await emitter.on_step(a_chunk(b"2"))
    assert tokens_of(bus) == [b"2"]
