"""A state that is kept in a tier, and what came, moved and went of such states (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from inferflux.worker.engine.kv.envelope import Envelope, Header, TokenArray

from .rates import Tier
from .space import Order


class Preempted(Protocol):
    """A sequence whose state is kept until it resumes."""

    @property
    def order(self) -> Order:
        """Lower is more urgent; no two are equal."""


S = TypeVar("S", bound=Preempted)


@dataclass(slots=True, eq=False)
class Kept(Generic[S]):
    """A state that is kept.

    Attributes:
        envelope: while it is in host memory, or waits to be written.
        name: of its file; empty while there is none.
        owner: the preempted sequence that it belongs to; None: it is a cold prefix.
        number: tells it from others; -1: not given yet.
    """

    header: Header
    envelope: Envelope | None = None
    name: str = ""
    owner: S | None = None
    number: int = -1

    @property
    def n_bytes(self) -> int:
        return self.header.n_bytes

    @property
    def tokens(self) -> TokenArray:
        """Tokens that its payload holds."""
        return self.header.tokens[: self.header.n_past]

    @property
    def is_kept(self) -> bool:
        """True if it is in any tier still."""
        return self.envelope is not None or bool(self.name)

    @property
    def tier(self) -> Tier:
        return Tier.HOST if self.envelope is not None else Tier.DISK


class Moves(Generic[S]):
    """States that came, moved and went since the last report, and the numbers of states."""

    def __init__(self) -> None:
        self._moved: dict[Kept[S], None] = {}
        self._gone: list[Kept[S]] = []
        self._number = 0

    @property
    def are_any(self) -> bool:
        """True if `take` would give any."""
        return bool(self._moved or self._gone)

    def came(self, kept: Kept[S]) -> None:
        """A state is kept that was not. It gets a number."""
        kept.number = self._number = self._number + 1
        self._moved[kept] = None

    def moved(self, kept: Kept[S]) -> None:
        """A state may be in another tier now."""
        self._moved[kept] = None

    def went(self, kept: Kept[S]) -> None:
        """A state is in no tier any more."""
        self._moved.pop(kept, None)
        self._gone.append(kept)

    def all_moved(self, all_kept: Iterable[Kept[S]]) -> None:
        """All of these count as if they had just come."""
        self._moved.update(dict.fromkeys(all_kept))

    def take(self, most: int) -> list[Kept[S]]:
        """Return the states that went since the last call, and up to `most` of those that came or moved since
        they were last reported."""
        moved = list(islice(self._moved, most))
        for kept in moved:
            del self._moved[kept]
        gone, self._gone = self._gone, []
        return [*gone, *moved]
