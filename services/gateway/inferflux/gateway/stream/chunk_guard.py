"""Holds the chunks of an answer back until guardrails have let their text pass (pure).

A chunk's tokens tell its text, so a chunk is passed whole or not at all. What may be passed of the text of a
chunk that is not comes with the end.
"""

from __future__ import annotations

from collections import deque

from inferflux.common.text.guardrails.compiled import Finding
from inferflux.common.text.guardrails.stream import StreamGuard
from inferflux.v1 import generation_pb2, tokens_pb2


class ChunkGuard:
    """The chunks of one answer, from its first token on.

    Attributes:
        finding: what ended the answer, once something has.
    """

    def __init__(self, guard: StreamGuard) -> None:
        self._guard = guard
        # Chunks that are held back, each with how much text has to be passed before it may be.
        self._held: deque[tuple[int, tokens_pb2.TokenChunk]] = deque()
        self._n_taken = 0
        self._n_passed = 0
        # Text that was passed of chunks that are held back.
        self._text = ""
        self.finding: Finding | None = None

    def take(self, chunk: tokens_pb2.TokenChunk) -> list[tokens_pb2.TokenChunk]:
        """The chunks that may be sent now, in order. After a finding the last one is terminal."""
        if self.finding is not None:
            return []
        is_last = chunk.HasField("finished") or chunk.HasField("failed")
        passed = self._guard.push(chunk.text)
        self._pass(passed.text)
        if passed.finding is None and is_last:
            passed = self._guard.finish()
            self._pass(passed.text)
        self._n_taken += len(chunk.text)
        self._held.append((self._needed(chunk), chunk))
        self.finding = passed.finding
        if self.finding is None and is_last:
            self._n_passed = self._n_taken
            return self._ready(is_last=True)
        ready = self._ready(is_last=False)
        return ready if self.finding is None else [*ready, self._end(chunk)]

    def _pass(self, text: str) -> None:
        self._text += text
        self._n_passed += len(text)

    def _needed(self, chunk: tokens_pb2.TokenChunk) -> int:
        """How much text has to be passed before a chunk may be. Its tokens tell more than its text: what the
        worker holds back, and bytes of one more character.
        """
        if not chunk.token_ids:
            return self._n_taken
        return self._n_taken + len(chunk.held_text) + 1

    def _ready(self, *, is_last: bool) -> list[tokens_pb2.TokenChunk]:
        ready: list[tokens_pb2.TokenChunk] = []
        while self._held and (is_last or self._held[0][0] <= self._n_passed):
            _, chunk = self._held.popleft()
            self._text = self._text[len(chunk.text) :]
            ready.append(chunk)
        return ready

    def _end(self, last: tokens_pb2.TokenChunk) -> tokens_pb2.TokenChunk:
        """The terminal chunk: with the text that was passed of chunks that were not."""
        first = self._held[0][1] if self._held else last
        finished = tokens_pb2.Finished()
        finished.CopyFrom(last.finished)
        finished.reason = generation_pb2.FINISH_REASON_CONTENT_FILTER
        return tokens_pb2.TokenChunk(
            request_id=last.request_id,
            epoch=last.epoch,
            offset=first.offset,
            text=self._text,
            finished=finished,
            attempt_id=last.attempt_id,
            model=last.model,
            answer_format=last.answer_format if last.HasField("answer_format") else None,
        )
