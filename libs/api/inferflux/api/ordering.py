"""Chunks of a token subject, put in order. No I/O, no clock."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from inferflux.v1 import tokens_pb2

from .stream_state import StreamState, Verdict

_MAX_HELD = 4096


class InOrder:
    """Takes chunks as they come, and gives each token once and in order.

    Args:
        offset: tokens the reader has already.

    Attributes:
        state: what the reader knows of the stream.
    """

    def __init__(self, offset: int = 0) -> None:
        self.state = StreamState(offset)
        # Chunks beyond a gap, by offset; of those of one offset the newest epoch comes first.
        self._held: list[tuple[int, int, int, tokens_pb2.TokenChunk]] = []
        self._numbers = count()

    @property
    def missing(self) -> range | None:
        """The tokens that later chunks wait for; None without a gap."""
        return range(self.state.next_offset, self._held[0][0]) if self._held else None

    def offer(self, chunk: tokens_pb2.TokenChunk) -> list[tokens_pb2.TokenChunk]:
        """Take a chunk and return the chunks that can be passed on now, each cut to its new tokens."""
        epoch = self.state.epoch
        accepted = self._judge(chunk)
        while self._held and self._held[0][0] <= self.state.next_offset:
            accepted += self._judge(heappop(self._held)[-1])
        if self.state.epoch > epoch or self.state.is_ended:
            self._drop_old()
        return accepted

    def _judge(self, chunk: tokens_pb2.TokenChunk) -> list[tokens_pb2.TokenChunk]:
        verdict = self.state.offer(chunk)
        if verdict is Verdict.GAP and len(self._held) < _MAX_HELD:
            heappush(self._held, (chunk.offset, -chunk.epoch, next(self._numbers), chunk))
        return [chunk] if verdict is Verdict.ACCEPT else []

    def _drop_old(self) -> None:
        """Drop held chunks that would not be accepted any more."""
        state = self.state
        self._held = [] if state.is_ended else [held for held in self._held if -held[1] >= state.epoch]
        heapify(self._held)
