"""Gets one file of a model: resumed where it broke off, checked against its digest.

A part of a file, `x.part`, has a state beside it that tells which file of which server it is of: its
validator (RFC 9110, 8.8) and its length. A request for the rest says `If-Range`: a server whose file has
changed sends all of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeVar

from inferflux.common.contract.errors import Aborted, InferFluxError, InvalidArgument, NotFound, Unavailable
from inferflux.common.http.http_client import HttpClient, HttpStream

from .folder import PART, STATE, StoredFile, write_whole

MAGIC = b"GGUF"
MAX_REDIRECTS = 5
_BLOCK = 1 << 20
_LONGEST_WAIT_S = 120.0
_BROKEN = ("HTTP_UNREACHABLE", "HTTP_TIMEOUT")
_OK, _PARTIAL, _NOT_SATISFIABLE = 200, 206, 416
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_DENIED = frozenset({401, 403})
_MISSING = frozenset({404, 410})
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(rf"bytes ({_NUMBER.pattern})-({_NUMBER.pattern})/({_NUMBER.pattern}|\*)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file of a model.

    Attributes:
        name: what it is called in the store.
        url: of it; or empty, and `path` is the file to copy.
        size: bytes; None: not known before its server says.
        sha256: hex digest; None: not known.
        is_linked: its server tells the digest in headers, as Hugging Face does.
    """

    name: str
    url: str = ""
    path: Path | None = None
    size: int | None = None
    sha256: str | None = None
    token: str = ""
    is_linked: bool = False


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a broken transfer is tried again.

    Attributes:
        most: tries in a row that bring nothing.
        first_s, longest_s: the wait before the next one, which doubles.
        idle_s: longest wait for a server to send something.
    """

    most: int = 6
    first_s: float = 0.5
    longest_s: float = 30.0
    idle_s: float = 30.0

    def wait_s(self, failures: int) -> float:
        return min(self.first_s * 2.0 ** (failures - 1), self.longest_s)


class Progress(Protocol):
    """Is told how much of a file is there, and what is under way."""

    def __call__(self, file: str, done: int, total: int | None, doing: str) -> None: ...


class _Broken(Exception):
    """A try ended early; another may get further."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.wait_s = wait_s


