"""The way of a request from one worker to another, its state ahead of it (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from inferflux.v1 import scheduler_pb2


class Why(Enum):
    """Reason for which a request is to go on elsewhere."""

    # One worker computes its prompt, another its answer.
    SPLIT = "split"
    # An operator wants it.
    ADMIN = "admin"
    # Its worker is to be empty.
    DRAIN = "drain"
    # It waits to resume where others run, and another worker is free.
    PREEMPTED = "preempted"


# A move's outcome once the request runs on the other worker.
DONE = "done"


@dataclass(slots=True, eq=False)
class Move:
    """A move that has begun. Times are seconds since the Unix epoch.

    Attributes:
        source: where the other worker fetches the state from.
        epoch: of the request on its old worker.
        until_s: its state is waited for no longer than this.
    """

    why: Why
    from_id: str
    source: scheduler_pb2.KvSource
    epoch: int
    to_id: str
    to_incarnation: str
    began_s: float
    until_s: float
    # First tokens whose state is on the other worker, as that one says.
    tokens: int = 0
    # It has left its old worker, and is on its way to the other.
    is_following: bool = False
    # Empty while it goes on; done, or why not: gone, no_room, error, late, over.
    outcome: str = ""
    # What the other worker says went wrong.
    error: str = ""
    # Called when it is over.
    on_end: Callable[[], None] = lambda: None

    @property
    def why_not(self) -> str:
        """Sentence on a move that has not come to its end; empty of one that goes on, or is done."""
        match self.outcome:
            case "" | "done":
                return ""
            case "error":
                return f"{self.to_id} cannot have its state: {self.error}. It goes on at {self.from_id}"
            case "late":
                return f"its state did not reach {self.to_id} in time. It goes on at {self.from_id}"
            case "gone":
                return f"{self.to_id} is gone"
            case "no_room":
                return f"{self.to_id} has no room for it any more"
        return "it has ended, or its worker has lost it"

    @property
    def is_split(self) -> bool:
        return self.why is Why.SPLIT

    def follow(self) -> None:
        """The request leaves its old worker now."""
        self.is_following = True

    def take(self, tokens: int, error: str) -> None:
        """Take in what the other worker says of the state."""
        self.tokens, self.error = tokens, error

    def end(self, outcome: str) -> None:
        self.outcome = outcome
        self.on_end()
