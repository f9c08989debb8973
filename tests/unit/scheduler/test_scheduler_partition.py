"""Which models a scheduler leads, under which names, and whom a standby knows."""

from __future__ import annotations

import pytest

from inferflux.common import subjects
from inferflux.common.settings import load
from inferflux.scheduler.core.live_workers import LiveWorkers
from inferflux.scheduler.settings import SchedulerSettings
from inferflux.v1 import scheduler_pb2


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERFLUX_SCHEDULER_PARTITION", "large")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        (" , ", ()),
        ("[]", ()),
        ("b", ("b",)),
        (" b, a ,b", ("a", "b")),
        ('["b", "a, with a comma"]', ("a, with a comma", "b")),
    ],
)
def test_models_are_a_list_with_commas_or_as_json(
    monkeypatch: pytest.MonkeyPatch, text: str, names: tuple[str, ...]
) -> None:
    monkeypatch.setenv("INFERFLUX_SCHEDULER_MODELS", text)
    assert load(SchedulerSettings).model_names == names


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("INFERFLUX_SCHEDULER_MODELS", "[1]"),
        ("INFERFLUX_SCHEDULER_MODELS", '["a"'),
        ("INFERFLUX_SCHEDULER_PARTITION", "a.b"),
        ("INFERFLUX_SCHEDULER_PARTITION", ""),
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


def test_some_models_alone_need_a_partition_with_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("INFERFLUX_SCHEDULER_PARTITION")
    monkeypatch.setenv("INFERFLUX_SCHEDULER_MODELS", "a")
    with pytest.raises(SystemExit):
        load(SchedulerSettings)
    assert "INFERFLUX_SCHEDULER_PARTITION" in capsys.readouterr().err


def test_a_scheduler_without_a_name_gets_one_of_its_own() -> None:
    names = {load(SchedulerSettings).id for _ in range(3)}
    assert len(names) == 3
    assert all(subjects.is_safe_token(name) for name in names)


def test_the_undivided_consumer_keeps_its_name() -> None:
    assert subjects.scheduler_consumer(subjects.ALL_MODELS) == "scheduler"
    assert subjects.scheduler_consumer("large") == "scheduler-large"


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