class Transfer:
    """Gets a file into a folder.

    Args:
        check_room: raises ResourceExhausted where a file has no room, by its bytes in all and those there.
        reckoning: held from that check until what is pulled is counted.
    """

    def __init__(
        self,
        client: HttpClient,
        folder: Path,
        wanted: Wanted,
        *,
        check_room: Callable[[int, int], None],
        reckoning: Callable[[], AbstractContextManager[None]],
        progress: Progress,
        retries: Retries,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._check_room = check_room
        self._reckoning = reckoning
        self._progress = progress
        self._retries = retries
        self._sleep = sleep
        self._path = folder / (wanted.name + PART)
        self._state_path = folder / (wanted.name + PART + STATE)
        self._hash = hashlib.sha256()
        self._have = 0
        self._total: int | None = wanted.size
        self._validator = ""

    async def run(self) -> StoredFile:
        """Return when the part is whole and checked.

        Raises:
            InferFluxError: it cannot be had, or is not what it must be. What can be resumed is left.
        """
        self._take_up()
        try:
            if self._wanted.path is not None:
                await self._copy(self._wanted.path)
            elif not self._is_whole:
                await retrying(
                    self._fetch,
                    self._retries,
                    at=lambda: self._have,
                    say=self._say,
                    sleep=self._sleep,
                )
            return self._finished()
        except (InferFluxError, OSError) as error:
            if isinstance(error, InvalidArgument) or not self._may_resume:
                self._start_anew()  # another pull would bring the same, or all of it again
            raise

    @property
    def _may_resume(self) -> bool:
        """True if what is there can be told from a part of another file. Copies begin anew."""
        return self._wanted.path is None and bool(self._validator or self._wanted.sha256)

    @property
    def _is_whole(self) -> bool:
        """True if it is there and its digest says so."""
        return bool(self._wanted.sha256) and self._have == self._total and self._digest == self._wanted.sha256

    @property
    def _digest(self) -> str:
        return self._hash.hexdigest()

    def _say(self, doing: str = "downloading") -> None:
        self._progress(self._wanted.name, self._have, self._total, doing)

    # What is there

    def _take_up(self) -> None:
        """Go on from what an earlier pull left, if it is of the same file."""
        try:
            state = json.loads(self._state_path.read_bytes())
            is_same = state["of"] == self._identity
            self._validator = str(state["validator"])
            self._total = state["total"] if self._total is None else self._total
        except (OSError, ValueError, KeyError, TypeError):
            is_same = False
        if not (is_same and self._may_resume and self._path.exists()):
            self._start_anew()
            return
        self._say("checking what is there")
        with self._path.open("rb") as file:
            while block := file.read(_BLOCK):
                self._hash.update(block)
                self._have += len(block)
        if self._total is not None and self._have > self._total:
            self._start_anew()

    @property
    def _identity(self) -> str:
        """Identity of a part's file: its digest where that is known, since URLs may be signed anew."""
        about = self._wanted.sha256 or self._wanted.url.partition("?")[0]
        return hashlib.sha256(about.encode()).hexdigest()

    def _start_anew(self) -> None:
        self._path.unlink(missing_ok=True)
        self._state_path.unlink(missing_ok=True)
        self._hash = hashlib.sha256()
        self._have = 0
        self._validator = ""
        self._total = self._wanted.size

    def _note_state(self) -> None:
        """From then on, what it will take is counted by other pulls."""
        self._path.touch()
        state = {"of": self._identity, "validator": self._validator, "total": self._total}
        write_whole(self._state_path, json.dumps(state).encode())

    # Over HTTP

    async def _fetch(self) -> None:
        headers = _headers(self._wanted.token)
        if self._have:
            headers["range"] = f"bytes={self._have}-"
            if self._validator:
                headers["if-range"] = self._validator
        self._say()
        async with self._client.stream(
            self._wanted.url, headers=headers, max_redirects=MAX_REDIRECTS, idle_s=self._retries.idle_s
        ) as answer:
            if answer.status == _NOT_SATISFIABLE and self._have:
                if self._have == self._total:
                    return
                self._start_anew()
                raise _Broken("the server has no such range of the file")
            if answer.status not in (_OK, _PARTIAL):
                raise refusal(answer, self._wanted.url)
            self._learn(answer)
            await self._write(answer.parts)
        if self._total is not None and self._have < self._total:
            raise _Broken(f"the transfer ended after {self._have:,} of {self._total:,} bytes")

    def _learn(self, answer: HttpStream) -> None:
        """Take in what the head of an answer says of the file, before a byte of it is written."""
        headers = answer.headers
        if answer.status == _OK:
            if self._have:
                self._start_anew()
            total = _number(headers.get("content-length"))
        else:
            match = _RANGE.fullmatch(headers.get("content-range", ""))
            if match is None or int(match[1]) != self._have:
                self._start_anew()
                raise _Broken("the server sent another range than was asked for")
            total = None if match[3] == "*" else int(match[3])
            validator = _validator(headers)
            if (validator and self._validator and validator != self._validator) or (
                total is not None and self._total is not None and total != self._total
            ):
                self._start_anew()
                raise _Broken("the file has changed on its server")
        self._learn_linked(answer)
        if total is not None and self._wanted.size is not None and total != self._wanted.size:
            raise Aborted(
                f"{self._wanted.name} has {total:,} bytes: it must have {self._wanted.size:,}",
                reason="WRONG_LENGTH",
            )
        if total is not None:
            self._total = total
        self._validator = _validator(headers) or self._validator
        with self._reckoning():
            if self._total is not None:
                self._check_room(self._total, self._have)
            self._note_state()

    def _learn_linked(self, answer: HttpStream) -> None:
        """The digest and the length that Hugging Face tells, in the first answer that has them."""
        if not self._wanted.is_linked:
            return
        for headers in (*answer.redirects, answer.headers):
            tag = headers.get("x-linked-etag", headers.get("etag", "")).strip('"').lower()
            if _SHA256.fullmatch(tag) is not None:
                size = _number(headers.get("x-linked-size"))
                self._wanted = replace(
                    self._wanted,
                    sha256=self._wanted.sha256 or tag,
                    size=size if self._wanted.size is None else self._wanted.size,
                )
                return

    async def _write(self, parts: AsyncIterator[bytes]) -> None:
        with self._path.open("ab") as file:
            head = b"" if self._have == 0 else MAGIC
            async for part in parts:
                block = part
                if len(head) < len(MAGIC):
                    head += part
                    if len(head) < len(MAGIC):
                        continue
                    check_magic(head, self._wanted.name)
                    block = head
                self._add(file.write, block)
            if len(head) < len(MAGIC):
                raise _Broken("the server sent less than the head of a GGUF")
            file.flush()

    def _add(self, write: Callable[[bytes], object], block: bytes) -> None:
        if self._total is None:
            self._check_room(self._have + len(block), self._have)
        elif self._have + len(block) > self._total:
            self._start_anew()
            raise Aborted(f"{self._wanted.name} has more than {self._total:,} bytes", reason="WRONG_LENGTH")
        write(block)
        self._hash.update(block)
        self._have += len(block)
        self._say()

    # From a disk

    async def _copy(self, path: Path) -> None:
        with at_source(path):
            self._total = (await asyncio.to_thread(path.stat)).st_size
        blocks = _blocks_of(path)
        head = next(blocks, b"")
        check_magic(head, path.name)
        with self._reckoning():
            self._check_room(self._total, 0)
            self._note_state()
        with self._path.open("wb") as file:
            for block in chain([head], blocks):
                self._add(file.write, block)

    # The end

    def _finished(self) -> StoredFile:
        self._say("checking")
        if self._total is not None and self._have != self._total:
            raise Aborted(
                f"{self._wanted.name} has {self._have:,} bytes: it must have {self._total:,}",
                reason="WRONG_LENGTH",
            )
        if self._wanted.sha256 and self._digest != self._wanted.sha256:
            digest = self._digest
            self._start_anew()  # nothing of it can be told from what is wrong
            raise Aborted(
                f"{self._wanted.name} has the SHA-256 {digest}: it must have {self._wanted.sha256}",
                reason="WRONG_CHECKSUM",
            )
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        return StoredFile(self._wanted.name, self._have, self._digest)


@contextmanager
def at_source(path: Path) -> Iterator[None]:
    """Raises InvalidArgument where what an operator named cannot be read."""
    try:
        yield
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}", field="source") from None


