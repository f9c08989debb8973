"""Reads and writes of the disk tier, off the engine's thread.

One thread scans, writes and removes, in order; another reads, a third searches in what other processes left.
The engine's thread takes the results between two steps. A disk that refuses a write is left alone for a
while: what would be written is dropped.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from inferflux.worker.engine.kv.envelope import Envelope, Header, Identity, Refused, TokenArray

from .claims import FolderInUse, make_private, sweep
from .folder import Folder, name_of
from .searches import Inheritance, Search

PAUSE_S = 60.0
# What a dead process left is looked for this often.
_SEARCH_INTERVAL_S = 0.01
# A dead process's files are removed when another one starts and they were unused for this many seconds.
LEFT_S = 7 * 86_400
# Writes that wait hold their state in memory.
MOST_WAITING_BYTES = 256 << 20


class DiskUnavailable(Exception):
    """The folder cannot be used; says why."""


class Event(Enum):
    """Event in the life of a file."""

    FOUND = auto()
    """It was there at the start."""
    STORED = auto()
    LOST = auto()
    """It could not be written."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something happened to a file.

    Attributes:
        header: of a write, the very object that its envelope has.
    """

    event: Event
    name: str
    header: Header


@dataclass(frozen=True, slots=True)
class Read:
    """Result of a read: an envelope, or None if the file is damaged or gone; and the seconds it took."""

    envelope: Envelope | None
    seconds: float


class Disk:
    """A folder of envelopes of one identity.

    Args:
        clock_s: monotonic clock.
        is_tier: whether states are kept there; if not, there are an exchange, copies of states in host
            memory, and what was found. Nothing outlives this object but what lies in the exchange; a process
            that is killed leaves all of it.

    Raises:
        DiskUnavailable: the folder cannot be used.
    """

    def __init__(
        self,
        root: Path,
        identity: Identity,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        is_tier: bool = True,
    ) -> None:
        self._root = root
        self.is_tier = is_tier
        try:
            self._folder = self._claim()
        except (OSError, FolderInUse) as error:
            raise DiskUnavailable(str(error)) from None
        if not is_tier:
            self._folder.leave_all()
        self._identity = identity
        self._clock_s = clock_s
        self._writer = ThreadPoolExecutor(1, "kv-writer")
        self._reader = ThreadPoolExecutor(1, "kv-reader")
        self._searcher = ThreadPoolExecutor(1, "kv-searcher")
        # Prefixes that are searched for.
        self._wanted: deque[Search] = deque()
        # None: the scan of the start is over. A search: that one is.
        self._changes: deque[Change | Search | None] = deque()
        self._waiting_bytes = 0
        self._written: deque[int] = deque()
        self._writes: deque[Future[None]] = deque()
        self._reads: deque[tuple[Future[Read], int]] = deque()
        self._paused_until_s = 0.0
        self._errors: deque[str] = deque(maxlen=1)
        # Files that are removed, and need not be written before that.
        self._unwanted: set[str] = set()
        self._inheritance = Inheritance()
        self._is_closing = False
        # Scans that are not over, or whose end `changes` has not come to yet.
        self._scans = 0
        if is_tier:
            self._begin_scan()
        else:
            self._inherit()

    def close(self, copies: Iterable[str] = ()) -> None:
        """Finish the write that is under way, and drop the others.

        Args:
            copies: names of files that are not needed any more.
        """
        self._is_closing = True
        self._writer.shutdown(cancel_futures=True)
        self._reader.shutdown(cancel_futures=True)
        self._searcher.shutdown(cancel_futures=True)
        if self.is_tier:
            self._folder.close()
        else:
            for name in (*copies, *self._unwanted, *self._inheritance.names):
                self._folder.remove(name)
            self._folder.give_up()

    def flush(self) -> None:
        """Wait for everything that is to be written or removed."""
        self._writer.submit(lambda: None).result()

    def can_write(self, n_bytes: int) -> bool:
        """True if an envelope of `n_bytes` would be tried now: writing is not off, and few others wait."""
        while self._written:
            self._waiting_bytes -= self._written.popleft()
        is_full = self._waiting_bytes > 0 and self._waiting_bytes + n_bytes > MOST_WAITING_BYTES
        return not is_full and self._clock_s() >= self._paused_until_s

    def wait_until_writable(self, n_bytes: int, seconds: float) -> bool:
        """True if an envelope of `n_bytes` would be tried within `seconds`, for which it waits at most."""
        if seconds <= 0:
            return False
        until_s = self._clock_s() + seconds
        while not self.can_write(n_bytes):
            if self._clock_s() < self._paused_until_s or not self._wait_for_a_write(until_s):
                return False
        return True

    def wait_for_writes(self, seconds: float) -> None:
        """Return when all is written, or after `seconds`."""
        until_s = self._clock_s() + seconds
        while self._writes and self._wait_for_a_write(until_s):
            pass

    def _wait_for_a_write(self, until_s: float) -> bool:
        """True if the write that waits for the longest time is over by then, if there is any."""
        if self._writes:
            with contextlib.suppress(TimeoutError):
                self._writes[0].result(max(until_s - self._clock_s(), 0.0))
                self._writes.popleft()
                return True
        return False

    def write(
        self, envelope: Envelope, *, used_unix_ns: int | None = None, most_bytes: int | None = None
    ) -> None:
        """Store an envelope some time later, which `changes` then tells.

        Args:
            used_unix_ns: when it was last used; when it is written if it is not given.
            most_bytes: of it and the exchange. Where that is not enough, nothing else is wrong.
        """
        self._waiting_bytes += envelope.n_bytes
        while self._writes and self._writes[0].done():
            self._writes.popleft()
        self._writes.append(self._writer.submit(self._write, envelope, used_unix_ns, most_bytes))

    def touch(self, name: str, used_unix_ns: int) -> None:
        """Note some time later when a file was last used."""
        self._writer.submit(self._folder.touch, name, used_unix_ns)

    def remove(self, name: str) -> None:
        """Remove a file some time later, before anything that is written after this. What waits to be written
        need not be."""
        self._unwanted.add(name)
        self._writer.submit(self._remove, name)

    def read(self, name: str, n_bytes: int) -> Future[Read]:
        """Read a file of `n_bytes` meanwhile, after those that were asked for before."""
        reading = self._reader.submit(self._read, name)
        self._reads.append((reading, n_bytes))
        return reading

    @property
    def bytes_to_read(self) -> int:
        """Bytes of the files that are asked for and not read yet."""
        while self._reads and self._reads[0][0].done():
            self._reads.popleft()
        return sum(n_bytes for reading, n_bytes in self._reads if not reading.done())

    def changes(self) -> list[Change]:
        """Return the files that were found, stored or lost since the last call, in order."""
        found = []
        with contextlib.suppress(IndexError):
            while True:
                change = self._changes.popleft()
                if isinstance(change, Change):
                    found.append(change)
                    continue
                self._scans -= 1
                if change is not None:
                    change.is_over = True
        return found

    @property
    def is_scanning(self) -> bool:
        """True if `changes` may still give files that were there before."""
        return self._scans > 0

    def take_error(self) -> str:
        """Reason why writing is off for a while; empty if it is not, or was told before."""
        return self._errors.popleft() if self._errors else ""

    def search(self, scope: str, tokens: TokenArray) -> Search:
        """Look for a prefix of these tokens in the exchange, and in the folders of processes that live no
        more; `changes` tells of what was found."""
        search = Search(scope, tokens)
        self._begin_search(search)
        return search

    def offer(self, envelope: Envelope, most_bytes: int) -> None:
        """Put an envelope in the exchange some time later, where all there takes `most_bytes` at most."""
        self._waiting_bytes += envelope.n_bytes
        self._writes.append(self._writer.submit(self._offer, envelope, most_bytes))

    @property
    def exchange(self) -> str:
        """Name of the exchange."""
        return self._folder.name

    @property
    def exchange_path(self) -> Path:
        """The exchange's folder."""
        return self._folder.exchange

    def _begin_search(self, search: Search) -> None:
        self._wanted.append(search)
        self._scans += 1
        self._searcher.submit(self._search)

    def _inherit(self) -> None:
        """Take over what dead processes have left, before it is swept."""
        self._scans += 1
        try:
            others = self._folder.others()
            self._take_over(others, [self._inheritance])
        except OSError as error:
            self._errors.append(f"the KV files of others could not be listed: {error}")
            others = []
        self._changes.append(None)
        if others:
            self._begin_search(self._inheritance)
        self._writer.submit(self._sweep)

    def _search(self) -> None:
        """Once for all that is searched for by now, and comes meanwhile.

        A process that was killed has its folder until its memory is freed, and one that lives takes a moment
        to leave what it was told to. So both are looked at again for 2 seconds.
        """
        others: list[Path] | None = None
        searches: list[Search] = []
        while True:
            with contextlib.suppress(IndexError):
                while True:
                    searches.append(self._wanted.popleft())
            if not searches:
                return
            try:
                others = self._folder.others() if others is None else others
                self._take_over(others, searches)
                is_over = self._is_closing
            except OSError as error:
                self._errors.append(f"the KV files of others could not be listed: {error}")
                is_over = True
            now_s = time.monotonic()
            over = [s for s in searches if s.is_complete or s.is_given_up or is_over or now_s >= s.until_s]
            self._changes.extend(over)
            searches = [search for search in searches if search not in over]
            if searches:
                time.sleep(_SEARCH_INTERVAL_S)

    def _take_over(self, others: list[Path], searches: list[Search]) -> None:
        """Take what is searched for and found now. Folders of the dead leave `others`: nothing comes there
        any more."""

        def is_wanted(header: Header) -> bool:
            return any(search.matched(header) for search in searches)

        def is_asked_for(header: Header) -> bool:
            return any(s.matched(header) for s in searches if s is not self._inheritance)

        taken = self._folder.take_over(self._folder.exchange, self._identity, is_asked_for) or []
        for path in others.copy():
            found = self._folder.take_over(path, self._identity, is_wanted)
            if found is not None:
                taken += found
                others.remove(path)
        for name, header in taken:
            for search in searches:
                search.take(name, header)
            self._changes.append(Change(Event.FOUND, name, header))

    def _begin_scan(self) -> None:
        self._scans += 1
        self._writer.submit(self._scan)

    def _scan(self) -> None:
        try:
            for name, header in self._folder.scan(self._identity):
                self._changes.append(Change(Event.FOUND, name, header))
        except OSError as error:
            self._errors.append(f"the KV files could not be listed: {error}")
        finally:
            self._changes.append(None)
        self._folder.clear_left(time.time_ns() - LEFT_S * 10**9)
        self._folder.clear_left_over()

    def _write(self, envelope: Envelope, used_unix_ns: int | None, most_bytes: int | None) -> None:
        name = name_of(envelope.header)
        try:
            if name in self._unwanted or self._clock_s() < self._paused_until_s:
                raise OSError
            self._be_there()
            self._folder.write(envelope, used_unix_ns=used_unix_ns, most_bytes=most_bytes)
            self._changes.append(Change(Event.STORED, name, envelope.header))
        except (OSError, FolderInUse) as error:
            self._changes.append(Change(Event.LOST, name, envelope.header))
            is_full = most_bytes is not None or name in self._unwanted
            if not is_full and self._clock_s() >= self._paused_until_s:
                self._paused_until_s = self._clock_s() + PAUSE_S
                self._errors.append(f"KV state could not be written, not tried for {PAUSE_S:g} s: {error}")
        finally:
            self._written.append(envelope.n_bytes)

    def _remove(self, name: str) -> None:
        self._unwanted.discard(name)
        self._folder.remove(name)

    def _sweep(self) -> None:
        with contextlib.suppress(OSError):
            sweep(self._folder.path)

    def _offer(self, envelope: Envelope, most_bytes: int) -> None:
        try:
            self._be_there()
            self._folder.clear_left_over()
            self._folder.offer(envelope, most_bytes)
        except (OSError, FolderInUse) as error:
            self._errors.append(f"the state of a request was not left for others: {error}")
        finally:
            self._written.append(envelope.n_bytes)

    def _claim(self) -> Folder:
        if not self.is_tier:
            make_private(self._root.parent)
        return Folder(self._root, is_memory=not self.is_tier)

    def _be_there(self) -> None:
        """Take a folder again if this one was removed. What was in it is found to be gone when it is
        read.

        Raises:
            OSError, FolderInUse: as for `Folder`.
        """
        if not self._folder.is_there:
            before, self._folder = self._folder, self._claim()
            before.close()

    def _read(self, name: str) -> Read:
        began = time.perf_counter()
        try:
            envelope = self._folder.read(name, self._identity)
        except (OSError, Refused, MemoryError):
            return Read(None, time.perf_counter() - began)
        return Read(envelope, time.perf_counter() - began)
