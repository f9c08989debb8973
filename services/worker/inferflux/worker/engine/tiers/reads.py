"""Files that are read for requests: each once, however many wait for it (pure)."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, Protocol

from .disk import Read
from .kept import Kept, S
from .rates import Tier


class Reader(Protocol):
    """Reads files meanwhile; `Disk` does."""

    def read(self, name: str, n_bytes: int) -> Future[Read]: ...


@dataclass(frozen=True, slots=True)
class Match(Generic[S]):
    """A kept state of which the first `tokens` are worth restoring; computing them would take `prefill_s`."""

    kept: Kept[S]
    tokens: int
    prefill_s: float

    @property
    def tier(self) -> Tier:
        return self.kept.tier


@dataclass(slots=True, eq=False)
class Fetch(Generic[S]):
    """A match on its way to host memory.

    Attributes:
        tier: where it was found.
        tokens: of the match.
        reading: of its file; None: it is in host memory already.
        is_late: whether it was given up since it took too long.
    """

    match: Match[S]
    tier: Tier
    tokens: int
    reading: Future[Read] | None = None
    is_late: bool = False

    @property
    def is_done(self) -> bool:
        return self.reading is None or self.reading.done()


@dataclass(slots=True)
class _Reading:
    """A file that is read for some fetches."""

    future: Future[Read]
    fetches: int = 0


class Reads(Generic[S]):
    """The reads that are under way.

    A fetch that is not waited for any more may still be read: what it brings is taken later.
    """

    def __init__(self) -> None:
        # For fetches that are waited for.
        self._readings: dict[Kept[S], _Reading] = {}
        # No request waits for these any more.
        self._abandoned: list[Fetch[S]] = []

    def __contains__(self, kept: Kept[S]) -> bool:
        """True if the file of a state is read for a fetch that is waited for."""
        return kept in self._readings

    @property
    def is_stalled(self) -> bool:
        """True if a read that took too long is not over yet."""
        return any(fetch.is_late for fetch in self._abandoned)

    def begin(self, fetch: Fetch[S], reader: Reader) -> None:
        """Have the file of a fetch read. One that is being read is not read twice."""
        kept = fetch.match.kept
        if kept not in self._readings:
            self._readings[kept] = _Reading(reader.read(kept.name, kept.n_bytes))
        self._readings[kept].fetches += 1
        fetch.reading = self._readings[kept].future

    def finish(self, fetch: Fetch[S]) -> Read | None:
        """Return what was read for a fetch that is done; None if nothing had to be."""
        if fetch.reading is None:
            return None
        self._leave(fetch.match.kept)
        return fetch.reading.result()

    def abandon(self, fetch: Fetch[S], *, is_late: bool = False) -> None:
        """Wait no longer for a fetch. It is not read at all if it has not begun and no other waits for it.

        Args:
            is_late: it took too long: reads are stalled until it is over.
        """
        if fetch.reading is None:
            return
        is_last = self._leave(fetch.match.kept)
        if is_last and fetch.reading.cancel():
            return
        if is_last or is_late:
            fetch.is_late = is_late
            self._abandoned.append(fetch)

    def take_abandoned(self) -> list[tuple[Kept[S], Read]]:
        """Return what was read since the last call for fetches that no request waits for. A read that the
        last of them cancelled brings nothing."""
        done = [fetch for fetch in self._abandoned if fetch.is_done]
        self._abandoned = [fetch for fetch in self._abandoned if not fetch.is_done]
        readings = ((fetch.match.kept, fetch.reading) for fetch in done)
        return [(kept, reading.result()) for kept, reading in readings if reading and not reading.cancelled()]

    def _leave(self, kept: Kept[S]) -> bool:
        """A fetch is not waited for any more; whether it was the last one of that state."""
        reading = self._readings[kept]
        reading.fetches -= 1
        if reading.fetches == 0:
            del self._readings[kept]
        return reading.fetches == 0
