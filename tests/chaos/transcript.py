"""What one client was sent, held against what it should be (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from inferflux.v1 import generation_pb2, tokens_pb2

from .workload import Whim


class Asked(Protocol):
    """What a client asked for."""

    @property
    def priority(self) -> int: ...
    @property
    def whim(self) -> Whim: ...
    @property
    def whim_after(self) -> int: ...

    @property
    def text(self) -> str:
        """Of the whole answer."""


@dataclass(slots=True)
class Transcript:
    """A stream over all its connections.

    Attributes:
        request_id: the order's, or the one it was sent again under.
        expected: token ids of the whole answer.
        good_end: how a whole answer ends.
        has_left: the client closed the stream, and does not care any more.
        failure: what the request failed with; empty if it did not.
        is_excused: the failure is one that had to be.
    """

    order: Asked
    request_id: str
    expected: list[int]
    began_s: float
    good_end: generation_pb2.FinishReason.ValueType = generation_pb2.FINISH_REASON_STOP
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    terminal: tokens_pb2.Finished | None = None
    failure: str = ""
    is_excused: bool = False
    has_left: bool = False
    has_cancelled: bool = False
    has_chunks: bool = False
    epochs: set[int] = field(default_factory=set)
    workers: list[str] = field(default_factory=list)
    resumes: int = 0
    longest_silence_s: float = 0.0
    wrongs: list[str] = field(default_factory=list)
    _spoke_s: float = 0.0

    @property
    def offset(self) -> int:
        return len(self.token_ids)

    @property
    def is_over(self) -> bool:
        return self.terminal is not None or bool(self.failure) or self.has_left

    @property
    def is_cancelled(self) -> bool:
        return self.terminal is not None and self.terminal.reason == generation_pb2.FINISH_REASON_CANCELLED

    def add(self, chunk: tokens_pb2.TokenChunk, now: float) -> None:
        """Take in what came; what is wrong with it is kept in `wrongs`."""
        self.has_chunks = True
        if self.terminal is not None:
            self.wrongs.append(f"something came after the end: {_brief(chunk)}")
        if chunk.request_id != self.request_id:
            self.wrongs.append(f"a chunk of another request: {_brief(chunk)}")
        if chunk.token_ids:
            self._add_tokens(chunk, now)
        self.text += chunk.text
        if chunk.HasField("started"):
            self.workers.append(chunk.started.worker_id)
        if chunk.HasField("finished"):
            self.terminal = chunk.finished

    def _add_tokens(self, chunk: tokens_pb2.TokenChunk, now: float) -> None:
        if chunk.offset != self.offset:
            what = "lost" if chunk.offset > self.offset else "doubled"
            self.wrongs.append(f"tokens {what}: had {self.offset}, then came {_brief(chunk)}")
        if chunk.epoch < max(self.epochs, default=0):
            self.wrongs.append(f"tokens of an older epoch than {max(self.epochs)}: {_brief(chunk)}")
        self.token_ids.extend(chunk.token_ids)
        self.epochs.add(chunk.epoch)
        if self._spoke_s:
            self.longest_silence_s = max(self.longest_silence_s, now - self._spoke_s)
        self._spoke_s = now

    def breaches(self) -> list[str]:
        """What should not have been, once it is over."""
        found = list(self.wrongs)
        if self.failure and not self.is_excused:
            found.append(f"failed: {self.failure}")
        if self.terminal is None:
            return found + self._wrong_so_far()
        if self.is_cancelled:
            if not self.has_cancelled:
                found.append(f"cancelled without a request for it after {self.offset} tokens")
            return found + self._wrong_so_far()
        if self.terminal.reason != self.good_end:
            reason = generation_pb2.FinishReason.Name(self.terminal.reason)
            found.append(f"ended with {reason} after {self.offset} tokens")
        if self.text != self.order.text:
            found.append(f"the text {_difference(self.text, self.order.text)}")
        if self.token_ids != self.expected:
            found.append(f"the token list {_difference(self.token_ids, self.expected)}")
        if self.terminal.usage.completion_tokens != len(self.expected):
            told = self.terminal.usage.completion_tokens
            found.append(f"the usage says {told} tokens instead of {len(self.expected)}")
        return found

    def _wrong_so_far(self) -> list[str]:
        if self.order.text.startswith(self.text) and self.expected[: self.offset] == self.token_ids:
            return []
        return [
            f"what came is no beginning of the answer: the text {_difference(self.text, self.order.text)}, "
            f"the token list {_difference(self.token_ids, self.expected)}"
        ]

    def describe(self) -> str:
        """The circumstances, for looking into a breach."""
        facts = [
            f"priority {self.order.priority}",
            f"{self.offset} tokens",
            f"epochs {sorted(self.epochs)}",
            f"workers {self.workers}",
            f"resumed {self.resumes} times",
        ]
        if self.order.whim is not Whim.NONE:
            facts.append(f"{self.order.whim.value} after {self.order.whim_after}")
        return ", ".join(facts)


def _difference(is_: Sequence[object], should_be: Sequence[object]) -> str:
    """Where two sequences part, with a little of what follows."""
    same = next((i for i, (a, b) in enumerate(zip(is_, should_be, strict=False)) if a != b), None)
    at = min(len(is_), len(should_be)) if same is None else same
    return (
        f"is {len(is_)} long instead of {len(should_be)}, and from {at} on it goes "
        f"{is_[at : at + 12]!r} instead of {should_be[at : at + 12]!r}"
    )


def _brief(chunk: tokens_pb2.TokenChunk) -> str:
    event = chunk.WhichOneof("event") or "no event"
    return f"offset {chunk.offset}, {len(chunk.token_ids)} tokens, epoch {chunk.epoch}, {event}"
