"""Images of a request: fetched, named by their hash, decoded, and stored for workers."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from inferflux.common.bus import Bus
from inferflux.common.errors import InferFluxError, InvalidArgument, Unavailable
from inferflux.common.http_client import HttpClient
from inferflux.common.images import image_id, object_name, size_of
from inferflux.v1 import inference_pb2, model_pb2, tokenizer_pb2

from .decoding import Decoding, ImageLimits
from .inputs import GivenImage, data_of, given_images, is_data_url

# Objects that are known to be stored.
_MOST_KNOWN = 4096
# What a server says that a client could mend: it asked for that server.
_OK = 200


class ImageIntake:
    """Takes the images of requests.

    Args:
        http: fetches what URLs name; None: none are fetched.
        clock: wall clock, in seconds.
    """

    def __init__(
        self,
        bus: Bus,
        http: HttpClient | None,
        limits: ImageLimits,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._bus = bus
        self._http = http
        self._limits = limits
        self._decoding = Decoding(limits)
        self._clock = clock
        # The sizes of those that are stored, by object.
        self._stored: OrderedDict[str, tuple[int, int]] = OrderedDict()
        bus.on_reconnect(self._forget)

    async def of(
        self, messages: Sequence[inference_pb2.ChatMessage], card: model_pb2.ModelCard
    ) -> list[tokenizer_pb2.StoredImage]:
        """The images of a conversation in order, stored.

        Raises:
            InvalidArgument: the model takes none (IMAGES_UNSUPPORTED), there are too many, or one cannot be
                fetched or decoded (BAD_IMAGE).
            ResourceExhausted: too many wait to be decoded, or the bucket is full.
            Unavailable: NATS does not store them.
        """
        given = given_images(messages, most=self._limits.count)
        if not given:
            return []
        _check_model(card, given[0].field)
        return [await self._stored_image(each) for each in given]

    async def _stored_image(self, given: GivenImage) -> tokenizer_pb2.StoredImage:
        data = await self._file(given)
        if not data:
            raise _bad(given.field, "it is empty")
        if len(data) > self._limits.file_bytes:
            why = f"it has {len(data)} bytes; at most {self._limits.file_bytes} are taken"
            raise _bad(given.field, why)
        id_ = await asyncio.to_thread(image_id, data)
        name = object_name(id_, self._clock())
        size = self._stored.get(name)
        if size is None:
            pixels = await self._decoding.pixels(data, field=given.field)
            await self._put(name, pixels)
            size = size_of(pixels)
        self._stored[name] = size
        self._stored.move_to_end(name)
        if len(self._stored) > _MOST_KNOWN:
            self._stored.popitem(last=False)
        return tokenizer_pb2.StoredImage(id=id_, object=name, width=size[0], height=size[1])

    async def _put(self, name: str, pixels: bytes) -> None:
        try:
            await self._bus.put_image(name, pixels)
        except InferFluxError as error:
            message = f"the image could not be stored for workers: {error.message}"
            raise Unavailable(message, reason="IMAGES_NOT_STORED", retry_delay_s=2.0) from None

    async def _file(self, given: GivenImage) -> bytes:
        image = given.input
        if image.WhichOneof("source") == "data":
            return image.data
        if is_data_url(image.url):
            return await asyncio.to_thread(data_of, image.url, field=given.field)
        if self._http is None:
            raise _bad(given.field, "images are not fetched here: send a data URL")
        try:
            response = await self._http.get(
                image.url,
                headers={"accept": "image/png, image/jpeg, image/webp, image/gif"},
                timeout_s=self._limits.fetch_limit_s,
                max_body_bytes=self._limits.file_bytes,
            )
        except Unavailable as error:
            raise _bad(given.field, f"it cannot be fetched: {error.message}") from None
        if response.status != _OK:
            raise _bad(given.field, f"its server answered with status {response.status}")
        return response.body

    async def _forget(self) -> None:
        """A stream may have been lost."""
        self._stored.clear()


def _check_model(card: model_pb2.ModelCard, field: str) -> None:
    if not card.takes_images:
        message = f"the model {card.name!r} takes no images: it has no mmproj"
        raise InvalidArgument(message, field=field, reason="IMAGES_UNSUPPORTED")


def _bad(field: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: the image cannot be used: {why}", field=field, reason="BAD_IMAGE")
