"""Decodes images and sounds in child processes, a bounded number of them at a time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inferflux.common.contract.errors import InvalidArgument, ResourceExhausted, Unavailable
from inferflux.common.contract.requests.images import unpacked
from inferflux.v1 import tokenizer_pb2

from .decoder import REFUSED
from .sound_decoder import split

_MEMORY_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits of what images may take.

    Attributes:
        count: of one request, sounds too.
        file_bytes, pixels: of each image.
        sound_bytes, sound_s: of each sound.
        processes: that decode at the same time.
        waiting: images that may wait for one; one more is refused.
        time_limit_s: for decoding one image.
        fetch_limit_s: for fetching one.
    """

    count: int = 16
    file_bytes: int = 8 << 20
    pixels: int = 40_000_000
    sound_bytes: int = 8 << 20
    sound_s: int = 120
    processes: int = 2
    waiting: int = 64
    time_limit_s: float = 10.0
    fetch_limit_s: float = 10.0


@dataclass(frozen=True, slots=True)
class _Work:
    """Images that a process is to decode.

    Attributes:
        module: run by it. bound: the module's own limit. rest: its further arguments.
        what: for errors. reason: of them.
        check: raises InvalidArgument of what the module would not give.
    """

    module: str
    bound: int
    data: bytes
    field: str
    what: str
    reason: str
    check: Callable[[bytes], object]
    rest: tuple[str, ...] = ()


class Decoding:
    """Decodes images and sounds, each in a process of its own."""

    def __init__(self, limits: ImageLimits) -> None:
        self._limits = limits
        self._places = asyncio.Semaphore(limits.processes)
        self._n_waiting = 0

    async def pixels(self, data: bytes, *, field: str) -> bytes:
        """The packed pixels of an image's file.

        Raises:
            InvalidArgument: it cannot be decoded, or is too large (BAD_IMAGE).
            ResourceExhausted: too many wait (IMAGE_QUEUE_FULL).
            Unavailable: the system starts no process (PROCESS_FAILED).
        """
        return await self._decoded(
            _Work("decoder", self._limits.pixels, data, field, "image", "BAD_IMAGE", unpacked)
        )

    async def samples(
        self, data: bytes, *, skeleton: Path, tokenizer: Path, field: str
    ) -> tuple[tokenizer_pb2.StoredMedia, bytes]:
        """(what a sound becomes in a prompt, its packed samples at the rate of a projector).

        Raises:
            InvalidArgument: it cannot be decoded, or is too long (BAD_AUDIO).
            ResourceExhausted, Unavailable: as `pixels`.
        """
        rest = (str(skeleton), str(tokenizer))
        limit = self._limits.sound_s
        return split(
            await self._decoded(_Work("sound_decoder", limit, data, field, "sound", "BAD_AUDIO", split, rest))
        )

    async def _decoded(self, work: _Work) -> bytes:
        if self._places.locked() and self._n_waiting >= self._limits.waiting:
            message = f"{self._n_waiting} images and sounds wait to be decoded already"
            raise ResourceExhausted(message, reason="IMAGE_QUEUE_FULL")
        self._n_waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._n_waiting -= 1
        decoding = asyncio.ensure_future(asyncio.to_thread(self._run, work))
        decoding.add_done_callback(self._done)
        return await asyncio.shield(decoding)

    def _done(self, work: asyncio.Future[bytes]) -> None:
        self._places.release()
        if not work.cancelled():
            work.exception()  # its caller may have gone

    def _run(self, work: _Work) -> bytes:
        limits, field, what = self._limits, work.field, work.what
        numbers = (os.getpid(), _MEMORY_BYTES, max(round(limits.time_limit_s), 1), work.bound)
        module = f"inferflux.gateway.images.{work.module}"
        command = [sys.executable, "-m", module, *map(str, numbers), *work.rest]
        try:
            done = subprocess.run(
                command, input=work.data, capture_output=True, timeout=limits.time_limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            message = f"{field}: decoding the {what} took longer than {limits.time_limit_s:g} s"
            raise InvalidArgument(message, field=field, reason=work.reason) from None
        except OSError as error:
            message = f"no process can be started to decode images and sounds: {error}"
            raise Unavailable(message, reason="PROCESS_FAILED") from None
        why = "decoding it ended its process"
        if done.returncode == 0:
            try:
                work.check(done.stdout)
            except InvalidArgument as error:
                why = error.message
            else:
                return done.stdout
        elif done.returncode == REFUSED:
            why = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1][-300:]
        raise InvalidArgument(f"{field}: the {what} cannot be used: {why}", field=field, reason=work.reason)
