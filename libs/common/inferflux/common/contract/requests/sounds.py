"""Sounds in prompts: how samples travel (pure). Among token ids they are as images: see `images`."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from inferflux.common.contract.errors import InvalidArgument

_HEAD = struct.Struct("<8sII")
_MAGIC = b"IFXPCM1\n"
_SAMPLE_BYTES = 4
MAX_SAMPLES = 8 << 20
"""Most samples of a sound: five minutes of 27,962 samples a second."""
FEWEST_SAMPLES = 2
"""The least samples of a sound: libmtmd ends the process over fewer."""
MAX_SOUND_BYTES = _HEAD.size + _SAMPLE_BYTES * MAX_SAMPLES
_MAX_RATE = 1 << 20


def sound_id(data: bytes, projector: str) -> str:
    """Hex SHA-256 of a sound's file, and of the projector for which it is decoded: each has a rate."""
    return hashlib.sha256(projector.encode() + b"\0" + data).hexdigest()


@dataclass(frozen=True, slots=True)
class Samples:
    """A decoded sound.

    Attributes:
        rate: samples a second.
        pcm: of one channel, 32-bit floats, little-endian.
    """

    rate: int
    pcm: bytes

    @property
    def count(self) -> int:
        return len(self.pcm) // _SAMPLE_BYTES

    def packed(self) -> bytes:
        """Pack samples as they are stored."""
        return _HEAD.pack(_MAGIC, self.rate, self.count) + self.pcm


def is_sound(data: bytes) -> bool:
    """True if stored data are a sound, and not an image."""
    return data[: len(_MAGIC)] == _MAGIC


def unpacked_sound(data: bytes) -> Samples:
    """Unpack the samples that `packed` made.

    Raises:
        InvalidArgument: it is something else.
    """
    if len(data) < _HEAD.size:
        raise InvalidArgument("the samples are cut off", field="data")
    magic, rate, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or not (0 < rate <= _MAX_RATE and FEWEST_SAMPLES <= count <= MAX_SAMPLES):
        raise InvalidArgument("no samples of a sound", field="data")
    if len(data) != _HEAD.size + _SAMPLE_BYTES * count:
        raise InvalidArgument("the samples are not as many as they say", field="data")
    return Samples(rate, data[_HEAD.size :])
