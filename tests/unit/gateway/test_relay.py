"""The loop around a token stream: where it reads from, how patient it is, what it merges."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from inferflux.common.contract.errors import InferFluxError, Unavailable
from inferflux.gateway.stream.relay import Relay, RelayLimits
from inferflux.v1 import generation_pb2, tokens_pb2

Chunk = tokens_pb2.TokenChunk

LIMITS = RelayLimits(
    silence_s=4.0, silence_limit_s=100.0, gap_limit_s=30.0, gap_retry_s=0.5, drop_check_s=1.0
)


class World:
    """Subject, replay buffer and clock in one. Waiting for a message that is not there lets time pass."""

    def __init__(self) -> None:
        self.now = 100.0
        self.live: list[bytes] = []
        self.later: list[tuple[float, bytes]] = []
        self.stored: list[bytes] = []
        self.stored_later: list[tuple[float, bytes]] = []
        self.replays: list[float] = []
        self.is_connected = True
        self.is_broken = False
        self.was_dropped = False
        self.breaks_at: float | None = None
        # The fields of messages that were ignored.
        self.bad: list[str] = []

    # A TokenSource.
    @property
    def dropped(self) -> bool:
        dropped, self.was_dropped = self.was_dropped, False
        return dropped

    async def next(self, timeout_s: float) -> bytes:
        await asyncio.sleep(0)
        if self.breaks_at is not None and self.breaks_at <= self.now + timeout_s:
            self.breaks_at, self.was_dropped = None, True
        if self.live:
            return self.live.pop(0)
        if self.later and self.later[0][0] <= self.now + timeout_s:
            at, data = self.later.pop(0)
            self.now = max(self.now, at)
            return data
        self.now += timeout_s
        raise TimeoutError

    def next_nowait(self) -> bytes | None:
        return self.live.pop(0) if self.live else None

    # A ReplayBuffer.
    async def replay(self, _subject: str) -> list[bytes]:
        self.replays.append(self.now)
        if self.is_broken:
            raise Unavailable("no JetStream")
        arrived = [data for at, data in self.stored_later if at <= self.now]
        return self.stored + arrived

    def relay(self, offset: int = 0, want: Callable[[int], Awaitable[None]] | None = None) -> Relay:
        return Relay(
            self,
            self,
            "subject",
            offset=offset,
            limits=LIMITS,
            clock=lambda: self.now,
            on_bad=lambda error: self.bad.append(error.field),
            want=want,
        )


def tokens(first: int, n: int = 1, *, epoch: int = 1) -> bytes:
    text = "".join(f"{i} " for i in range(first, first + n))
    return Chunk(epoch=epoch, offset=first, token_ids=range(first, first + n), text=text).SerializeToString()


def finished(n: int) -> bytes:
    end = tokens_pb2.Finished(reason=generation_pb2.FINISH_REASON_STOP)
    return Chunk(epoch=1, offset=n, finished=end).SerializeToString()


async def read(relay: Relay) -> list[Chunk]:
    chunks = []
    while (chunk := await relay.next()) is not None:
        chunks.append(chunk)
    return chunks


def ids(chunks: list[Chunk]) -> list[int]:
    return [i for chunk in chunks for i in chunk.token_ids]


async def test_what_waits_is_merged_into_one_message() -> None:
    world = World()
    world.live = [tokens(0), tokens(1), tokens(2), finished(3)]
    chunks = await read(world.relay())
    assert len(chunks) == 1
    assert (ids(chunks), chunks[0].text) == ([0, 1, 2], "0 1 2 ")
    assert world.replays == []


async def test_what_comes_one_by_one_is_passed_on_one_by_one() -> None:
    world = World()
    world.later = [(101.0, tokens(0)), (101.1, tokens(1)), (101.2, finished(2))]
    assert [len(c.token_ids) for c in await read(world.relay())] == [1, 1, 0]


async def test_a_hole_is_filled_from_the_replay_buffer_at_once() -> None:
    world = World()
    world.live = [tokens(0), tokens(3), finished(4)]
    world.stored = [tokens(0), tokens(1), tokens(2)]
    assert ids(await read(world.relay())) == [0, 1, 2, 3]
    assert world.replays == [100.0]


async def test_a_hole_is_asked_for_again_until_it_is_filled() -> None:
    world = World()
    world.live = [tokens(0), tokens(2), finished(3)]
    world.stored_later = [(105.0, tokens(1))]
    assert ids(await read(world.relay())) == [0, 1, 2]
    assert world.replays[0] == 100.0
    assert 105.0 <= world.replays[-1] <= 106.0


async def test_a_hole_is_filled_by_what_a_worker_publishes_again() -> None:
    world = World()
    world.live = [tokens(0), tokens(2)]
    world.later = [(103.0, tokens(0)), (103.1, tokens(1)), (103.2, tokens(2)), (103.3, finished(3))]
    assert ids(await read(world.relay())) == [0, 1, 2]


async def test_a_hole_that_stays_is_an_error_that_names_the_tokens() -> None:
    world = World()
    world.live = [tokens(0), tokens(3)]
    relay = world.relay()
    assert ids([await relay.next() or Chunk()]) == [0]
    with pytest.raises(Unavailable) as caught:
        await relay.next()
    assert caught.value.reason == "TOKENS_LOST"
    assert "1 to 2" in caught.value.message
    assert 130.0 <= world.now <= 132.0


async def test_the_buffer_being_away_does_not_count_against_the_hole() -> None:
    world = World()
    world.live = [tokens(0), tokens(2), finished(3)]
    world.is_broken = True
    relay = world.relay()
    assert ids([await relay.next() or Chunk()]) == [0]

    async def mend() -> None:
        while world.now < 150.0:
            await asyncio.sleep(0)
        world.stored = [tokens(1)]
        world.is_broken = False

    mending = asyncio.create_task(mend())
    assert ids(await read(relay)) == [1, 2]
    await mending


async def test_reported_losses_are_made_up_for_at_once() -> None:
    world = World()
    world.live = [tokens(0)]
    world.was_dropped = True
    world.stored = [tokens(0), tokens(1), finished(2)]
    assert ids(await read(world.relay())) == [0, 1]
    assert world.replays == [100.0]


async def test_a_broken_connection_is_no_reason_to_wait() -> None:
    world = World()
    world.breaks_at = 101.5
    world.stored_later = [(101.5, tokens(0)), (101.5, finished(1))]
    assert ids(await read(world.relay())) == [0]
    assert world.replays == [102.0]


async def test_silence_makes_it_look_for_what_was_lost_less_and_less_often() -> None:
    world = World()
    world.stored_later = [(160.0, tokens(0)), (160.0, finished(1))]
    assert ids(await read(world.relay())) == [0]
    waits = [b - a for a, b in zip([100.0, *world.replays], world.replays, strict=False)]
    assert waits[:5] == [4.0, 8.0, 16.0, 16.0, 16.0]


async def test_silence_without_end_is_an_error() -> None:
    world = World()
    with pytest.raises(Unavailable) as caught:
        await read(world.relay())
    assert caught.value.reason == "SILENT"
    assert 200.0 < world.now <= 220.0


async def test_no_patience_is_lost_while_the_connection_is() -> None:
    world = World()
    world.is_connected = False
    world.is_broken = True
    world.later = [(400.0, tokens(0)), (400.1, finished(1))]
    assert ids(await read(world.relay())) == [0]


async def test_noise_on_the_subject_is_ignored() -> None:
    world = World()
    world.live = [b"\xff\xff\xff", tokens(0), finished(1)]
    assert ids(await read(world.relay())) == [0]


async def test_reading_begins_where_the_reader_is() -> None:
    world = World()
    world.stored = [tokens(0, 2), tokens(2, 2), tokens(4), finished(5)]
    relay = world.relay(offset=4)
    await relay.replay()
    assert ids(await read(relay)) == [4]


async def test_a_broken_buffer_is_the_callers_to_know_when_it_asks_itself() -> None:
    world = World()
    world.is_broken = True
    with pytest.raises(InferFluxError):
        await world.relay().replay()


async def test_messages_that_no_worker_sends_are_ignored() -> None:
    world = World()
    odd = Chunk(epoch=1, offset=1)
    odd.finished.reason = generation_pb2.FinishReason.ValueType(99)
    world.live = [
        tokens(0),
        tokens(1, epoch=2**32 - 1),
        Chunk(epoch=1, offset=2**32 - 1, token_ids=[1]).SerializeToString(),
        odd.SerializeToString(),
        b"\xff\xff",
        tokens(1),
        finished(2),
    ]
    assert ids(await read(world.relay())) == [0, 1]
    assert world.bad == ["epoch", "offset", "finished.reason", ""]


async def test_a_false_chunk_far_ahead_does_not_end_a_stream_that_goes_on() -> None:
    world = World()
    world.later = [(100.0 + i, tokens(i)) for i in range(50)]
    world.later.insert(1, (100.5, tokens(1_000_000)))
    world.later.append((150.0, finished(50)))
    assert ids(await read(world.relay())) == list(range(50))


async def test_lost_tokens_are_asked_of_the_worker_before_the_replay_buffer() -> None:
    world = World()
    world.live = [tokens(0), tokens(3), finished(4)]
    wanted: list[int] = []

    async def answer(offset: int) -> None:
        wanted.append(offset)
        world.live += [tokens(i) for i in range(offset, 3)]

    assert ids(await read(world.relay(want=answer))) == [0, 1, 2, 3]
    assert wanted == [1]
    assert world.replays == []


async def test_the_replay_buffer_is_asked_where_no_worker_has_the_tokens() -> None:
    world = World()
    world.live = [tokens(0), tokens(3), finished(4)]
    world.stored = [tokens(0), tokens(1), tokens(2)]

    async def answer(_offset: int) -> None:
        """The worker is gone."""

    assert ids(await read(world.relay(want=answer))) == [0, 1, 2, 3]
    assert len(world.replays) == 1


async def test_after_a_broken_connection_the_worker_is_asked_for_what_comes_next() -> None:
    world = World()
    world.later = [(100.0, tokens(0, 2)), (130.0, finished(4))]
    world.breaks_at = 101.0
    wanted: list[int] = []

    async def answer(offset: int) -> None:
        wanted.append(offset)
        world.live.append(tokens(2, 2))

    assert ids(await read(world.relay(want=answer))) == [0, 1, 2, 3]
    assert wanted[0] == 2
