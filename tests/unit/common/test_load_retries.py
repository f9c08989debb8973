"""When a model that could not be loaded is tried again."""

from __future__ import annotations

from inferflux.common.contract.models.load_retries import pause_s


def test_pauses_double_up_to_some_minutes() -> None:
    assert [pause_s(failures) for failures in (1, 2, 3, 6)] == [5.0, 10.0, 20.0, 160.0]
    assert pause_s(7) == pause_s(10_000) == 300.0
