"""How fast a connection's bytes are worked on: one that sends tiny frames or chunks holds up no other.

The loop reads 256 KiB at a time, which may be 40,000 frames. They are worked on a piece at a time, and the
loop serves others in between. A connection whose pieces cost more than a moment is not read for a while. Such
connections wait in one line: however many they are, together they take a quarter of the loop's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# A piece that costs this much is full of tiny things. Ordinary ones cost a tenth of it.
_COSTLY_S = 0.0003
# How many times as large pieces become of a connection whose bytes cost little.
_GROWTH = 8
# Work on costly pieces after which a connection waits.
_MOST_S = 0.002
# Seconds that the loop is left to others for each second that it was held up.
_OTHERS = 3.0


class Pace:
    """When the costly connections of a server may go on.

    Args:
        now: seconds on a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._free_at = 0.0

    def wait_s(self, cost_s: float) -> float:
        """How long a connection waits that has cost this much: behind those that wait already."""
        now = self.now()
        self._free_at = max(self._free_at, now) + cost_s * _OTHERS
        return self._free_at - now


class Feeder:
    """Gives a protocol what its connection sends, in order, a piece at a time.

    Args:
        pace: shared by all connections of a server.
        transport: of the connection; it is not read while something is left.
        feed: takes a piece.
        piece_bytes: so few that `feed` takes about a millisecond, whatever is in them. Pieces grow while they
            cost little.
        waits: whether the protocol takes nothing now. It has paused the transport itself, and calls `go_on`
            when it takes more.
        work_s: seconds of work of this thread until now. They tell what is costly. How long a connection then
            waits follows from how long it held up the loop, which is longer on a busy machine.
    """

    def __init__(
        self,
        pace: Pace,
        transport: asyncio.Transport,
        feed: Callable[[bytes], None],
        *,
        piece_bytes: int,
        waits: Callable[[], bool],
        work_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._pace = pace
        self._transport = transport
        self._feed = feed
        self._smallest_bytes = self._piece_bytes = piece_bytes
        self._waits = waits
        self._work_s = work_s
        self._loop = asyncio.get_running_loop()
        self._rest = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._is_held = False
        self._is_working = False
        self._is_over = False
        # Since it last waited: work on costly pieces, and how long the loop was held up by them.
        self._costly_work_s = 0.0
        self._held_up_s = 0.0

    def receive(self, data: bytes) -> None:
        """Take what has come."""
        self._rest += data
        if self._timer is None:
            self._work()
        else:
            self._hold()

    def go_on(self) -> None:
        """The protocol takes more, and may have had the transport read on."""
        if self._is_working:
            return
        if self._rest and self._timer is None:
            self._work_in(0.0)
        elif self._timer is not None:
            self._hold()

    def stop(self) -> None:
        """The connection is another protocol's, or lost: what is left is dropped."""
        self._is_over = True
        self._rest.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _work(self) -> None:
        self._timer = None
        self._is_working = True
        while self._rest and self._costly_work_s < _MOST_S and self._takes():
            self._feed_piece()
        self._is_working = False
        if self._transport.is_closing():
            self.stop()
        if self._is_over:
            return
        if self._costly_work_s >= _MOST_S:
            wait_s = self._pace.wait_s(self._held_up_s)
            self._costly_work_s = self._held_up_s = 0.0
            self._work_in(wait_s)
        elif self._rest:  # the protocol waits
            self._is_held = True
        elif self._is_held and self._takes():
            self._is_held = False
            self._transport.resume_reading()

    def _takes(self) -> bool:
        return not (self._waits() or self._transport.is_closing())

    def _feed_piece(self) -> None:
        piece = bytes(self._rest[: self._piece_bytes])
        del self._rest[: self._piece_bytes]
        began_s, work_began_s = self._pace.now(), self._work_s()
        self._feed(piece)
        work_s = self._work_s() - work_began_s
        if work_s < _COSTLY_S:
            self._piece_bytes = min(self._piece_bytes * 2, self._smallest_bytes * _GROWTH)
            return
        self._piece_bytes = self._smallest_bytes
        self._costly_work_s += work_s
        self._held_up_s += self._pace.now() - began_s

    def _work_in(self, delay_s: float) -> None:
        self._hold()
        self._timer = self._loop.call_later(delay_s, self._work)

    def _hold(self) -> None:
        self._is_held = True
        if not self._transport.is_closing():
            self._transport.pause_reading()
