"""A table in one encrypted file.

    inferflux policy 1 <seal>\\n    how it is encrypted: see `sealing`
    <nonce>                        12 bytes, new with each change
    <rows>                         INI text, encrypted with AES-256-GCM; it authenticates the first line too

Policy processes of one host share it. A process that changes it locks `<file>.lock`, writes `<file>.new` and
renames that. So the file is whole at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from inferflux.common.contract.errors import InvalidArgument, ResourceExhausted, Unavailable
from inferflux.common.process.private_files import replacing, write_all

from .ini import from_ini, to_ini
from .sealed import PASSPHRASE
from .sealing import NONCE_BYTES, Damaged, Keyring, Seal, WrongPassphrase
from .table import LARGE, Changes, Edits, Row

PATH = "INFERFLUX_POLICY_STORAGE_PATH"
MAX_BYTES = 64 << 20

_FORMAT = "inferflux policy 1 "
_MAX_HEADER_BYTES = 200
_LOCK_RETRY_S = 0.01

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of a file when it was read.

    Attributes:
        mark: its first bytes, which no two contents share; empty where there was no file.
    """

    mark: bytes
    revision: int
    rows: dict[Row, str]
    seal: Seal


class FileTable:
    """A `Table`.

    Args:
        timeout_s: longest wait for the disk, or for another process that changes the file.
    """

    def __init__(self, path: Path, keyring: Keyring, *, timeout_s: float) -> None:
        self._path = path
        self._keyring = keyring
        self._timeout_s = timeout_s
        # Held by a thread that works on the file.
        self._working = threading.Lock()
        self._content: _Content | None = None

    async def open(self) -> None:
        try:
            await asyncio.to_thread(self._open)
        except WrongPassphrase as error:
            raise InvalidArgument(f"{PASSPHRASE}: {self._path}: {error}", field=PASSPHRASE) from None
        except Damaged as error:
            raise InvalidArgument(f"{PATH}: {self._path} cannot be used: {error}", field=PATH) from None
        except OSError as error:
            raise InvalidArgument(f"{PATH}: cannot use {self._path}: {error}", field=PATH) from None

    async def changes(self, since: int) -> Changes:
        content = await self._in_time(self._read)
        if content.revision == since:
            return Changes(since, {})
        rows = {row: value for row, value in content.rows.items() if row.kind not in LARGE}
        return Changes(content.revision, rows, is_whole=True)

    async def large(self, rows: Sequence[Row]) -> list[str | None]:
        content = await self._in_time(self._read)
        return [content.rows.get(row) for row in rows]

    async def write(self, edits: Edits, *, expected: int, revision: int) -> bool:
        return await self._in_time(partial(self._write, edits, expected, revision))

    def turn(self) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    async def aclose(self) -> None:
        pass

    async def _in_time(self, work: Callable[[], _Result]) -> _Result:
        """Do some work in a thread of its own.

        Raises:
            Unavailable: the file cannot be used, or not in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.to_thread(work)
        except TimeoutError:
            message = f"the policy file could not be used within {self._timeout_s:g} s"
            raise Unavailable(message, reason="STORE_TIMEOUT", detail=str(self._path)) from None
        except (WrongPassphrase, Damaged) as error:
            detail = f"{self._path}: {error}"
            raise Unavailable(
                "the policy file cannot be used", reason="STORE_UNREADABLE", detail=detail
            ) from None
        except OSError as error:
            detail = f"{self._path}: {error}"
            raise Unavailable(
                "the policy file cannot be used", reason="STORE_UNAVAILABLE", detail=detail
            ) from None

    def _open(self) -> None:
        with self._working, self._locked():
            content = self._load()
            if not content.seal.is_current:
                self._store(content.rows, content.revision + 1, self._keyring.fresh())

    def _read(self) -> _Content:
        with self._working:
            return self._load()

    def _write(self, edits: Edits, expected: int, revision: int) -> bool:
        with self._working, self._locked():
            content = self._load()
            if content.revision != expected:
                return False
            rows = {row: value for row, value in content.rows.items() if row not in edits}
            rows |= {row: value for row, value in edits.items() if value is not None}
            self._store(rows, revision, content.seal)
            return True

    def _load(self) -> _Content:
        """The content that the file has now.

        Raises:
            WrongPassphrase: it was encrypted with another one.
            Damaged: it was cut short or changed by others, or is gone.
        """
        try:
            with self._path.open("rb") as file:
                header = file.readline(_MAX_HEADER_BYTES)
                nonce = file.read(NONCE_BYTES)
                if self._content is not None and header + nonce == self._content.mark:
                    return self._content
                body = file.read(MAX_BYTES)
        except FileNotFoundError:
            if self._content is not None and self._content.mark:
                raise Damaged("it is gone") from None
            self._content = self._content or _Content(b"", 0, {}, self._keyring.fresh())
        else:
            self._content = self._decrypted(header, nonce, body)
        return self._content

    def _decrypted(self, header: bytes, nonce: bytes, body: bytes) -> _Content:
        text = header.decode("ascii", "replace")
        if not (text.startswith(_FORMAT) and text.endswith("\n")):
            raise Damaged("it is none of policy's files, or was cut short")
        seal = self._keyring.unlock(text.removeprefix(_FORMAT).rstrip("\n"))
        ini = seal.decrypt(nonce + body, name=header)
        try:
            revision, rows = from_ini(ini.decode("ascii"))
        except ValueError:
            raise Damaged("it has something else than policy's rows") from None
        return _Content(header + nonce, revision, rows, seal)

    def _store(self, rows: dict[Row, str], revision: int, seal: Seal) -> None:
        """Replace the file.

        Raises:
            ResourceExhausted: it would be too large.
        """
        header = f"{_FORMAT}{seal.header}\n".encode("ascii")
        data = seal.encrypt(to_ini(revision, rows).encode("ascii"), name=header)
        if len(data) > MAX_BYTES:
            message = f"the policy file would have more than {MAX_BYTES >> 20} MiB: use another storage"
            raise ResourceExhausted(message, reason="POLICY_FILE_FULL", retry_delay_s=None)
        with replacing(self._path, beside=self._path.with_name(f"{self._path.name}.new")) as file:
            write_all(file.fileno(), header + data)
            os.fsync(file.fileno())
        self._content = _Content(header + data[:NONCE_BYTES], revision, rows, seal)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from changing the file.

        Raises:
            Unavailable: another one does for too long.
        """
        deadline = time.monotonic() + self._timeout_s
        path = self._path.with_name(f"{self._path.name}.lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while not _try_lock(lock):
                if time.monotonic() > deadline:
                    message = f"another process changes the policy file for more than {self._timeout_s:g} s"
                    raise Unavailable(message, reason="STORE_TIMEOUT", detail=str(path))
                time.sleep(_LOCK_RETRY_S)
            yield
        finally:
            os.close(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
