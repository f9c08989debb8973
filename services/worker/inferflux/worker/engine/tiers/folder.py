"""The files of the disk tier: an envelope each, written whole or not at all.

A file is written under another name, synchronized and renamed, so a process that dies meanwhile leaves the
file as it was, or none. What is named like a state and is no envelope of this engine's identity, or not the
one that its name says, is removed when it is met. Files of other names are left alone. Only the worker's user
can read the files: prompts are in them.

Beside the folder of each process lies one that all of them share, the exchange: what is written there any of
them may take.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import numpy as np

from inferflux.common.process.private_files import bytes_below, replacing, write_all
from inferflux.worker.engine.kv.envelope import (
    PRELUDE_BYTES,
    Envelope,
    Header,
    Identity,
    Refusal,
    Refused,
    StateBytes,
    check_identity,
    header_bytes,
    open_envelope,
    open_header,
)

from .claims import (
    EXCHANGE,
    LOCK,
    MOST_WORKERS,
    SUFFIX,
    UNFINISHED,
    claimed,
    clear,
    clear_left_over,
    locked,
    remove_unused,
)

# Of Linux: another one with each start of the machine.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


# Whether a state is to be taken over, by its header.
IsWanted = Callable[[Header], bool]


class Folder:
    """A folder that this process alone uses, for as long as it lives.

    Args:
        root: is made if it is missing. The lowest numbered folder in it that no other process has is taken.
        is_memory: whether its files lie in memory: they are mapped, not read. An empty folder is taken, if
            there is one: what a dead process has left stays where it is looked for.

    Raises:
        OSError: it cannot be made or written to.
        FolderInUse: other processes have all of it.
    """

    def __init__(self, root: Path, *, is_memory: bool = False) -> None:
        self.path, self._lock = claimed(root, is_empty=is_memory)
        self._is_memory = is_memory
        self.exchange = root / EXCHANGE
        self._open_exchange()

    def close(self) -> None:
        """Let another process have the folder."""
        os.close(self._lock)

    def give_up(self) -> None:
        """Remove the folder: what is in it goes to the exchange. The exchange goes with the last folder, if
        it is empty."""
        self.leave_all()
        self.clear_left_over()
        with contextlib.suppress(OSError):
            (self.path / LOCK).unlink()
            self.path.rmdir()
        self.close()
        with contextlib.suppress(OSError):
            remove_unused(self.path.parent)

    def leave_all(self) -> None:
        """Put what is in the folder in the exchange."""
        for path in self.path.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):
                path.replace(self.exchange / path.name)

    def clear_left_over(self) -> None:
        """Remove what was not taken from the exchange for 10 minutes."""
        clear_left_over(self.exchange)

    def _open_exchange(self) -> None:
        self.exchange.mkdir(mode=0o700, exist_ok=True)
        (self.exchange / LOCK).touch(mode=0o600)

    @property
    def name(self) -> str:
        """Name of the exchange: processes whose names are the same share it."""
        found = self.path.parent.stat()
        machine = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else os.uname().nodename
        return f"{machine}:{found.st_dev:x}:{found.st_ino:x}"

    @property
    def is_there(self) -> bool:
        """True if it is still this process's: it may have been removed, with the lock in it."""
        try:
            return os.path.samestat(os.fstat(self._lock), (self.path / LOCK).stat())
        except OSError:
            return False

    def clear_left(self, unused_since_ns: int) -> None:
        """Remove files of processes that live no more, if they were last used before that time. A process
        that starts again with as many others as before finds younger ones."""
        for path in self.others():
            clear(path, unused_since_ns)

    def scan(self, identity: Identity) -> Iterator[tuple[str, Header]]:
        """(name, header) of every envelope of this identity, the longest unused first. What is named like one
        and is none is removed.

        Payloads are not read.
        """
        found = []
        for entry in os.scandir(self.path):
            if not entry.name.endswith((SUFFIX, SUFFIX + UNFINISHED)):
                continue
            with contextlib.suppress(OSError):
                found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
        for _, name in sorted(found):
            try:
                header = _header_of(self.path / name)
                check_identity(header, identity)
            except (Refused, OSError):
                self.remove(name)
                continue
            yield name, header

    def others(self) -> list[Path]:
        """The numbered folders of other processes, living and dead; not the exchange."""
        found = (self.path.parent / str(number) for number in range(MOST_WORKERS))
        return [path for path in found if path != self.path and (path / LOCK).exists()]

    def take_over(
        self, path: Path, identity: Identity, is_wanted: IsWanted
    ) -> list[tuple[str, Header]] | None:
        """(name, header) of what is wanted of another folder, or of the exchange. It is here now.

        Returns:
            None if a living process has the folder: it keeps the lock for as long as it lives. Meanwhile none
            that starts takes the folder.
        """
        taken = []
        try:
            with locked(path, fcntl.LOCK_SH):
                for entry in path.iterdir():
                    with contextlib.suppress(OSError, Refused):
                        header = _header_of(entry)
                        check_identity(header, identity)
                        if is_wanted(header):
                            entry.rename(self.path / entry.name)
                            taken.append((entry.name, header))
        except BlockingIOError:
            return None
        except OSError:  # it is gone, or cannot be read
            return taken
        return taken

    def write(
        self, envelope: Envelope, *, used_unix_ns: int | None = None, most_bytes: int | None = None
    ) -> str:
        """Seal and store an envelope; returns its name.

        Args:
            used_unix_ns: when it was last used; now if it is not given.
            most_bytes: of this one and all that is in the exchange. As much as half of it stays free where
                the folder lies. None: any number.

        Raises:
            OSError: it could not be stored; nothing of it is left.
        """
        if most_bytes is not None:
            check_room(self.exchange, envelope.n_bytes, most_bytes)
            found = os.statvfs(self.path)
            if found.f_bavail * found.f_frsize < envelope.n_bytes + most_bytes // 2:
                raise OSError(errno.ENOSPC, "others need what is free")
            os.utime(self.path / LOCK)
        envelope.seal()
        name = name_of(envelope.header)
        with replacing(self.path / name, beside=self.path / (name + UNFINISHED)) as file:
            write_all(file.fileno(), envelope.buffer.data)
            if used_unix_ns is not None:
                os.utime(file.fileno(), ns=(used_unix_ns, used_unix_ns))
            os.fsync(file.fileno())
        self._sync()
        return name

    def offer(self, envelope: Envelope, most_bytes: int) -> None:
        """Seal an envelope and put it in the exchange. It need not outlive the machine. What is a file in
        memory is moved there.

        Args:
            most_bytes: of all that is there.

        Raises:
            OSError: it could not be put there, or finds no room; nothing of it is left.
        """
        self._open_exchange()
        name = name_of(envelope.header)
        if self._is_memory:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.path / name)
                (self.path / name).replace(self.exchange / name)
                return
        check_room(self.exchange, envelope.n_bytes, most_bytes)
        envelope.seal()
        beside = self.exchange / f"{name}.{os.getpid()}{UNFINISHED}"
        with replacing(self.exchange / name, beside=beside) as file:
            write_all(file.fileno(), envelope.buffer.data)

    def read(self, name: str, identity: Identity) -> Envelope:
        """The envelope of this name, checked. It counts as used now.

        Raises:
            Refused: it is damaged, foreign or of other tokens, and is removed.
            OSError: it could not be read.
        """
        path = self.path / name
        try:
            with opened(path) as file:
                # The file says how long it is before memory is taken for it.
                n = _header_in(file, name).n_bytes
                if self._is_memory:
                    buffer = mapped(file, n)
                else:
                    buffer = np.empty(n, np.uint8)
                    file.seek(0)
                    buffer = buffer[: _read_all(file.fileno(), buffer.data)]
            envelope = open_envelope(buffer, identity)
        except Refused:
            self.remove(name)
            raise
        with contextlib.suppress(OSError):
            os.utime(path)
        return envelope

    def touch(self, name: str, used_unix_ns: int) -> None:
        """Note when a file was last used, if it is there."""
        with contextlib.suppress(OSError):
            os.utime(self.path / name, ns=(used_unix_ns, used_unix_ns))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(OSError):
            (self.path / name).unlink()

    def _sync(self) -> None:
        """Make renames last."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_room(exchange: Path, n_bytes: int, most_bytes: int) -> None:
    """Raises:
    OSError: an exchange with `most_bytes` at most has no room for so much.
    """
    taken = bytes_below(exchange)
    if taken + n_bytes > most_bytes:
        raise OSError(errno.ENOSPC, f"the exchange has {taken} of {most_bytes} bytes")


def name_of(header: Header) -> str:
    """The file's name: it follows from the scope and the tokens."""
    digest = blake2b(header.scope.encode(), digest_size=16)
    digest.update(b"\0" + header.tokens.astype("<i4").tobytes())
    return digest.hexdigest() + SUFFIX


