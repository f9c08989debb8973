"""Decodes images in child processes, a bounded number of them at a time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass

from inferflux.common.errors import InvalidArgument, ResourceExhausted, Unavailable
from inferflux.common.images import unpacked

from .decoder import REFUSED

_MEMORY_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What images may take.

    Attributes:
        count: of one request.
        file_bytes, pixels: of each image.
        processes: that decode at the same time.
        waiting: images that may wait for one; one more is refused.
        time_limit_s: for decoding one image.
        fetch_limit_s: for fetching one.
    """

    count: int = 16
    file_bytes: int = 8 << 20
    pixels: int = 40_000_000
    processes: int = 2
    waiting: int = 64
    time_limit_s: float = 10.0
    fetch_limit_s: float = 10.0


class Decoding:
    """Decodes images, each in a process of its own."""

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
        if self._places.locked() and self._n_waiting >= self._limits.waiting:
            message = f"{self._n_waiting} images wait to be decoded already"
            raise ResourceExhausted(message, reason="IMAGE_QUEUE_FULL")
        self._n_waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._n_waiting -= 1
        work = asyncio.ensure_future(asyncio.to_thread(self._run, data, field))
        work.add_done_callback(self._done)
        return await asyncio.shield(work)

    def _done(self, work: asyncio.Future[bytes]) -> None:
        self._places.release()
        if not work.cancelled():
            work.exception()  # its caller may have gone

    def _run(self, data: bytes, field: str) -> bytes:
        limits = self._limits
        numbers = (os.getpid(), _MEMORY_BYTES, max(round(limits.time_limit_s), 1), limits.pixels)
        command = [sys.executable, "-m", "inferflux.gateway.images.decoder", *map(str, numbers)]
        try:
            done = subprocess.run(
                command, input=data, capture_output=True, timeout=limits.time_limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            message = f"{field}: decoding the image took longer than {limits.time_limit_s:g} s"
            raise InvalidArgument(message, field=field, reason="BAD_IMAGE") from None
        except OSError as error:
            message = f"no process can be started to decode images: {error}"
            raise Unavailable(message, reason="PROCESS_FAILED") from None
        why = "decoding it ended its process"
        if done.returncode == 0:
            try:
                unpacked(done.stdout)
            except InvalidArgument as error:
                why = error.message
            else:
                return done.stdout
        elif done.returncode == REFUSED:
            why = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise InvalidArgument(f"{field}: the image cannot be used: {why}", field=field, reason="BAD_IMAGE")
