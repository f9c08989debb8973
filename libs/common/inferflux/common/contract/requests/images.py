"""Images in prompts: the placeholders that stand for them among token ids, and how pixels travel (pure).

A prompt is a list of token ids. The cells that an image fills have placeholders there: numbers that no
vocabulary has, drawn from the image's SHA-256. So whatever compares prompts by their ids tells prompts with
other images apart, and needs to know nothing of images.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import generation_pb2

FIRST_PLACEHOLDER = 1 << 30
"""Placeholders are this number or larger; vocabularies are far smaller."""

MAX_IMAGES = 64
MAX_PARTS = 1024
"""Most parts of a prompt's images: some models cut an image into several."""
# A placeholder has 30 bits of the hash. Fewer than these together could be found for another image.
FEWEST_TOKENS = 8
MOST_TOKENS = 1 << 16
# How long a stored image can be read. It is stored anew in each half hour, so a request has half of it.
OBJECT_LIFE_S = 3600.0
_OBJECT_PERIOD_S = 1800
_PLACEHOLDER_BITS = FIRST_PLACEHOLDER - 1
_ID = re.compile(r"[0-9a-f]{64}")
_OBJECT = re.compile(r"[0-9a-f]{64}\.[0-9]{1,12}")
_HEAD = struct.Struct("<8sII")
_MAGIC = b"IFXRGB1\n"
MAX_SIDE = 1536
"""Larger images are scaled down to this many pixels at their longer side."""
MAX_PIXEL_BYTES = 3 * MAX_SIDE * MAX_SIDE
MAX_OBJECT_BYTES = _HEAD.size + MAX_PIXEL_BYTES


def image_id(data: bytes) -> str:
    """Hex SHA-256 of an image's file."""
    return hashlib.sha256(data).hexdigest()


def object_name(id_: str, unix_s: float) -> str:
    """The object that holds an image in these minutes. One of another half hour has another name: what is
    stored anew lives anew."""
    return f"{id_}.{int(unix_s) // _OBJECT_PERIOD_S}"


def id_of(object_: str) -> str:
    """The id of the image that an object holds."""
    return object_.partition(".")[0]


def placeholders(id_: str, n: int, part: int = 0) -> list[int]:
    """The `n` token ids that stand for a part of an image: SHAKE-256 of its id and the part, 30 bits each."""
    name = bytes.fromhex(id_) + (part.to_bytes(4, "little") if part else b"")
    stream = hashlib.shake_256(name).digest(4 * n)
    return [
        (number & _PLACEHOLDER_BITS) | FIRST_PLACEHOLDER for (number,) in struct.iter_unpack("<I", stream)
    ]


def without_placeholders(token_ids: Sequence[int]) -> list[int]:
    """The token ids that a vocabulary has."""
    return [token for token in token_ids if token < FIRST_PLACEHOLDER]


def check_image_id(id_: str, field: str) -> None:
    """An id of an image, or none.

    Raises:
        InvalidArgument: something else.
    """
    if id_ and not _ID.fullmatch(id_):
        raise InvalidArgument("no id of an image", field=field)


def check_images(
    images: Sequence[generation_pb2.PromptImage], prompt: Sequence[int], *, field: str = "images"
) -> None:
    """Images are in order, do not overlap, have their placeholders, and are followed by a token.

    Raises:
        InvalidArgument: they are not; names the image.
    """
    if len(images) > MAX_PARTS:
        raise InvalidArgument(f"{len(images)} parts of images; at most {MAX_PARTS} are taken", field=field)
    end = 0
    for i, image in enumerate(images):
        where = f"{field}[{i}]"
        if not _ID.fullmatch(image.id) or not _OBJECT.fullmatch(image.object):
            raise InvalidArgument(f"{where} has no id, or no object", field=where)
        first, end_before = image.position, end
        end = first + image.tokens
        if not FEWEST_TOKENS <= image.tokens <= MOST_TOKENS or first < end_before or end > len(prompt):
            raise InvalidArgument(f"{where} is not in the prompt", field=where)
        if end == len(prompt):
            message = f"{where} is the last of the prompt, and a token has to follow: put a text after it"
            raise InvalidArgument(message, field=where)
        if list(prompt[first:end]) != placeholders(image.id, image.tokens, image.part):
            raise InvalidArgument(f"{where} does not have its placeholders", field=where)


@dataclass(frozen=True, slots=True)
class Pixels:
    """A decoded image.

    Attributes:
        rgb: three bytes for each pixel, line by line.
    """

    width: int
    height: int
    rgb: bytes

    def packed(self) -> bytes:
        """Pack pixels as they are stored."""
        return _HEAD.pack(_MAGIC, self.width, self.height) + self.rgb


def size_of(packed: bytes) -> tuple[int, int]:
    """(width, height) of what `packed` made."""
    _magic, width, height = _HEAD.unpack_from(packed)
    return width, height


def unpacked(data: bytes) -> Pixels:
    """Unpack the pixels that `packed` made.

    Raises:
        InvalidArgument: it is something else.
    """
    if len(data) < _HEAD.size:
        raise InvalidArgument("the pixels are cut off", field="data")
    magic, width, height = _HEAD.unpack_from(data)
    if magic != _MAGIC or not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        raise InvalidArgument("no pixels of an image", field="data")
    if len(data) != _HEAD.size + 3 * width * height:
        raise InvalidArgument("the pixels do not have the size that they say", field="data")
    return Pixels(width, height, data[_HEAD.size :])
