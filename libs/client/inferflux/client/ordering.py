"""Chunks of a token subject, put in order. No I/O, no clock."""

from __future__ import annotations

from inferflux.api.stream_state import StreamState, Verdict
from inferflux.v1 import tokens_pb2

_MAX_HELD = 4096


class InOrder:
    """Takes chunks as they come, and gives each token once and in order.

    Args:
        offset: tokens the reader has already.
    """

    def __init__(self, offset: int = 0) -> None:
        self._state = StreamState(offset)
        # Chunks beyond a gap.
        self._held: list[tokens_pb2.TokenChunk] = []

    @property
    def is_ended(self) -> bool:
        """Whether the terminal chunk was given."""
        return self._state.is_ended

    @property
    def missing_from(self) -> int | None:
        """The first token that later chunks wait for; None without a gap."""
        return self._state.next_offset if self._held else None

    def offer(self, chunk: tokens_pb2.TokenChunk) -> list[tokens_pb2.TokenChunk]:
        """What can be passed on now, each chunk cut to what is new."""
        accepted = self._judge(chunk)
        if accepted and self._held:
            waiting = sorted(self._held, key=lambda held: (held.offset, -held.epoch))
            self._held = []
            for held in waiting:
                accepted += self._judge(held)
        return accepted

    def _judge(self, chunk: tokens_pb2.TokenChunk) -> list[tokens_pb2.TokenChunk]:
        verdict = self._state.offer(chunk)
        if verdict is Verdict.GAP and len(self._held) < _MAX_HELD:
            self._held.append(chunk)
        return [chunk] if verdict is Verdict.ACCEPT else []
