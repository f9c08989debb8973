"""Images and sounds of a request's messages as clients give them (pure)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass

from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import inference_pb2

_DETAILS = frozenset({"", "auto", "low", "high"})
_FORMATS = frozenset({"", "wav", "mp3"})
_DATA = "data:"
# The name of a part in errors, by the numbers of its message and of itself.
OF_MESSAGES = "messages[{0}].parts[{1}]"
_OF_URLS = bytes.maketrans(b"-_", b"+/")


@dataclass(frozen=True, slots=True)
class GivenMedia:
    """An image or a sound as it came.

    Attributes:
        field: what it is called in errors.
    """

    input: inference_pb2.ImageInput | inference_pb2.AudioInput
    field: str

    @property
    def is_sound(self) -> bool:
        return isinstance(self.input, inference_pb2.AudioInput)


def given_media(
    messages: Sequence[inference_pb2.ChatMessage], *, most: int, name: str = OF_MESSAGES
) -> list[GivenMedia]:
    """The images and sounds of a conversation, in order.

    Args:
        name: what a part is called in errors.

    Raises:
        InvalidArgument: a message has content and parts, an empty part, or an image or a sound where none may
            be; a `detail` or a `format` is not known; there are too many.
    """
    found: list[GivenMedia] = []
    for i, message in enumerate(messages):
        if message.parts and message.content:
            field = f"messages[{i}].parts"
            raise InvalidArgument("a message has either content or parts", field=field)
        for j, part in enumerate(message.parts):
            field = name.format(i, j)
            kind = part.WhichOneof("part")
            if kind is None:
                raise InvalidArgument(f"{field} is empty", field=field)
            if kind == "image":
                _check(part.image, message.role, f"{field}.image")
                found.append(GivenMedia(part.image, f"{field}.image"))
            elif kind == "audio":
                _check_audio(part.audio, message.role, f"{field}.audio")
                found.append(GivenMedia(part.audio, f"{field}.audio"))
    if len(found) > most:
        message_ = f"{len(found)} images and sounds; at most {most} are taken in one request"
        raise InvalidArgument(message_, field=found[most].field, reason="TOO_MANY_IMAGES")
    return found


def _check(image: inference_pb2.ImageInput, role: str, field: str) -> None:
    if role != "user":
        raise InvalidArgument(f"{field}: only messages of the user have images", field=field)
    _check_known(image.detail, _DETAILS, f"{field}.detail")
    if image.WhichOneof("source") is None:
        raise InvalidArgument(f"{field} has neither data nor url", field=field)


def _check_audio(audio: inference_pb2.AudioInput, role: str, field: str) -> None:
    if role != "user":
        raise InvalidArgument(f"{field}: only messages of the user have sounds", field=field)
    _check_known(audio.format, _FORMATS, f"{field}.format")


def _check_known(value: str, known: frozenset[str], field: str) -> None:
    if value not in known:
        named = ", ".join(sorted(known - {""}))
        message = f"{field}: unknown value {value[:32]!r}: use one of {named}"
        raise InvalidArgument(message, field=field, reason="UNSUPPORTED_VALUE")


def is_data_url(url: str) -> bool:
    return url[: len(_DATA)].lower() == _DATA


def data_of(url: str, *, field: str) -> bytes:
    """The image in a data URL, `data:image/png;base64,...`.

    Raises:
        InvalidArgument: it is of another kind, or not base64.
    """
    kind, body = _parts_of(url)
    if body is None or not kind.startswith("image/"):
        message = f"{field}: a data URL begins with data:image/png;base64, or the like"
        raise InvalidArgument(message, field=field, reason="BAD_IMAGE")
    return from_base64(body, field=field, reason="BAD_IMAGE")


def _parts_of(url: str) -> tuple[str, str | None]:
    """(media type, base64) of a data URL; None: it has no base64."""
    head, comma, body = url[len(_DATA) :].partition(",")
    kind, *options = [part.strip().lower() for part in head[:200].split(";")]
    return kind, body if comma and "base64" in options else None


def file_of(text: str, *, field: str) -> bytes:
    """A file of any kind, in base64 or in a data URL.

    Raises:
        InvalidArgument: it is neither.
    """
    body: str | None = text
    if is_data_url(text):
        _kind, body = _parts_of(text)
    if body is None:
        raise InvalidArgument(f"{field}: a data URL has ;base64, before its data", field=field)
    return from_base64(body, field=field)


def from_base64(text: str, *, field: str, reason: str = "") -> bytes:
    """The file that a text spells, in lines perhaps, or with the letters for URLs.

    Raises:
        InvalidArgument: it is not base64.
    """
    try:
        return base64.b64decode(text.encode("ascii").translate(_OF_URLS, b" \t\r\n"), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"{field}: it is not base64", field=field, reason=reason) from None


def is_image_file(data: bytes) -> bool:
    """Return whether a file begins as those that are decoded do."""
    is_webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    return is_webp or data.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8"))


def is_sound_file(data: bytes) -> bool:
    """Return whether a file begins as WAV or MP3 does."""
    is_wav = data[:4] == b"RIFF" and data[8:12] == b"WAVE"
    return is_wav or data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0)


def without_files(messages: Sequence[inference_pb2.ChatMessage]) -> list[inference_pb2.ChatMessage]:
    """The messages without the files of their images and sounds: templates need their places only."""
    stripped = []
    for message in messages:
        made = message
        if message.parts:
            made = inference_pb2.ChatMessage()
            made.CopyFrom(message)
            for part in made.parts:
                for kind in ("image", "audio"):
                    if part.HasField(kind):
                        getattr(part, kind).Clear()
        stripped.append(made)
    return stripped
