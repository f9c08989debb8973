"""The exchange, as the engine's memory uses it: state of requests that goes to another engine."""

from __future__ import annotations

from typing import Generic

from inferflux.worker.engine.kv.envelope import Envelope, TokenArray

from .disk import Disk
from .kept import S
from .reads import Reads
from .searches import Search
from .state_files import StateFiles


class Exchange(Generic[S]):
    """What this engine leaves to others, and what others leave to it.

    Args:
        disk: None: there is no exchange.
        limit: most bytes of all that lies in it; of shared memory, of `files` as well.
        files: of the states that were found.
        reads: of these files.
    """

    def __init__(self, disk: Disk | None, limit: int, files: StateFiles[S], reads: Reads[S]) -> None:
        self._disk = disk
        self._limit = limit
        self._files = files
        self._reads = reads
        # Searches that no request waits for.
        self._ended: list[Search] = []

    def search(self, scope: str, tokens: TokenArray) -> Search | None:
        """Look for a prefix of these tokens in what other processes left. The tiers have it before the search
        is over. None: there is nowhere to look."""
        return self._disk.search(scope, tokens) if self._disk is not None else None

    def end(self, search: Search) -> None:
        """A request waits for a search no more. What was found and is not read is of no use to others, unless
        it is in a tier."""
        search.is_given_up = True
        self._ended.append(search)

    def drop_found(self) -> None:
        """Drop what ended searches have found."""
        for search in [search for search in self._ended if search.is_over]:
            self._ended.remove(search)
            for name in search.names:
                kept = self._files.named(name)
                if kept is not None and kept not in self._reads:
                    self._files.taken(kept)

    def has_room(self, n_bytes: int, seconds: float = 0.0) -> bool:
        """True if a state of this size would be tried within `seconds`, for which it waits at most."""
        disk = self._disk
        if disk is None or n_bytes > self._limit:
            return False
        return disk.can_write(n_bytes) or disk.wait_until_writable(n_bytes, seconds)

    def offer(self, envelope: Envelope) -> None:
        """Leave a state to other engines, some time later."""
        if self._disk is not None:
            self._disk.offer(envelope, self._limit - self._files.in_memory_bytes)

    def wait_for_writes(self, seconds: float) -> None:
        """Return when all is written, or after `seconds`."""
        if self._disk is not None:
            self._disk.wait_for_writes(seconds)
