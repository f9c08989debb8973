"""Invented workers do not take a service's memory, nor the place of real ones."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.known_workers import SILENT_S, KnownWorkers


def test_a_flood_of_new_workers_displaces_none_that_reports() -> None:
    displaced: list[str] = []
    known = KnownWorkers(displaced.append, most=3)
    for worker_id in ("w1", "w2", "w3"):
        known.admit(worker_id, 0.0)
    for i in range(100):
        with pytest.raises(InvalidArgument) as refused:
            known.admit(f"invented{i}", 1.0)
        assert refused.value.field == "worker_id"
    for worker_id in ("w1", "w3"):
        known.admit(worker_id, SILENT_S - 1)
    assert not displaced
    known.admit("w4", SILENT_S)
    assert displaced == ["w2"]
    with pytest.raises(InvalidArgument):
        known.admit("w2", SILENT_S + 1)
    known.admit("w1", SILENT_S + 1)
