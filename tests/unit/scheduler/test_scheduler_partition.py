"""Which models a scheduler leads, under which names, and whom a standby knows."""

from __future__ import annotations

import pytest

from inferflux.common.contract import subjects
from inferflux.common.contract.partitions import Partition
from inferflux.common.process.settings import load
from inferflux.scheduler.core.workers.slot_table import LiveWorkers
from inferflux.scheduler.settings import SchedulerSettings
from inferflux.v1 import scheduler_pb2


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("INFERFLUX_SCHEDULER_PARTITIONS", "0"),
        ("INFERFLUX_SCHEDULER_PARTITIONS", "65"),
        ("INFERFLUX_SCHEDULER_PARTITIONS", "two"),
        ("INFERFLUX_SCHEDULER_ID", "two words"),
        ("INFERFLUX_SCHEDULER_LEASE_S", "0.1"),
    ],
)
def test_a_bad_value_stops_the_start_naming_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as caught:
        load(SchedulerSettings)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(f"{variable}: ")


def test_a_scheduler_without_a_name_gets_one_of_its_own() -> None:
    names = {load(SchedulerSettings).id for _ in range(3)}
    assert len(names) == 3
    assert all(subjects.is_safe_token(name) for name in names)


def test_the_undivided_consumer_keeps_its_name() -> None:
    assert subjects.scheduler_consumer(Partition()) == "scheduler"
    assert subjects.scheduler_consumer(Partition(1, 3)) == "scheduler-1-of-3"
    assert subjects.scheduler_lease(Partition()) == "lease.all"


def status(worker_id: str, incarnation: str = "i") -> scheduler_pb2.WorkerStatus:
    return scheduler_pb2.WorkerStatus(worker_id=worker_id, incarnation=incarnation)


def test_a_standby_knows_the_workers_that_reported_lately() -> None:
    live_workers = LiveWorkers()
    live_workers.on_heartbeat(status("old"), 10.0)
    live_workers.on_heartbeat(status("new"), 12.0)
    assert live_workers.live(12.9, 3.0) == {"old", "new"}
    assert live_workers.live(13.0, 3.0) == {"new"}


def test_a_worker_that_left_is_not_waited_for_and_one_that_came_again_is() -> None:
    live_workers = LiveWorkers()
    live_workers.on_heartbeat(status("left"), 10.0)
    live_workers.on_heartbeat(status("back", "first"), 10.0)
    live_workers.on_heartbeat(status("back", "second"), 11.0)
    live_workers.on_left("left", "i")
    live_workers.on_left("back", "first")
    live_workers.on_left("unknown", "i")
    assert live_workers.live(11.0, 3.0) == {"back"}
