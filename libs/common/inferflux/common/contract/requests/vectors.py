"""Vectors of texts, as chunks have them: 32-bit floats, little-endian (pure)."""

from __future__ import annotations

import math
import sys
from array import array
from typing import TypeAlias

from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import tokens_pb2

Vector: TypeAlias = "array[float]"

_FLOAT_BYTES = 4


def packed(vector: Vector) -> bytes:
    """A vector as a chunk has it."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return vector.tobytes()


def unpacked(vectors: tokens_pb2.Vectors, *, count: int) -> list[Vector]:
    """The vectors of a job of `count` texts.

    Raises:
        InvalidArgument: they are not that many, or one is no row of finite numbers.
    """
    if len(vectors.values) != count:
        raise InvalidArgument(f"{len(vectors.values)} vectors of {count} texts came", field="vectors")
    return [_unpacked(data) for data in vectors.values]


def _unpacked(data: bytes) -> Vector:
    if not data or len(data) % _FLOAT_BYTES:
        raise InvalidArgument(f"a vector has {len(data)} bytes", field="vectors")
    vector = array("f", data)
    if sys.byteorder == "big":
        vector.byteswap()
    if not all(map(math.isfinite, vector)):
        raise InvalidArgument("a vector has numbers that are not finite", field="vectors")
    return vector


def shortened(vector: Vector, dimensions: int) -> Vector:
    """The first numbers of a vector, scaled to length 1 again."""
    part = vector[:dimensions]
    length = math.hypot(*part)
    return array("f", [value / length for value in part]) if length > 0 else part
