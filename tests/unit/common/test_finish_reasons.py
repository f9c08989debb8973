"""Every end of a generation has a name."""

from __future__ import annotations

from inferflux.api.finish_reasons import name_of
from inferflux.v1 import generation_pb2


def test_each_reason_has_the_name_that_it_has_in_the_protocol() -> None:
    known = {name: value for name, value in generation_pb2.FinishReason.items() if value}
    assert {f"FINISH_REASON_{name_of(value).upper()}": value for value in known.values()} == known


def test_a_reason_of_a_newer_service_is_unknown() -> None:
    assert name_of(99) == "unknown"
