"""The names that people give the sources of drafts."""

from __future__ import annotations

from collections.abc import Mapping

from inferflux.v1 import generation_pb2

from .errors import InvalidArgument

SOURCES: Mapping[str, generation_pb2.Speculation.ValueType] = {
    "off": generation_pb2.SPECULATION_OFF,
    "ngram": generation_pb2.SPECULATION_NGRAM,
    "draft": generation_pb2.SPECULATION_DRAFT,
}


def source_of(name: str | None) -> generation_pb2.Speculation.ValueType:
    """The source of this name; None leaves it to the worker. There must be one."""
    return generation_pb2.SPECULATION_UNSPECIFIED if name is None else SOURCES[name]


def check_speculation(value: int) -> None:
    """Raises InvalidArgument for a value that no source has."""
    if value not in generation_pb2.Speculation.DESCRIPTOR.values_by_number:
        raise InvalidArgument(f"speculation has the unknown value {value}", field="params.speculation")
