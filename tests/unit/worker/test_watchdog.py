"""An engine that has something to do and says nothing is stuck; an idle one is not."""

from __future__ import annotations

from inferflux.worker.watchdog import Watchdog


def test_silence_with_running_requests_is_stuck() -> None:
    watchdog = Watchdog(10.0)
    assert not watchdog.is_stuck(100.0, has_running=False)
    assert not watchdog.is_stuck(109.0, has_running=True)
    assert watchdog.is_stuck(110.5, has_running=True)


def test_a_report_starts_the_wait_anew() -> None:
    watchdog = Watchdog(10.0)
    watchdog.progressed(105.0)
    assert not watchdog.is_stuck(114.0, has_running=True)


def test_an_idle_engine_may_be_silent_for_ever() -> None:
    watchdog = Watchdog(10.0)
    assert not any(watchdog.is_stuck(float(now), has_running=False) for now in range(0, 1000, 50))


def test_without_a_limit_nothing_is_stuck() -> None:
    assert not Watchdog(0.0).is_stuck(1e9, has_running=True)
