"""States on disk: written, found, and removed, within a limit of bytes."""

from __future__ import annotations

import time
from typing import Generic

from inferflux.worker.engine.kv.envelope import Envelope, Header

from .disk import Disk
from .entries import Entries
from .folder import name_of
from .index import BLOCK
from .kept import Kept, S
from .space import Space

# What is stored in one go differs by this much in when it was last used, as files tell.
_STORED_APART_NS = 1_000_000


class StateFiles(Generic[S]):
    """The files of the states that `entries` lists.

    Args:
        disk: None: there is none, and nothing is written.
        limit: most bytes of files.
        in_host: states that host memory has as well.

    Where the disk is no tier, what was found lies there until it is read, and copies of what is in host
    memory: a process that is killed leaves them to the next one.

    Attributes:
        space: the states that have files, without copies.
        copies: of states in host memory.
        evictions: states that left for want of room since the last look.
    """

    def __init__(self, disk: Disk | None, limit: int, entries: Entries[S], in_host: Space[Kept[S]]) -> None:
        self._disk = disk
        self._entries = entries
        self._in_host = in_host
        self.space: Space[Kept[S]] = Space(limit)
        # In shared memory; half of it is left to what goes to others.
        self.copies: Space[Kept[S]] = Space(limit // 2 if disk is not None and not disk.is_tier else 0)
        self.evictions = 0
        self._by_name: dict[str, Kept[S]] = {}
        # What `store` has written and what of that is known to be on disk: names, with bytes.
        self._storing: dict[str, int] = {}
        self._stored: dict[str, int] = {}
        self._used_unix_ns = 0

    @property
    def in_memory_bytes(self) -> int:
        """Bytes of files in shared memory."""
        is_memory = self._disk is not None and not self._disk.is_tier
        return self.space.used + self.copies.used if is_memory else 0

    def close(self) -> None:
        """Leave the disk to the next process."""
        if self._disk is not None:
            self._disk.close(kept.name for kept in self.copies.held())

    def named(self, name: str) -> Kept[S] | None:
        """The state of a file; None if there is none."""
        return self._by_name.get(name)

    def has_room(self, n_bytes: int) -> bool:
        """True if a file of this size may be written now."""
        disk = self._disk
        if disk is None or not disk.is_tier:
            return False
        return self.space.losers(n_bytes) is not None and disk.can_write(n_bytes)

    def take(self, kept: Kept[S]) -> None:
        """Have a state that is not in host memory any more written; it is dropped if it cannot be."""
        self._entries.moves.moved(kept)
        self.drop_copy(kept)
        if kept.name:
            kept.envelope = None
            return
        disk, envelope = self._disk, kept.envelope
        is_wanted = kept.header.n_past >= BLOCK and name_of(kept.header) not in self._by_name
        if disk is None or envelope is None or not (is_wanted and self.has_room(kept.n_bytes)):
            kept.envelope = None
            self._entries.remove(kept)
            return
        self._write(disk, kept, envelope)

    def found(self, name: str, header: Header, *, is_wanted: bool) -> None:
        """Take over a file of an earlier process, unless it is not wanted or finds no room."""
        kept: Kept[S] = Kept(header, name=name)
        losers = self.space.losers(kept.n_bytes) if is_wanted else None
        if losers is None:
            if self._disk is not None:
                self._disk.remove(name)
            return
        self._evict(losers)
        self._by_name[name] = kept
        self.space.hold(kept, kept.n_bytes)
        self._entries.add(kept)

    def taken(self, kept: Kept[S]) -> None:
        """A file was read, or is of no use to the request that it was found for: what is no tier does not
        keep it, unless it is a copy now."""
        if not kept.name or self._disk is None or self._disk.is_tier or kept in self.copies:
            return
        self.space.release(kept)
        losers = self._losers(kept) if kept in self._in_host else None
        if losers is None:
            self.remove(kept)
        else:
            self._hold_copy(kept, losers)

    def copy(self, kept: Kept[S]) -> None:
        """Have a state that came to host memory written to shared memory as well, if there is room."""
        disk, envelope, losers = self._disk, kept.envelope, self._losers(kept)
        if disk is None or envelope is None or losers is None or kept.header.n_past < BLOCK:
            return
        name = name_of(kept.header)
        if name in self._by_name or not disk.can_write(kept.n_bytes):
            return
        kept.name, self._by_name[name] = name, kept
        self._hold_copy(kept, losers)
        most_bytes = self.space.limit - self.in_memory_bytes + kept.n_bytes
        disk.write(envelope, most_bytes=most_bytes)

    def _losers(self, kept: Kept[S]) -> list[Kept[S]] | None:
        """Copies that make room for one of a state; None: they cannot."""
        order = kept.owner.order if kept.owner is not None else None
        return self.copies.losers(kept.n_bytes + self.space.used, order)

    def _hold_copy(self, kept: Kept[S], losers: list[Kept[S]]) -> None:
        for other in losers:
            self.drop_copy(other)
        self.copies.hold(kept, kept.n_bytes, kept.owner.order if kept.owner is not None else None)

    def drop_copy(self, kept: Kept[S]) -> None:
        """Remove the copy of a state in host memory, if there is one."""
        if self._disk is not None and kept in self.copies:
            self._disk.remove(kept.name)
            self.copies.release(kept)
            del self._by_name[kept.name]
            kept.name = ""

    def disowned(self, kept: Kept[S]) -> None:
        """A state is a cold prefix now."""
        if kept in self.copies:
            self.copies.hold(kept, kept.n_bytes)

    def written(self, name: str, kept: Kept[S]) -> None:
        """A state is on disk now."""
        if name in self._storing:
            self._stored[name] = self._storing[name]
        if kept not in self._in_host:
            kept.envelope = None
            self._entries.moves.moved(kept)

    def remove(self, kept: Kept[S]) -> None:
        """Remove the file of a state."""
        if self._disk is not None:
            self._disk.remove(kept.name)
        self.forget(kept)

    def forget(self, kept: Kept[S]) -> None:
        """A state is not on disk any more."""
        self.space.release(kept)
        self.copies.release(kept)
        self._by_name.pop(kept.name, None)
        kept.name = ""
        if kept not in self._in_host:
            kept.envelope = None
            self._entries.remove(kept)

    def store(self, kept: Kept[S], seconds: float) -> bool:
        """Have a state written to disk that is in memory, as used before those that were stored until now.

        Returns:
            Whether there was room on disk, and time within `seconds`; if not, the others find none either.
        """
        disk, envelope = self._disk, kept.envelope
        if disk is None or not disk.is_tier:
            return False
        self._used_unix_ns = (self._used_unix_ns or time.time_ns()) - _STORED_APART_NS
        name = name_of(kept.header)
        if name in self._by_name:
            disk.touch(name, self._used_unix_ns)
        elif envelope is not None:
            n_bytes = sum(self._storing.values()) + kept.n_bytes
            if n_bytes > self.space.limit or not disk.wait_until_writable(kept.n_bytes, seconds):
                return False
            self._storing[name] = kept.n_bytes
            self._write(disk, kept, envelope, self._used_unix_ns)
        return True

    def store_new(self, envelope: Envelope, seconds: float) -> bool:
        """The same for a prefix that is not kept yet; host memory does not keep it."""
        kept: Kept[S] = Kept(envelope.header, envelope)
        self._entries.add(kept)
        is_stored = self.store(kept, seconds)
        if not kept.name:
            kept.envelope = None
            self._entries.remove(kept)
        return is_stored

    def stored(self) -> tuple[int, int]:
        """(states, bytes) that `store` wrote and that are known to be on disk."""
        return len(self._stored), sum(self._stored.values())

    def _write(self, disk: Disk, kept: Kept[S], envelope: Envelope, used_unix_ns: int | None = None) -> None:
        """Have a state written that the disk has room for."""
        self._evict(self.space.losers(kept.n_bytes) or [])
        kept.name = name_of(kept.header)
        self._by_name[kept.name] = kept
        self.space.hold(kept, kept.n_bytes)
        disk.write(envelope, used_unix_ns=used_unix_ns)

    def _evict(self, losers: list[Kept[S]]) -> None:
        for kept in losers:
            self.evictions += 1
            self.remove(kept)
