"""Reads of the images and sounds that an engine asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from inferflux.common.contract.errors import InferFluxError, Unavailable
from inferflux.common.contract.requests.images import unpacked
from inferflux.common.contract.requests.sounds import is_sound, unpacked_sound
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background
from inferflux.v1 import engine_pb2

# Each may have megabytes.
_AT_ONCE = 4

log = logs.get("worker.model_host")

ReadImage = Callable[[str], Awaitable[bytes]]


class ImageReads:
    """Images on their way to an engine: a few at a time.

    Args:
        model: named in the log.
        read: gives the object of this name; raises InferFluxErrors. None: there are no images.
        send: takes commands to the engine.
    """

    def __init__(
        self, model: str, read: ReadImage | None, send: Callable[[engine_pb2.EngineCommand], None]
    ) -> None:
        self._model = model
        self._read = read
        self._send = send
        self._reading = Background()
        self._places = asyncio.Semaphore(_AT_ONCE)

    def begin(self, name: str) -> None:
        """Read an image; the engine learns why where that cannot be done."""
        self._reading.start(self._give(name))

    async def close(self) -> None:
        """Read no more."""
        await self._reading.close()

    async def _give(self, name: str) -> None:
        image = engine_pb2.EngineImage(object=name)
        try:
            if self._read is None:
                raise Unavailable("there is no bucket of images", reason="IMAGE_UNAVAILABLE")
            async with self._places:
                data = await self._read(name)
            if is_sound(data):
                image.pcm = unpacked_sound(data).pcm
            else:
                pixels = unpacked(data)
                image.width, image.height, image.rgb = pixels.width, pixels.height, pixels.rgb
        except InferFluxError as error:
            log.warning("an image cannot be read", model=self._model, object=name, reason=error.reason)
            image.error = error.message
        self._send(engine_pb2.EngineCommand(image=image))
