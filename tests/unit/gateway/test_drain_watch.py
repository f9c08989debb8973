"""Which answers about a draining worker are told, and which one is the last."""

from __future__ import annotations

from inferflux.gateway.operator.drain_watch import DrainWatch
from inferflux.v1 import scheduler_pb2

READY = scheduler_pb2.WORKER_STATE_READY
DRAINING = scheduler_pb2.WORKER_STATE_DRAINING
LOADING = scheduler_pb2.WORKER_STATE_LOADING


def progress(
    n_residents: int = 0,
    *,
    is_drained: bool = False,
    state: scheduler_pb2.WorkerState.ValueType = DRAINING,
) -> scheduler_pb2.DrainProgress:
    return scheduler_pb2.DrainProgress(residents=n_residents, is_drained=is_drained, state=state)


def test_the_first_answer_and_every_change_are_told_at_once() -> None:
    watch = DrainWatch()
    assert watch.take(progress(3), 0.0)
    assert watch.take(progress(2), 0.1)
    assert not watch.take(progress(2), 0.2)
    assert watch.take(progress(1), 0.3)
    assert not watch.is_over


def test_without_a_change_it_is_told_every_half_second() -> None:
    watch = DrainWatch()
    told = [i / 10 for i in range(21) if watch.take(progress(3), i / 10)]
    assert told == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_it_is_over_when_the_worker_is_drained() -> None:
    watch = DrainWatch()
    watch.take(progress(1), 0.0)
    assert watch.take(progress(0, is_drained=True), 0.1)
    assert watch.is_over


def test_a_worker_that_was_drained_before_is_told_once() -> None:
    watch = DrainWatch()
    assert watch.take(progress(0, is_drained=True), 0.0)
    assert watch.is_over


def test_a_worker_without_the_drain_command_is_waited_for() -> None:
    watch = DrainWatch()
    for second in range(10):
        watch.take(progress(2, state=READY), float(second))
        assert not watch.is_over


def test_a_late_heartbeat_does_not_undo_it() -> None:
    watch = DrainWatch()
    watch.take(progress(2), 0.0)
    watch.take(progress(2, state=READY), 0.5)
    watch.take(progress(2, state=READY), 2.0)
    assert not watch.is_over
    watch.take(progress(2), 2.5)
    watch.take(progress(2, state=READY), 4.0)
    assert not watch.is_over


def test_it_is_over_when_the_worker_takes_requests_again() -> None:
    watch = DrainWatch()
    watch.take(progress(2), 0.0)
    watch.take(progress(2, state=READY), 1.0)
    assert watch.take(progress(2, state=READY), 3.5)
    assert watch.is_over


def test_an_engine_that_starts_again_is_still_draining() -> None:
    watch = DrainWatch()
    watch.take(progress(2), 0.0)
    for second in range(1, 20):
        watch.take(progress(0, state=LOADING), float(second))
    assert not watch.is_over
