"""The names that people give the ends of generations."""

from __future__ import annotations

from collections.abc import Mapping

from inferflux.v1 import generation_pb2

NAMES: Mapping[int, str] = {
    generation_pb2.FINISH_REASON_STOP: "stop",
    generation_pb2.FINISH_REASON_LENGTH: "length",
    generation_pb2.FINISH_REASON_CANCELLED: "cancelled",
    generation_pb2.FINISH_REASON_CONTENT_FILTER: "content_filter",
    generation_pb2.FINISH_REASON_SCHEMA_MISMATCH: "schema_mismatch",
}


def name_of(reason: int) -> str:
    """The name of a finish reason; `unknown` where a newer service has given one that is not known here."""
    return NAMES.get(reason, "unknown")
