"""Files of pieces: state that leaves this engine while its request goes on, and state that comes from others.

A piece is written straight into the memory of its file, in the folder `pieces` of the exchange. One thread
makes files ahead, one seals them and gives them their names. Files that were read are used again. Another
thread reads the pieces that come.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from inferflux.common.process.pieces import PIECES, READ, REUSED, UNFINISHED, release
from inferflux.common.process.private_files import bytes_below, replacing, write_all
from inferflux.worker.engine.kv.envelope import (
    PRELUDE_BYTES,
    Envelope,
    Identity,
    StateBytes,
    TokenArray,
    blank,
    header_bytes,
    open_envelope,
    open_header,
)

from .folder import mapped, opened

# The next piece of a sequence names more tokens: a file is made with room for some.
_MARGIN = 1 << 13
_PAGE = 4096
T = TypeVar("T")
# Of files that wait to be used again; no more than this part of what the exchange may have.
_MOST_SPARE_BYTES = 32 << 20
_SPARE_PART = 8


class PieceFiles:
    """The files of pieces.

    Args:
        identity: of the context's state.
        exchange: its folder; None: there is none, and no piece is written.
        limit: most bytes of all that lies in the exchange, and of what counts beside it.
        beside: bytes that count; called in another thread too.

    Attributes:
        on_done: called in a thread that has made, written or read a file.
    """

    def __init__(
        self, identity: Identity, exchange: Path | None, limit: int, beside: Callable[[], int] = lambda: 0
    ) -> None:
        self.on_done: Callable[[], None] = lambda: None
        self._identity = identity
        self._exchange = exchange
        self._limit = limit
        self._beside = beside
        self._most_spare = min(_MOST_SPARE_BYTES, limit // _SPARE_PART)
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._writer = ThreadPoolExecutor(1, "piece-writer")
        self._maker = ThreadPoolExecutor(1, "piece-maker")
        self._reader = ThreadPoolExecutor(1, "piece-reader")
        self._preparing: Future[tuple[str, StateBytes]] | None = None
        # All memory of files that were written, by name; of those that can be used again.
        self._written: dict[str, StateBytes] = {}
        self._spares: dict[str, StateBytes] = {}

    @property
    def is_there(self) -> bool:
        """True if pieces can be written."""
        return self._exchange is not None

    def close(self) -> None:
        """Finish the writes that were asked for. Files of pieces stay."""
        self.prepare_no_more()
        self.drop_spares()
        self._maker.shutdown()
        self._writer.shutdown()
        self._reader.shutdown(cancel_futures=True)

    def blank(self, scope: str, tokens: TokenArray, first: int, payload_bytes: int) -> tuple[str, Envelope]:
        """(the name, the envelope) of a piece whose payload is still to be written, in the memory of a file.

        Raises:
            OSError: there is no room.
        """
        names: list[str] = []

        def buffer(n_bytes: int) -> StateBytes:
            taken = self._take_spare(n_bytes) or self._take_prepared(n_bytes)
            if taken is None:
                self._make_room(n_bytes + _MARGIN)
                taken = self._made(n_bytes + _MARGIN)
            name, memory = taken
            names.append(name)
            self._written[name] = memory
            return memory[:n_bytes]

        envelope = blank(self._identity, scope, tokens, payload_bytes, first=first, buffer=buffer)
        return names[0], envelope

    @property
    def is_preparing(self) -> bool:
        """True if a file is made that a piece will have."""
        return self._preparing is not None and not self._preparing.done()

    def prepare(self, n_bytes: int) -> None:
        """Have a file made for a piece of about this size, unless one can be used again: the first touch of
        memory takes longer than a copy, and others decode meanwhile."""
        if self._preparing is None and not self._spare_for(n_bytes):
            self._preparing = self._told(self._maker.submit(self._touched, n_bytes + _MARGIN))

    def prepare_no_more(self) -> None:
        """Remove what was made and is not in use."""
        if self._preparing is not None:
            preparing, self._preparing = self._preparing, None
            preparing.add_done_callback(self._remove_prepared)

    def _remove_prepared(self, preparing: Future[tuple[str, StateBytes]]) -> None:
        if preparing.exception() is None:
            self._unlink(preparing.result()[0])

    def _take_prepared(self, n_bytes: int) -> tuple[str, StateBytes] | None:
        """(name, memory) of the file that was made before, if there is one and it fits."""
        preparing = self._preparing
        if preparing is None or not preparing.done():
            return None
        if preparing.exception() is not None or preparing.result()[1].size < n_bytes:
            self.prepare_no_more()
            return None
        self._preparing = None
        return preparing.result()

    def _spare_for(self, n_bytes: int) -> str:
        """Name of the smallest file that can be used again for so much; empty: none, or far larger ones."""
        sizes = {name: memory.size for name, memory in self._spares.items()}
        fitting = [name for name, size in sizes.items() if n_bytes <= size <= 2 * (n_bytes + _MARGIN)]
        return min(fitting, key=sizes.__getitem__, default="")

    def _take_spare(self, n_bytes: int) -> tuple[str, StateBytes] | None:
        """(name, memory) of a file that is used again, if there is one."""
        name = self._spare_for(n_bytes)
        if not name:
            return None
        memory = self._spares.pop(name)
        try:
            _grow(self._path(name + UNFINISHED), n_bytes)
        except OSError:  # it was removed meanwhile
            self._unlink(name)
            return None
        return name, memory

    def drop_spares(self) -> None:
        """Use no file again, and remove those that could be."""
        self._unlink(*self._spares)
        self._spares.clear()
        with contextlib.suppress(OSError):
            for path in self._path("").glob(f"*{READ}"):
                path.unlink(missing_ok=True)

    def _touched(self, n_bytes: int) -> tuple[str, StateBytes]:
        """In the maker's thread: `_spares` are the engine's, and do not make room here."""
        self._check_room(n_bytes)
        name, memory = self._made(n_bytes)
        memory[::_PAGE] = 0
        return name, memory

    def _make_room(self, n_bytes: int) -> None:
        """Have files that wait to be used again make room. Raises as `_check_room`."""
        try:
            self._check_room(n_bytes)
        except OSError:
            if not self._spares:
                raise
            self.drop_spares()
            self._check_room(n_bytes)

    def _made(self, n_bytes: int) -> tuple[str, StateBytes]:
        """(name, memory) of a new file.

        Raises:
            OSError: there is no room.
        """
        name = self._new_name()
        return name, _made(self._path(name + UNFINISHED), n_bytes)

    def write(self, name: str, envelope: Envelope) -> Future[None]:
        """Have a piece of `blank` sealed, and get its name."""
        folder = self._folder()

        def seal() -> None:
            envelope.seal()
            os.truncate(folder / (name + UNFINISHED), envelope.n_bytes)
            (folder / (name + UNFINISHED)).rename(folder / name)

        return self._told(self._writer.submit(seal))

    def copy(self, envelope: Envelope) -> tuple[str, Future[None]]:
        """(the name, the write) of a piece that is a state in host memory.

        Raises:
            OSError: there is no room.
        """
        name, folder = self._new_name(), self._folder()
        self._make_room(envelope.n_bytes)

        def write() -> None:
            envelope.seal()
            with replacing(folder / name, beside=folder / (name + UNFINISHED)) as file:
                write_all(file.fileno(), envelope.buffer.data)

        return name, self._told(self._writer.submit(write))

    def is_unread(self, name: str) -> bool:
        """True if the file of a piece that was written is there still, as far as that can be seen."""
        with contextlib.suppress(OSError):
            if self._path(name).exists():
                return True
        self._use_again(name)
        return False

    def _use_again(self, name: str) -> None:
        """Keep a file that was read, if there is room; under a new name, as others remove the old one when
        its transfer ends."""
        memory = self._written.pop(name, None)
        spare = sum(each.size for each in self._spares.values())
        if memory is None or spare + memory.size > self._most_spare:
            self._unlink(name)
            return
        new = self._new_name()
        with contextlib.suppress(OSError):  # it was removed
            self._path(name + READ).rename(self._path(new + UNFINISHED))
            self._spares[new] = memory

    def remove(self, *names: str) -> None:
        """Remove pieces, after those that are being written."""

        for name in names:
            self._written.pop(name, None)
        if names:
            self._writer.submit(self._unlink, *names)

    def _unlink(self, *names: str) -> None:
        for name in names:
            for each in (self._path(name + end) for end in ("", UNFINISHED, READ)):
                with contextlib.suppress(OSError):
                    each.unlink()

    def wait_for_writes(self, seconds: float) -> None:
        """Return when all that was asked for is written, or after `seconds`."""
        with contextlib.suppress(TimeoutError):
            self._writer.submit(lambda: None).result(seconds)

    def read(self, path: str) -> Future[Envelope]:
        """Read a piece meanwhile, after those that were asked for before. It may raise Refused or OSError."""
        return self._told(self._reader.submit(_read, self._path(path), self._identity))

    def taken(self, path: str) -> None:
        """A piece was read, and its envelope is not used any more."""
        release(self._path(path))

    def discard(self, path: str) -> None:
        """Remove a piece that is of no use: it may be read still."""
        self._unlink(path)

    def _told(self, work: Future[T]) -> Future[T]:
        work.add_done_callback(lambda _: self.on_done())
        return work

    def _path(self, path: str) -> Path:
        return (self._exchange or Path()) / PIECES / path

    def _folder(self) -> Path:
        """The folder; it is made if it is missing.

        Raises:
            OSError: there is none.
        """
        if self._exchange is None:
            raise FileNotFoundError(errno.ENOENT, "there is no exchange")
        folder = self._exchange / PIECES
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _check_room(self, n_bytes: int) -> None:
        """Raises:
        OSError: the exchange has no room for so much.
        """
        taken, limit = bytes_below(self._folder().parent), self._limit - self._beside()
        if taken + n_bytes > limit:
            raise OSError(errno.ENOSPC, f"the exchange has {taken} of {limit} bytes")

    def _new_name(self) -> str:
        return f"{REUSED}{self._prefix}-{next(self._numbers)}"


def _made(path: Path, n_bytes: int) -> StateBytes:
    """The memory of a new file.

    Raises:
        OSError: there is no room; there is no file then.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # Without that, a full folder would be noticed by a signal.
        os.posix_fallocate(file, 0, n_bytes)
        return np.frombuffer(mmap.mmap(file, n_bytes), np.uint8)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(file)


def _grow(path: Path, n_bytes: int) -> None:
    """Raises:
    OSError: the file is gone, or there is no room for so much.
    """
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.posix_fallocate(file, 0, n_bytes)
        os.utime(file)  # it is of use, for those who remove what is left
    finally:
        os.close(file)


def _read(path: Path, identity: Identity) -> Envelope:
    """Raises:
    Refused: it is damaged, or not of this identity.
    OSError: it cannot be read.
    """
    with opened(path) as file:
        prelude = file.read(PRELUDE_BYTES)
        rest = file.read(header_bytes(prelude) - PRELUDE_BYTES)
        n_bytes = os.fstat(file.fileno()).st_size
        open_header(prelude + rest, n_bytes)
        data = mapped(file, n_bytes)
    return open_envelope(data, identity)
