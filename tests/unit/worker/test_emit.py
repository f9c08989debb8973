"""Chunks that NATS did not take reach their readers all the same."""

from __future__ import annotations

import asyncio

import pytest

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import DeadlineExceeded, Unavailable
from inferflux.v1 import tokens_pb2
from inferflux.worker.model import emit
from inferflux.worker.model.emit import Emitter


class MoodyBus:
    """Takes messages, or refuses them; the stream holds what it took."""

    def __init__(self) -> None:
        self.is_connected = True
        self.is_clustered = True
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

    async def replay_one_by_one(self, subject: str) -> list[bytes]:
        return [payload for to, payload in self.published if to == subject]

    def discard_unsent(self, prefix: str) -> None:
        assert subjects.tokens("t", "a").startswith(prefix)

    async def until_published(self, message: tuple[str, bytes]) -> None:
        while message not in self.published:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 10)


class Chunks:
    """Token chunks of requests, published by an emitter that keeps all of them."""

    def __init__(self, bus: MoodyBus) -> None:
        self._kept: dict[str, list[bytes]] = {}
        self.emitter = Emitter(bus, lambda: {to: list(chunks) for to, chunks in self._kept.items()})  # type: ignore[arg-type]

    async def emit(self, chunk: bytes, request_id: str = "a") -> None:
        subject = subjects.tokens("t", request_id)
        self._kept.setdefault(subject, []).append(chunk)
        await self.emitter.publish(subject, chunk)


MESSAGE = (subjects.tokens("t", "a"), b"chunk")


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> MoodyBus:
    monkeypatch.setattr(emit, "_REFUSED_WAIT_S", 0.0)
    monkeypatch.setattr(emit, "_TAKEN_IN_S", 0.0)
    return MoodyBus()


@pytest.fixture
def chunks(bus: MoodyBus) -> Chunks:
    return Chunks(bus)


async def test_what_was_refused_is_published_once_it_is_taken(bus: MoodyBus, chunks: Chunks) -> None:
    repeating = asyncio.create_task(chunks.emitter.repeat_refused())
    bus.takes = False
    await chunks.emit(b"chunk")
    assert bus.published == []
    bus.takes = True
    await bus.until_published(MESSAGE)
    repeating.cancel()


async def test_a_repetition_that_is_not_confirmed_is_made_again(bus: MoodyBus, chunks: Chunks) -> None:
    await chunks.emit(b"chunk")
    bus.flushes = False
    with pytest.raises(Unavailable):
        await chunks.emitter.republish()
    bus.flushes = True
    bus.published.clear()
    repeating = asyncio.create_task(chunks.emitter.repeat_refused())
    await bus.until_published(MESSAGE)
    repeating.cancel()


