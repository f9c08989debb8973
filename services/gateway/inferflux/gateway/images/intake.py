"""Images and sounds of a request: fetched, named by their hash, decoded, and stored for workers."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from inferflux.common.bus import Bus
from inferflux.common.contract.errors import InferFluxError, InvalidArgument, Unavailable
from inferflux.common.contract.requests.images import image_id, object_name, size_of
from inferflux.common.contract.requests.sounds import sound_id
from inferflux.common.http.http_client import HttpClient
from inferflux.v1 import inference_pb2, model_pb2, tokenizer_pb2

from .decoding import Decoding, ImageLimits
from .inputs import OF_MESSAGES, GivenMedia, data_of, given_media, is_data_url

# Objects that are known to be stored.
_MOST_KNOWN = 4096
# What a server says that a client could mend: it asked for that server.
_OK = 200


class ImageIntake:
    """Takes the images of requests.

    Args:
        http: fetches what URLs name; None: none are fetched.
        file_path: where the tokenizer of a model lies, and the skeleton of a projector, by their digests;
            raises InferFluxErrors. None: no sounds are taken.
        clock: wall clock, in seconds.
    """

    def __init__(
        self,
        bus: Bus,
        http: HttpClient | None,
        limits: ImageLimits,
        *,
        file_path: Callable[[str], Awaitable[Path]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._bus = bus
        self._http = http
        self._limits = limits
        self._decoding = Decoding(limits)
        self._file_path = file_path
        self._clock = clock
        # Those that are stored.
        self._stored: OrderedDict[str, tokenizer_pb2.StoredMedia] = OrderedDict()
        bus.on_reconnect(self._forget)

    async def of(
        self,
        messages: Sequence[inference_pb2.ChatMessage],
        card: model_pb2.ModelCard,
        *,
        name: str = OF_MESSAGES,
    ) -> list[tokenizer_pb2.StoredMedia]:
        """The images and sounds of a conversation in order, stored.

        Args:
            name: what a part is called in errors.

        Raises:
            InvalidArgument: the model takes none (IMAGES_UNSUPPORTED, AUDIO_UNSUPPORTED), there are too many,
                or one cannot be fetched or decoded (BAD_IMAGE, BAD_AUDIO).
            ResourceExhausted: too many wait to be decoded, or the bucket is full.
            Unavailable: NATS does not store them.
        """
        given = given_media(messages, most=self._limits.count, name=name)
        if not given:
            return []
        for each in given:
            _check_model(card, each)
        return [await self._stored_media(each, card) for each in given]

    async def _stored_media(self, given: GivenMedia, card: model_pb2.ModelCard) -> tokenizer_pb2.StoredMedia:
        data = await self._file(given)
        if not data:
            raise _bad(given, "it is empty")
        most = self._limits.sound_bytes if given.is_sound else self._limits.file_bytes
        if len(data) > most:
            raise _bad(given, f"it has {len(data)} bytes; at most {most} are taken")
        if given.is_sound:
            id_ = await asyncio.to_thread(sound_id, data, card.projector)
        else:
            id_ = await asyncio.to_thread(image_id, data)
        name = object_name(id_, self._clock())
        # Tokens around a sound are of a vocabulary.
        key = f"{name} {card.digest}" if given.is_sound else name
        stored = self._stored.get(key)
        if stored is None:
            stored, packed = await self._decoded(given, data, card)
            stored.id, stored.object = id_, name
            await self._put(name, packed)
        self._stored[key] = stored
        self._stored.move_to_end(key)
        if len(self._stored) > _MOST_KNOWN:
            self._stored.popitem(last=False)
        return stored

    async def _decoded(
        self, given: GivenMedia, data: bytes, card: model_pb2.ModelCard
    ) -> tuple[tokenizer_pb2.StoredMedia, bytes]:
        """(how large it is, or what it becomes; what is stored of it)."""
        if not given.is_sound:
            packed = await self._decoding.pixels(data, field=given.field)
            width, height = size_of(packed)
            return tokenizer_pb2.StoredMedia(width=width, height=height), packed
        if self._file_path is None:
            raise _bad(given, "no sounds are taken here")
        skeleton, tokenizer = await self._file_path(card.projector), await self._file_path(card.digest)
        return await self._decoding.samples(data, skeleton=skeleton, tokenizer=tokenizer, field=given.field)

    async def _put(self, name: str, pixels: bytes) -> None:
        try:
            await self._bus.put_image(name, pixels)
        except InferFluxError as error:
            message = f"the image could not be stored for workers: {error.message}"
            raise Unavailable(message, reason="IMAGES_NOT_STORED", retry_delay_s=2.0) from None

    async def _file(self, given: GivenMedia) -> bytes:
        image = given.input
        if isinstance(image, inference_pb2.AudioInput) or image.WhichOneof("source") == "data":
            return image.data
        if is_data_url(image.url):
            return await asyncio.to_thread(data_of, image.url, field=given.field)
        if self._http is None:
            raise _bad(given, "images are not fetched here: send a data URL")
        try:
            response = await self._http.get(
                image.url,
                headers={"accept": "image/png, image/jpeg, image/webp, image/gif"},
                timeout_s=self._limits.fetch_limit_s,
                max_body_bytes=self._limits.file_bytes,
            )
        except Unavailable as error:
            raise _bad(given, f"it cannot be fetched: {error.message}") from None
        if response.status != _OK:
            raise _bad(given, f"its server answered with status {response.status}")
        return response.body

    async def _forget(self) -> None:
        """A stream may have been lost."""
        self._stored.clear()


def _check_model(card: model_pb2.ModelCard, given: GivenMedia) -> None:
    if given.is_sound and not card.takes_audio:
        message = (
            f"audio input is not supported: the model {card.name!r} takes no sounds: no mmproj of it does"
        )
        raise InvalidArgument(message, field=given.field, reason="AUDIO_UNSUPPORTED")
    if not given.is_sound and not card.takes_images:
        message = (
            f"image input is not supported: the model {card.name!r} takes no images: no mmproj of it does"
        )
        raise InvalidArgument(message, field=given.field, reason="IMAGES_UNSUPPORTED")


def _bad(given: GivenMedia, why: str) -> InvalidArgument:
    what, reason = ("sound", "BAD_AUDIO") if given.is_sound else ("image", "BAD_IMAGE")
    return InvalidArgument(
        f"{given.field}: the {what} cannot be used: {why}", field=given.field, reason=reason
    )
