"""What clients, NATS and Redis were seen to do, kept to be judged afterwards."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chaos.transcript import Transcript

from inferflux.v1 import tokens_pb2

from .asks import Asked


@dataclass(slots=True)
class Served:
    """A request and all that its client saw.

    Attributes:
        ended_s: by the monotonic clock, as all times.
        received_s: when chunks came: (when, tokens so far, epoch).
        is_refused: it was never accepted: the client may send it again.
        is_late: its deadline ended it.
        came_back: its stream failed, and was resumed by hand.
    """

    ask: Asked
    transcript: Transcript
    ended_s: float = 0.0
    first_s: float = 0.0
    received_s: list[tuple[float, int, int]] = field(default_factory=list)
    is_refused: bool = False
    is_late: bool = False
    came_back: bool = False

    def received(self, chunk: tokens_pb2.TokenChunk, now_s: float) -> None:
        if chunk.token_ids:
            self.first_s = self.first_s or now_s
            self.received_s.append((now_s, chunk.offset + len(chunk.token_ids), chunk.epoch))

    @property
    def wait_s(self) -> float:
        """For the first token."""
        return self.first_s - self.transcript.began_s if self.first_s else 0.0

    @property
    def is_whole(self) -> bool:
        return self.transcript.terminal is not None and not self.transcript.is_cancelled

    def as_record(self) -> dict[str, object]:
        """For a file."""
        transcript = self.transcript
        return {
            "request_id": self.ask.request_id,
            "asked_tokens": self.ask.n_tokens,
            "began_s": transcript.began_s,
            "ended_s": self.ended_s,
            "received": self.received_s,
            "workers": transcript.workers,
            "failure": transcript.failure,
            "wrongs": transcript.wrongs,
            "whim": self.ask.whim.value,
            "resumes": transcript.resumes,
            "end": str(transcript.terminal).replace("\n", " ") if transcript.terminal is not None else "",
        }


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A batch that a worker has accepted.

    Attributes:
        term: in which it was dispatched.
        sender: the inbox that the answer went to, which is a scheduler process's own.
    """

    at_s: float
    term: int
    sender: str


@dataclass(slots=True)
class History:
    """All of a case."""

    served: list[Served] = field(default_factory=list)
    dispatches: list[Dispatch] = field(default_factory=list)
    # When something was lost that may take settlements with it: a gateway, or the primary of Redis.
    losses_s: list[float] = field(default_factory=list)
    # From when to when settlements may have waited at gateways, as the primary of Redis was away.
    away_s: list[tuple[float, float]] = field(default_factory=list)
    counted_before: dict[str, int] = field(default_factory=dict)
    counted_after: dict[str, int] = field(default_factory=dict)
    underway: dict[str, Served] = field(default_factory=dict)

    @property
    def flowing(self) -> int:
        """Requests under way of which tokens have come, and those that are over."""
        return sum(bool(each.first_s) for each in self.underway.values()) + len(self.served)

    @property
    def begun(self) -> int:
        """Requests that clients have sent."""
        return len(self.underway) + len(self.served)

    @contextlib.contextmanager
    def recording(self, served: Served) -> Iterator[Served]:
        self.underway[served.ask.request_id] = served
        try:
            yield served
        finally:
            served.ended_s = time.monotonic()
            del self.underway[served.ask.request_id]
            self.served.append(served)

    def counted(self, what: str) -> int:
        """What was added to a counter of the tenant's usage."""
        return self.counted_after.get(what, 0) - self.counted_before.get(what, 0)

    def write(self, path: Path) -> None:
        """As lines of JSON."""
        lines = [json.dumps(each.as_record()) for each in self.served]
        lines += [
            json.dumps({"term": each.term, "sender": each.sender, "at_s": each.at_s})
            for each in self.dispatches
        ]
        path.write_text("\n".join(lines) + "\n")
