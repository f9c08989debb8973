"""An engine that has something to do and says nothing is stuck; an idle one is not."""

from __future__ import annotations

from inferflux.worker.model.engine_pace import Watchdog


def asked(watchdog: Watchdog, times: int, *, has_running: bool = True) -> list[bool]:
    return [watchdog.is_stuck(has_running=has_running) for _ in range(times)]


def test_silence_with_running_requests_is_stuck() -> None:
    assert asked(Watchdog(2.0, 0.5), 5) == [False] * 4 + [True]


def test_a_report_starts_the_wait_anew() -> None:
    watchdog = Watchdog(2.0, 0.5)
    asked(watchdog, 4)
    watchdog.progressed()
    assert not any(asked(watchdog, 4))


def test_an_idle_engine_may_be_silent_for_ever() -> None:
    watchdog = Watchdog(2.0, 0.5)
    assert not any(asked(watchdog, 100, has_running=False))
    assert not any(asked(watchdog, 4))


def test_without_a_limit_nothing_is_stuck() -> None:
    assert not any(asked(Watchdog(0.0, 0.5), 1000))


def test_an_engine_that_is_held_up_is_given_the_time() -> None:
    watchdog = Watchdog(2.0, 0.5)
    told = [watchdog.is_stuck(has_running=True, cpu_s=0.1 * i) for i in range(1, 22)]
    assert told[:19] == [False] * 19
    assert told[20]


def test_an_engine_is_not_held_up_for_ever() -> None:
    watchdog = Watchdog(2.0, 0.5)
    told = [watchdog.is_stuck(has_running=True, cpu_s=0.02 * i) for i in range(1, 22)]
    assert told == [False] * 20 + [True]


def test_an_engine_that_stands_still_or_has_all_of_a_core_is_not_held_up() -> None:
    for each_s in (0.0, 0.009, 0.5, 0.9):
        watchdog = Watchdog(2.0, 0.5)
        told = [watchdog.is_stuck(has_running=True, cpu_s=7 + each_s * i) for i in range(5)]
        assert told == [False] * 4 + [True]
