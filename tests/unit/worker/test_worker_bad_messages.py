"""Messages that a worker cannot read change nothing, and are counted by kind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from inferflux.worker.host.intake import Intake
from inferflux.worker.metrics import WorkerMetrics
from inferflux.worker.model.worker_state import WorkerState


@pytest.mark.parametrize("kind", ["command", "leader", "cancel"])
async def test_a_message_that_cannot_be_decoded_is_counted_by_its_kind(kind: str) -> None:
    registry = CollectorRegistry()
    unused = cast("Any", None)
    intake = Intake(unused, WorkerState("w", "i"), unused, unused, WorkerMetrics(registry).bad)
    handle = {"command": intake.on_command, "leader": intake.on_leader, "cancel": intake.on_cancel}[kind]
    await handle(cast("Any", SimpleNamespace(data=b"\xff", subject="inferflux.v1.any")))
    assert registry.get_sample_value("inferflux_worker_bad_messages_total", {"kind": kind}) == 1
