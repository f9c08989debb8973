"""When nats-server is started again because it does not write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferflux.cli.stack import store

FULL = "JetStream stream '$G > INFERFLUX_JOBS' write error: write /data/msgs/1.blk: no space left on device"


def said(error: object) -> bytes:
    return json.dumps({"status": "unavailable", "error": error}).encode()


def test_a_streams_write_error_is_known_by_what_healthz_says() -> None:
    assert store.error_in(503, said(FULL)) == FULL


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b'{"status":"ok"}'),
        (503, said("JetStream is recovering")),
        (503, said(None)),
        (503, b"[]"),
        (503, b"not JSON"),
        (404, said(FULL)),
    ],
)
def test_nothing_else_is_one(status: int, body: bytes) -> None:
    assert store.error_in(status, body) == ""


def test_a_directory_takes_writes_and_keeps_nothing_of_the_trial(tmp_path: Path) -> None:
    assert store.takes_writes(tmp_path)
    assert not list(tmp_path.iterdir())
    assert not store.takes_writes(tmp_path / "missing")
