"""The folders of an exchange that workers use: `pieces`, files of KV state, and `sockets`."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from inferflux.common.process.pieces import PIECES, UNFINISHED, crc32, release
from inferflux.common.process.private_files import bytes_below, write_all

from .packets import Failed, is_name

CHUNK_BYTES = 256 << 10
# Pieces are taken, or given up, sooner; one that is not finished may wait for more tokens.
_LEFT_S, _UNFINISHED_LEFT_S = 60.0, 600.0
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class PieceFolder:
    """The folder through which the engines of one machine and their workers pass pieces on.

    Args:
        exchange: the folder of the exchange.
        name: names the exchange: workers that give the same name share it.
        limit: most bytes of all that lies in it.
    """

    def __init__(self, exchange: Path, name: str, limit: int) -> None:
        self.name = name
        self._exchange = exchange
        self._limit = limit
        self._pieces = exchange / PIECES
        self._sockets = exchange / "sockets"

    def prepare(self) -> None:
        """Make the folders that are missing, and remove what is left in them.

        Raises:
            OSError: they cannot be made.
        """
        for folder in (self._pieces, self._sockets):
            folder.mkdir(mode=0o700, exist_ok=True)
        self.sweep()

    def sweep(self) -> None:
        """Remove sockets of processes that live no more, and pieces that lie for long: their writer, or
        their taker, lives no more either. In exchanges beside this one too: an engine removes exchanges that
        are empty."""
        now_s = time.time()
        for lock in self._exchange.parent.parent.glob(f"*/{self._exchange.name}/lock"):
            for path in lock.with_name(self._sockets.name).glob("*"):
                with contextlib.suppress(OSError):
                    if path.is_socket() and not _is_answered(path):
                        path.unlink()
            for path in lock.with_name(self._pieces.name).glob("*"):
                with contextlib.suppress(OSError):
                    limit_s = _UNFINISHED_LEFT_S if path.suffix == UNFINISHED else _LEFT_S
                    if now_s - path.lstat().st_mtime > limit_s:
                        path.unlink()

    def give_up(self) -> None:
        """Remove the folders if they are empty: the exchange goes with the last engine."""
        for folder in (self._pieces, self._sockets):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def socket_of(self, incarnation: str) -> Path:
        """Where a worker of this exchange is asked."""
        return self._sockets / incarnation

    def has_socket(self, incarnation: str) -> bool:
        """True if a worker of this exchange can be asked, as far as that can be seen."""
        with contextlib.suppress(OSError):
            return self.socket_of(incarnation).is_socket()
        return False

    def path_of(self, name: str) -> Path:
        """Raises Failed where no piece is called so."""
        if not is_name(name):
            raise Failed("corrupt", f"no piece is called {name[:64]!r}")
        return self._pieces / name

    def check_size(self, name: str, n_bytes: int) -> None:
        """Raises Failed where the piece of this name is not there, or not of this size."""
        try:
            found = self.path_of(name).lstat()
        except OSError as error:
            raise Failed("lost", f"the piece {name} is not there: {error.strerror}") from None
        if not stat.S_ISREG(found.st_mode) or found.st_size != n_bytes:
            raise Failed("corrupt", f"the piece {name} has {found.st_size} bytes, not {n_bytes}")

    def remove(self, name: str) -> None:
        """Remove a piece, if it is there."""
        if is_name(name):
            with contextlib.suppress(OSError):
                (self._pieces / name).unlink()

    def release(self, name: str) -> None:
        """A piece was read."""
        if is_name(name):
            release(self._pieces / name)

    def new(self, n_bytes: int) -> Arriving:
        """A piece of this size that begins to arrive; it has a name of its own.

        Raises:
            Failed: it cannot be made.
        """
        name = f"in-{secrets.token_hex(12)}"
        try:
            if (taken := bytes_below(self._exchange)) + n_bytes > self._limit:
                raise Failed("no_room", f"the exchange has {taken} of {self._limit} bytes")
            return Arriving(self, name, os.open(self._pieces / name, _NEW, 0o600))
        except OSError as error:
            raise Failed("no_room", f"a piece cannot be written: {error.strerror}") from None

    def chunks(self, name: str, n_bytes: int) -> Iterator[bytes]:
        """A piece, in parts.

        Raises:
            Failed: it is gone, or shorter.
        """
        try:
            with os.fdopen(os.open(self.path_of(name), _OLD), "rb", buffering=0) as file:
                left = n_bytes
                while left:
                    chunk = file.read(min(left, CHUNK_BYTES))
                    if not chunk:
                        raise Failed("corrupt", f"the piece {name} ends {left} bytes early")
                    left -= len(chunk)
                    yield chunk
        except OSError as error:
            raise Failed("lost", f"the piece {name} cannot be read: {error.strerror}") from None

    def crc(self, name: str, n_bytes: int) -> int:
        """CRC-32 of a piece; raises as `chunks`."""
        crc = 0
        for chunk in self.chunks(name, n_bytes):
            crc = crc32(chunk, crc)
        return crc


class Arriving:
    """A piece that is written as it comes: kept when all of it is there, else removed."""

    def __init__(self, folder: PieceFolder, name: str, file: int) -> None:
        self.name = name
        self._folder = folder
        self._file = file
        self._crc = 0
        self._is_whole = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        if not self._is_whole:
            self._folder.remove(self.name)

    def write(self, chunk: bytes) -> None:
        """Raises Failed where there is no room for it."""
        self._crc = crc32(chunk, self._crc)
        try:
            write_all(self._file, chunk)
        except OSError as error:
            raise Failed("no_room", f"a piece cannot be written: {error.strerror}") from None

    def end(self, crc: int) -> None:
        """All of it is there; raises Failed where that is something else than was sent."""
        if self._crc != crc:
            raise Failed("corrupt", f"a piece has the CRC-32 {self._crc:08x}, not {crc:08x}")
        self._is_whole = True


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(0.1)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:  # it is busy
            return True
    return True