async def test_a_repetition_that_ends_with_another_error_is_made_again(
    bus: MoodyBus, chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, n_failed = bus.flush, 0

    async def fail_twice() -> None:
        nonlocal n_failed
        await flush()
        if n_failed < 2:
            n_failed += 1
            raise DeadlineExceeded("no answer", reason="BUS_TIMEOUT")

    repeating = asyncio.create_task(chunks.emitter.repeat_refused())
    bus.takes = False
    await chunks.emit(b"chunk")
    bus.takes = True
    monkeypatch.setattr(bus, "flush", fail_twice)
    with pytest.raises(DeadlineExceeded):
        await chunks.emitter.republish()
    await bus.until_published(MESSAGE)
    repeating.cancel()


async def test_many_requests_are_looked_up_together_and_not_all_at_once(
    bus: MoodyBus, chunks: Chunks
) -> None:
    names = [str(i) for i in range(100)]
    for name in names:
        await chunks.emit(b"chunk", name)
    bus.published.clear()
    replay, now, most, many = bus.replay_one_by_one, 0, 0, asyncio.Event()

    async def together(subject: str) -> list[bytes]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 16:
            many.set()
        await asyncio.wait_for(many.wait(), 10)
        now -= 1
        return await replay(subject)

    bus.replay_one_by_one = together  # type: ignore[method-assign]
    await chunks.emitter.republish()
    assert most == 16
    assert {subject for subject, _ in bus.published} == {subjects.tokens("t", name) for name in names}


def tokens_of(bus: MoodyBus) -> list[bytes]:
    return [payload for subject, payload in bus.published if subject == MESSAGE[0]]


async def test_what_the_stream_holds_is_not_published_again(bus: MoodyBus, chunks: Chunks) -> None:
    await chunks.emit(b"1")
    await chunks.emit(b"finished")
    await chunks.emitter.republish()
    assert tokens_of(bus) == [b"1", b"finished"]


async def test_what_is_emitted_while_nats_is_away_comes_after_what_was_lost_and_once(
    bus: MoodyBus, chunks: Chunks
) -> None:
    await chunks.emit(b"1")
    bus.is_connected = False
    chunks.emitter.on_disconnect()
    await chunks.emit(b"2")
    bus.published.clear()  # a memory stream does not outlive its server
    bus.is_connected = True
    await chunks.emit(b"finished")
    assert tokens_of(bus) == []
    await chunks.emitter.republish()
    assert tokens_of(bus) == [b"1", b"2", b"finished"]


async def test_what_is_emitted_during_the_repetition_follows_it(bus: MoodyBus, chunks: Chunks) -> None:
    await chunks.emit(b"1")
    chunks.emitter.on_disconnect()
    bus.published.clear()
    replay, is_emitted = bus.replay_one_by_one, False

    async def emit_meanwhile(subject: str) -> list[bytes]:
        nonlocal is_emitted
        if not is_emitted:
            is_emitted = True
            await chunks.emit(b"finished")
        return await replay(subject)

    bus.replay_one_by_one = emit_meanwhile  # type: ignore[method-assign]
    await chunks.emitter.republish()
    assert tokens_of(bus) == [b"1", b"finished"]


async def test_readers_do_not_wait_for_a_stream_that_stays_away(
    bus: MoodyBus, chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live readers need no JetStream."""
    chunks.emitter.on_disconnect()
    await chunks.emit(b"1")
    monkeypatch.setattr(emit, "_BEHIND_LIMIT_S", 0.0)
    await chunks.emit(b"2")
    assert tokens_of(bus) == [b"2"]


def chunk(offset: int, n: int = 1) -> bytes:
    return tokens_pb2.TokenChunk(request_id="a", offset=offset, token_ids=range(n)).SerializeToString()


async def test_what_a_reader_lost_is_published_again_from_the_token_it_names(
    bus: MoodyBus, chunks: Chunks
) -> None:
    sent = [chunk(0, 2), chunk(2, 2), chunk(4), chunk(5, 0)]
    for each in sent:
        await chunks.emit(each)
    bus.published.clear()
    await chunks.emitter.repeat(subjects.tokens("t", "a"), 3)
    assert [payload for _, payload in bus.published] == sent[1:]
    bus.published.clear()
    await chunks.emitter.repeat(subjects.tokens("t", "unknown"), 0)
    assert bus.published == []


async def test_a_stream_that_does_not_answer_holds_up_what_was_lost_for_a_moment_only(
    bus: MoodyBus, chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_subject: str) -> list[bytes]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(emit, "_ASKING_LIMIT_S", 0.01)
    await chunks.emit(b"chunk")
    bus.published.clear()
    monkeypatch.setattr(bus, "replay_one_by_one", never)
    await chunks.emitter.republish()
    assert bus.published == [MESSAGE]


async def test_what_was_lost_with_the_connection_is_published_as_soon_as_there_is_one(
    bus: MoodyBus, chunks: Chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emit, "_REFUSED_WAIT_S", 60.0)
    repeating = asyncio.create_task(chunks.emitter.repeat_refused())
    bus.is_connected = False
    chunks.emitter.on_disconnect()
    await chunks.emit(b"chunk")
    assert bus.published == []
    bus.is_connected = True
    chunks.emitter.on_connect()
    await bus.until_published(MESSAGE)
    repeating.cancel()
