"""The files of audit chains: each chain in a folder that one process writes, each file of one day.

    NAME-0/audit-000000000001-20260131.jsonl   lines; the name says the first one's number and day (UTC)
    NAME-0/head                                the last line's number and hash: a missing end shows against it
    NAME-0/lock                                held by the process that writes
    audit.key                                  where no key is set

Files are only ever appended to. A line is on the disk before the head names it, so the head is never ahead of
what was written. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from inferflux.common.process.private_files import write_private

from .chain import AuditKeys, BadLine, Head, head_bytes, is_sealed, read_head, read_line, seal, torn_note

KEY_FILE = "audit.key"
HEAD_FILE = "head"
_LOCK_FILE = "lock"
_PATTERN = "audit-*.jsonl"
# Processes of one service that share a folder have a numbered one in it each.
_MOST_CHAINS = 256
_READ_BYTES = 1 << 16


class FolderInUse(Exception):
    """Other processes have every chain of the folder."""


def files_of(folder: Path) -> list[Path]:
    """The files of a chain, in order."""
    return sorted(folder.glob(_PATTERN))


def chains_of(root: Path) -> list[Path]:
    """The folders of chains at or below a path."""
    if files_of(root):
        return [root]
    return sorted(path for path in root.iterdir() if path.is_dir() and files_of(path))


def made_key(root: Path) -> str:
    """The key that is kept in a folder; made if there is none.

    Raises:
        OSError: it can be neither read nor written.
    """
    path = root / KEY_FILE
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().strip()
    scratch = root / f".{KEY_FILE}.{secrets.token_hex(8)}"
    write_private(scratch, secrets.token_urlsafe(32) + "\n")
    try:
        with contextlib.suppress(FileExistsError):  # another process was first
            path.hardlink_to(scratch)
    finally:
        scratch.unlink()
    return path.read_text().strip()


class ChainFiles:
    """The chain of this process: continues the first one of its service that no living process has.

    Args:
        root: folder of all chains; is made if it is missing.
        name: of the service.
        syncs: whether lines are on the disk, beyond the system's cache, when `append` returns.

    Raises:
        OSError: the folder cannot be used.
        FolderInUse: other processes have all of it.
    """

    def __init__(self, root: Path, name: str, keys: AuditKeys, *, syncs: bool = True) -> None:
        self._keys = keys
        self._syncs = syncs
        self.folder, self._lock = _claimed(root, name)
        self._fd = -1
        self._file_day = ""
        # Lines that are not written yet, or not all of the first: its day, and its number.
        self._pending: deque[tuple[bytes, str, Head]] = deque()
        self._is_in_line = False
        self._before_next = b""
        self._must_sync = False
        self._written = Head()
        try:
            self.head, self._opening = self._recover()
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def opening(self) -> Mapping[str, object]:
        """Fields of this process's first line: the state in which the chain was found."""
        return self._opening

    def append(self, records: Iterable[Mapping[str, object]]) -> None:
        """Seal and write records, each with `at`, when it was, as ISO 8601 in UTC.

        Raises:
            OSError: not all could be written. They are kept: the next call goes on where this one stopped.
        """
        for record in records:
            line, self.head = seal(self.head, record, self._keys.chain)
            day = str(record["at"])[:10].replace("-", "")
            self._pending.append((self._before_next + line, day, self.head))
            self._before_next = b""
        while self._pending:
            self._rotate()
            self._write_some()
        if self._must_sync and self._fd >= 0:
            if self._syncs:
                os.fdatasync(self._fd)
            self._write_head()
            self._must_sync = False

    def close(self) -> None:
        """Let another process go on with the chain."""
        if self._fd >= 0:
            os.close(self._fd)
        os.close(self._lock)

    def _rotate(self) -> None:
        """Begin another file if the next line belongs into one."""
        _, day, head = self._pending[0]
        if self._is_in_line or (self._fd >= 0 and day == self._file_day):
            return
        path = self.folder / f"audit-{head.seq:012d}-{day}.jsonl"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if self._fd >= 0:
            if self._syncs:
                os.fdatasync(self._fd)
            os.close(self._fd)
        self._fd, self._file_day = fd, day
        if self._syncs:
            _sync_folder(self.folder)

    def _write_some(self) -> None:
        """Write lines of one file at once; what was not taken stays pending."""
        day = self._pending[0][1]
        batch = takewhile(lambda pending: pending[1] == day, self._pending)
        n = os.write(self._fd, b"".join(line for line, _, _ in batch))
        self._must_sync = True
        while self._pending and n >= len(self._pending[0][0]):
            line, _, self._written = self._pending.popleft()
            n -= len(line)
            self._is_in_line = False
        if n:
            line, day, head = self._pending[0]
            self._pending[0] = (line[n:], day, head)
            self._is_in_line = True

    def _write_head(self) -> None:
        data = head_bytes(self._written, self._keys.chain)
        fd = os.open(self.folder / HEAD_FILE, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, data, 0)
        finally:
            os.close(fd)

    def _recover(self) -> tuple[Head, dict[str, object]]:
        """Find the head that the chain goes on from, and the fields of `opening`."""
        files = files_of(self.folder)
        opening: dict[str, object] = {"chain": self.folder.name, "key": self._keys.key_id}
        noted = self._noted_head(opening, is_expected=bool(files))
        found, rest = _end_of(files[-1]) if files else (Head(), b"")
        is_in_line = bool(rest) and not rest.endswith(b"\n")
        for path in reversed(files[:-1]):
            if found.seq:
                break
            found, _ = _end_of(path)
        whole = _head_of(rest + b"\n")
        lacks_newline = whole is not None and is_sealed(rest, self._keys.chain)
        if whole is not None and lacks_newline and whole.seq == found.seq + 1:
            found, rest = whole, b""
        if noted is not None and noted.seq > found.seq:
            opening["missing_lines"] = noted.seq - found.seq
            found = noted
        elif rest:
            opening["torn"] = torn_note(rest)
        self._continue_file(files, is_in_line=is_in_line)
        self._written = found
        return found, opening

    def _noted_head(self, opening: dict[str, object], *, is_expected: bool) -> Head | None:
        try:
            return read_head((self.folder / HEAD_FILE).read_bytes(), self._keys.chain)
        except FileNotFoundError:
            if is_expected:
                opening["head"] = "missing"
        except BadLine:
            opening["head"] = "unreadable"
        return None

    def _continue_file(self, files: list[Path], *, is_in_line: bool) -> None:
        if not files:
            return
        self._fd = os.open(files[-1], os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._file_day = files[-1].stem.rpartition("-")[2]
        # What a killed process left incomplete stays; the next write ends it, and the next line names it.
        self._is_in_line = is_in_line
        self._before_next = b"\n" if is_in_line else b""


class LineReader:
    """Gives the whole lines of trails, unchecked, each once, as they come. What cannot be read is left out.

    Args:
        paths: folders of chains, or files.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._positions: dict[Path, int] = {}

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """The fields of each line that was written since the last call."""
        for path in self._paths:
            files = (
                [file for chain in chains_of(path) for file in files_of(chain)] if path.is_dir() else [path]
            )
            for file in files:
                yield from self._new_of(file)

    def _new_of(self, path: Path) -> Iterator[dict[str, Any]]:
        position = self._positions.get(path, 0)
        with path.open("rb") as file:
            file.seek(position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                position += len(line)
                try:
                    yield dict(read_line(line[:-1]).fields)
                except BadLine:
                    continue
        self._positions[path] = position


def _claimed(root: Path, name: str) -> tuple[Path, int]:
    """A folder that no other process has, and the lock on it."""
    for number in range(_MOST_CHAINS):
        folder = root / f"{name}-{number}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        else:
            return folder, lock
    raise FolderInUse(f"{_MOST_CHAINS} other processes write audit chains of {name} in {root}")


def _end_of(path: Path) -> tuple[Head, bytes]:
    """The last line of a file that can be read, and what follows it; no line: all of the file follows."""
    size = path.stat().st_size
    n_bytes = _READ_BYTES
    while True:
        with path.open("rb") as file:
            file.seek(max(0, size - n_bytes))
            data = file.read()
        lines = data.splitlines(keepends=True)
        for i in range(len(lines) - 1, -1, -1):
            head = _head_of(lines[i])
            if head is not None:
                return head, b"".join(lines[i + 1 :])
        if n_bytes >= size:
            return Head(), data
        n_bytes *= 4


def _head_of(line: bytes) -> Head | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return read_line(line[:-1]).head
    except BadLine:
        return None


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