def mapped(file: BinaryIO, n_bytes: int) -> StateBytes:
    """The bytes of a file, which may be removed, and must not be changed, meanwhile. What is written to them
    is not in the file.

    Memory that a process touches for the first time is slow: it does not take any for what lies in memory.
    """
    return np.frombuffer(mmap.mmap(file.fileno(), n_bytes, access=mmap.ACCESS_COPY), np.uint8)


def _header_of(path: Path) -> Header:
    if path.suffix != SUFFIX:
        raise FileNotFoundError(path)
    with opened(path) as file:
        return _header_in(file, path.name)


def opened(path: Path) -> BinaryIO:
    """A file for reading. What else may be there is never waited for, such as a pipe, nor are links followed.

    Raises:
        OSError: it cannot be opened.
        Refused: it is no file.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Refused(Refusal.UNKNOWN, "no regular file")
    return os.fdopen(file, "rb", buffering=0)


def _header_in(file: BinaryIO, name: str) -> Header:
    """The header of the file of this name.

    Raises:
        Refused: it is no whole envelope, or another one than the name says: that one's tokens would be taken
            for those that were looked for.
    """
    prelude = file.read(PRELUDE_BYTES)
    rest = file.read(header_bytes(prelude) - PRELUDE_BYTES)
    header = open_header(prelude + rest, os.fstat(file.fileno()).st_size)
    if header.first or name_of(header) != name:
        raise Refused(Refusal.FOREIGN, "a piece, of another scope, or of other tokens")
    return header


def _read_all(file: int, into: memoryview) -> int:
    """Bytes read: fewer than wanted if the file ends before."""
    at = 0
    while at < len(into):
        n = os.readv(file, [into[at:]])
        if n == 0:
            break
        at += n
    return at
