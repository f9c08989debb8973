"""State of a token stream's reader, and its verdict on each chunk. No I/O, no clock.

Chunks may come late, twice, out of order, from a worker that was replaced, or not at all. What leaves here
is every token once, in order, and one terminal event.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from inferflux.v1 import tokens_pb2

# Of one merged chunk. Log-probabilities weigh hundreds of bytes each.
_MAX_MERGED_TOKENS = 1024
_MAX_MERGED_LOGPROBS = 64

# Chunks whose text is remembered, to cut a chunk that begins among them.
_REMEMBERED_CHUNKS = 64


class Verdict(Enum):
    """Verdict on a chunk."""

    # It is the next one: pass it on.
    ACCEPT = "accept"
    # A repeat, or of an epoch that was replaced: drop it.
    SKIP = "skip"
    # Tokens before it are missing: get them, then offer it again.
    GAP = "gap"


class StreamState:
    """Follows one request's token stream.

    Args:
        offset: tokens the reader has already.
    """

    def __init__(self, offset: int = 0) -> None:
        self.next_offset = offset
        # Tokens that certainly exist, whatever the reader claims to have.
        self.tokens_end = 0
        self.epoch = 0
        self.has_started = False
        self.is_ended = False
        self._seen = _Texts()
        # What came again: another attempt may have put the same tokens into other chunks.
        self._repeated = _Texts()

    def offer(self, chunk: tokens_pb2.TokenChunk) -> Verdict:
        """Judge a chunk; an accepted one may have been cut to what is new, and counts as seen.

        An older epoch's chunk is never accepted, but a newer epoch is only believed once a chunk of it is
        accepted: a gap before it may have to be filled with what the older one still said.
        """
        if self.is_ended or chunk.epoch < self.epoch:
            return Verdict.SKIP
        n_tokens = len(chunk.token_ids)
        self.tokens_end = max(self.tokens_end, chunk.offset + n_tokens)
        event = chunk.WhichOneof("event")
        if chunk.offset > self.next_offset:
            # Waiting in the queue says nothing about tokens: its offset alone must not hold up a stream.
            return Verdict.SKIP if event == "queued" and not n_tokens else Verdict.GAP
        is_terminal = event in ("finished", "failed")
        if chunk.offset + n_tokens > self.next_offset:
            if chunk.offset < self.next_offset:
                self._cut(chunk, self.next_offset - chunk.offset)
        else:
            self._repeated.add(chunk)
            if not is_terminal and not self._is_news(chunk, event):
                self._remember(chunk)
                return Verdict.SKIP
            if chunk.offset < self.next_offset:
                self._strip(chunk)
        self._note(chunk, event, is_terminal)
        return Verdict.ACCEPT

    def _is_news(self, chunk: tokens_pb2.TokenChunk, event: str | None) -> bool:
        """True if a chunk without new tokens carries an event that is new."""
        if event == "started":
            return chunk.epoch > self.epoch or not self.has_started
        if chunk.token_ids:
            return False
        if chunk.epoch > self.epoch:
            return True
        return event == "queued" and not self.has_started and chunk.offset == self.next_offset

    def _note(self, chunk: tokens_pb2.TokenChunk, event: str | None, is_terminal: bool) -> None:
        if chunk.epoch > self.epoch:
            self.epoch = chunk.epoch
            self.has_started = False
        if event == "started":
            self.has_started = True
        if chunk.token_ids:
            self.has_started = True
            self._remember(chunk)
            self.next_offset = chunk.offset + len(chunk.token_ids)
        self.is_ended = is_terminal

    def _remember(self, chunk: tokens_pb2.TokenChunk) -> None:
        """Keep the text of a chunk, also of one that repeats: a later chunk may begin there."""
        if chunk.offset >= self._seen.end:
            self._seen.add(chunk)

    def _cut(self, chunk: tokens_pb2.TokenChunk, n_seen: int) -> None:
        """Leave what comes after the first `n_seen` tokens."""
        chunk.text = self._unseen_text(chunk)
        del chunk.token_ids[:n_seen]
        del chunk.logprobs[:n_seen]
        chunk.offset = self.next_offset

    def _unseen_text(self, chunk: tokens_pb2.TokenChunk) -> str:
        """Text of a chunk behind the text that was passed on; empty where that cannot be told.

        Tokens do not say how much of the text is theirs. The text that was passed on for them does, if it
        began where this chunk begins, or one of the repeated chunks right before it.
        """
        if self._seen.end != self.next_offset:
            return ""
        text = ""
        for start, part in [(chunk.offset, chunk.text), *self._repeated.before(chunk.offset)]:
            text = part + text
            seen = self._seen.since(start)
            if seen is not None:
                return text[len(seen) :] if text.startswith(seen) else ""
        return ""

    def _strip(self, chunk: tokens_pb2.TokenChunk) -> None:
        """Leave the event alone: all its tokens were seen."""
        del chunk.token_ids[:]
        del chunk.logprobs[:]
        chunk.text = ""
        chunk.offset = self.next_offset


class _Texts:
    """The texts of the latest chunks that follow each other.

    Attributes:
        end: the token after them.
    """

    def __init__(self) -> None:
        # Offset and text of each.
        self._chunks: deque[tuple[int, str]] = deque(maxlen=_REMEMBERED_CHUNKS)
        self.end = 0

    def add(self, chunk: tokens_pb2.TokenChunk) -> None:
        """Keep one that has tokens. Those before it are forgotten if it does not follow them."""
        if not chunk.token_ids:
            return
        if chunk.offset != self.end:
            self._chunks.clear()
        self._chunks.append((chunk.offset, chunk.text))
        self.end = chunk.offset + len(chunk.token_ids)

    def before(self, offset: int) -> list[tuple[int, str]]:
        """The chunks up to a token, the last one first; none if they do not end there."""
        return list(reversed(self._chunks)) if self.end == offset else []

    def since(self, offset: int) -> str | None:
        """The text of the chunks from a token on; None where no chunk begins there."""
        starts = [start for start, _ in self._chunks]
        if offset not in starts:
            return None
        return "".join(text for start, text in self._chunks if start >= offset)


def can_merge(first: tokens_pb2.TokenChunk, second: tokens_pb2.TokenChunk) -> bool:
    """True if two accepted neighbours can be sent as one chunk: tokens, then perhaps a good end."""
    if first.epoch != second.epoch or first.offset + len(first.token_ids) != second.offset:
        return False
    most = _MAX_MERGED_LOGPROBS if first.logprobs or second.logprobs else _MAX_MERGED_TOKENS
    if len(first.token_ids) + len(second.token_ids) > most:
        return False
    event = second.WhichOneof("event")
    if event is None:
        return True
    return event == "finished" and first.WhichOneof("event") is None


def merge(first: tokens_pb2.TokenChunk, second: tokens_pb2.TokenChunk) -> None:
    """Add `second` to the end of `first`."""
    first.token_ids.extend(second.token_ids)
    first.text += second.text
    if second.logprobs:
        first.logprobs.extend(second.logprobs)
    if second.HasField("finished"):
        first.finished.CopyFrom(second.finished)
        first.attempt_id = second.attempt_id
        first.model = second.model
        if second.HasField("vectors"):
            first.vectors.CopyFrom(second.vectors)
    if second.sampled_unix_us:
        first.sampled_unix_us = second.sampled_unix_us