def _blocks_of(path: Path) -> Iterator[bytes]:
    """Blocks of a file; the first is as long as MAGIC."""
    with at_source(path), path.open("rb") as file:
        block = file.read(len(MAGIC))
        while block:
            yield block
            block = file.read(_BLOCK)


async def retrying(
    attempt: Callable[[], Awaitable[_T]],
    retries: Retries,
    *,
    at: Callable[[], int] = lambda: 0,
    say: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> _T:
    """Result of `attempt`, tried again while it breaks.

    Raises:
        Unavailable: it broke too often in a row.
        InferFluxError: as `attempt`, for what another try would not change.
    """
    failures, furthest = 0, at()
    while True:
        try:
            return await attempt()
        except _Broken as broken:
            why, wait_s = broken.why, broken.wait_s
        except Unavailable as error:
            if error.reason not in _BROKEN:
                raise
            why, wait_s = error.message, None
        failures = 1 if at() > furthest else failures + 1
        furthest = max(furthest, at())
        if failures >= retries.most:
            raise Unavailable(f"given up after {failures} tries: {why}", reason="TRANSFER_BROKEN")
        if wait_s is None:
            wait_s = retries.wait_s(failures)
        elif wait_s > _LONGEST_WAIT_S:
            raise Unavailable(why, reason="SOURCE_BUSY", retry_delay_s=wait_s)
        say(f"waits {wait_s:.0f} s: {why}")
        await sleep(wait_s)


def refusal(answer: HttpStream, url: str) -> Exception:
    """Meaning of an answer that is none: another try, or the end."""
    where = url.partition("?")[0]
    why = f"{where} answered with status {answer.status}"
    if answer.status in _BUSY:
        return _Broken(why, _retry_after_s(answer.headers))
    # The caller's own key is not what the source refuses.
    if answer.status in _DENIED:
        return Aborted(f"{why}: it wants other credentials, or has none for this", reason="SOURCE_DENIED")
    if answer.status in _MISSING:
        return NotFound(why, reason="SOURCE_MISSING")
    return Unavailable(why, reason="SOURCE_REFUSED")


def check_magic(head: bytes, name: str) -> None:
    """Raises InvalidArgument for what does not begin as a GGUF does."""
    if head.startswith(MAGIC):
        return
    is_pickle = head.startswith((b"\x80", b"PK"))
    what = "holds what may be a pickle, which can run code" if is_pickle else f"begins with {head[:4]!r}"
    raise InvalidArgument(f"{name} is no GGUF: it {what}", field="source", reason="BAD_MODEL_FILE")


def _headers(token: str) -> dict[str, str]:
    return {"accept": "*/*"} | ({"authorization": f"Bearer {token}"} if token else {})


def _validator(headers: Mapping[str, str]) -> str:
    """Validator that tells a file from its next version: a strong entity tag, else a date; empty: neither."""
    tag = headers.get("etag", "")
    return headers.get("last-modified", "") if not tag or tag.startswith("W/") else tag


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    text = headers.get("retry-after", "").strip()
    if (seconds := _number(text)) is not None:
        return float(seconds)
    try:
        at = parsedate_to_datetime(text)
        now = parsedate_to_datetime(headers["date"])
        return max((at - now).total_seconds(), 0.0)
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
