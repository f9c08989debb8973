"""Slots and the places beside them."""

from __future__ import annotations

import pytest

from inferflux.common.settings import load
from inferflux.worker.settings import WorkerSettings


def made(monkeypatch: pytest.MonkeyPatch, **variables: str) -> WorkerSettings:
    monkeypatch.setenv("INFERFLUX_WORKER_MODEL_PATH", "m.gguf")
    for name, value in variables.items():
        monkeypatch.setenv(f"INFERFLUX_WORKER_{name}", value)
    return load(WorkerSettings)


@pytest.mark.parametrize(
    ("slots", "sequences", "cache", "expected"),
    [
        ("4", "0", "false", 8),
        ("4", "0", "true", 8 + 64),
        ("100", "0", "true", 255),
        ("200", "0", "true", 256),
        ("4", "5", "true", 5),
    ],
)
def test_parked_requests_find_as_many_places_as_there_are_slots_and_cached_prefixes_some_beside_them(
    monkeypatch: pytest.MonkeyPatch, slots: str, sequences: str, cache: str, expected: int
) -> None:
    settings = made(monkeypatch, SLOTS=slots, SEQUENCES=sequences, PREFIX_CACHE=cache)
    assert settings.all_sequences == expected


def test_fewer_sequences_than_slots_stop_the_start_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        made(monkeypatch, SLOTS="4", SEQUENCES="3")
    error = capsys.readouterr().err
    assert error.startswith("INFERFLUX_WORKER_SEQUENCES: ")
    assert "INFERFLUX_WORKER_SLOTS" in error
