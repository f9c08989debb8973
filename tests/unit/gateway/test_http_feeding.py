"""Floods of tiny frames and chunks: what is worked on when, on a clock and with costs of the test's own."""

from __future__ import annotations

import asyncio

import pytest

from inferflux.gateway.http.front.feeding import Feeder, Pace

PIECE_BYTES = 4


class Wire(asyncio.Transport):
    """A connection that says whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True
        self.has_closed = False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self.has_closed


class Reader:
    """A protocol whose pieces cost what the test says."""

    def __init__(self, pace: Pace, *, cost_s: float) -> None:
        self.wire = Wire()
        self.taken = b""
        self.sizes: list[int] = []
        self.is_busy = False
        self._cost_s, self._work_s = cost_s, 0.0
        self.feeder = Feeder(
            pace,
            self.wire,
            self._take,
            piece_bytes=PIECE_BYTES,
            waits=lambda: self.is_busy,
            work_s=lambda: self._work_s,
        )

    def _take(self, piece: bytes) -> None:
        self.sizes.append(len(piece))
        self.taken += piece
        self._work_s += self._cost_s

    async def until_taken(self, data: bytes) -> None:
        async with asyncio.timeout(10):
            while self.taken != data or not self.wire.is_read:
                await asyncio.sleep(0)


DATA = bytes(range(40))


async def test_what_costs_little_is_taken_at_once() -> None:
    reader = Reader(Pace(), cost_s=0.00001)
    reader.feeder.receive(DATA)
    assert reader.taken == DATA
    assert reader.sizes == [4, 8, 16, 12]
    assert reader.wire.is_read


async def test_a_costly_flood_is_taken_in_order_a_piece_at_a_time_and_not_read_meanwhile() -> None:
    reader = Reader(Pace(), cost_s=0.003)
    reader.feeder.receive(DATA[:30])
    assert reader.taken == DATA[:PIECE_BYTES]
    assert not reader.wire.is_read
    reader.feeder.receive(DATA[30:])  # it was read already
    assert reader.taken == DATA[:PIECE_BYTES]
    await reader.until_taken(DATA)
    assert set(reader.sizes) == {PIECE_BYTES}


def test_all_floods_together_get_a_quarter_of_the_time() -> None:
    now_s = 100.0
    pace = Pace(lambda: now_s)
    assert [pace.wait_s(0.5) for _ in range(3)] == pytest.approx([1.5, 3.0, 4.5])
    now_s = 200.0
    assert pace.wait_s(0.5) == pytest.approx(1.5)


async def test_nothing_is_given_to_a_protocol_that_waits_and_all_of_it_later() -> None:
    reader = Reader(Pace(), cost_s=0.00001)
    reader.is_busy = True
    reader.feeder.receive(DATA)
    assert reader.taken == b""
    reader.is_busy = False
    reader.wire.resume_reading()  # as uvicorn does
    reader.feeder.go_on()
    assert not reader.wire.is_read
    await reader.until_taken(DATA)


@pytest.mark.parametrize("how", ["stopped", "closing"])
async def test_what_is_left_of_a_connection_that_is_gone_is_dropped(how: str) -> None:
    reader = Reader(Pace(), cost_s=0.003)
    reader.feeder.receive(DATA)
    if how == "stopped":
        reader.feeder.stop()
    else:
        reader.wire.has_closed = True
    await asyncio.sleep(0.05)  # nothing is to happen in this time
    reader.feeder.go_on()
    assert reader.taken == DATA[:PIECE_BYTES]
