"""When a tokenizer that failed is tried again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferflux.gateway.tokenizer.load_backoff import LoadBackoff


def test_one_failure_is_tried_again_at_once_more_wait_longer_and_longer() -> None:
    backoff = LoadBackoff()
    waits = []
    for _ in range(9):
        backoff.failed("it aborts", 100.0)
        waits.append(backoff.wait_s(100.0))
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.why == "it aborts"


def test_a_success_forgets_them() -> None:
    backoff = LoadBackoff()
    for _ in range(5):
        backoff.failed("it aborts", 0.0)
    backoff.succeeded()
    assert (backoff.why, backoff.wait_s(0.0)) == ("", 0)


@given(st.lists(st.floats(0, 30), max_size=200))
def test_processes_are_not_started_in_a_loop(gaps: list[float]) -> None:
    backoff, now, attempts = LoadBackoff(), 0.0, 0
    for gap in gaps:
        now += gap
        if backoff.wait_s(now) == 0:
            attempts += 1
            backoff.failed("again", now)
    assert attempts <= 8 + now / 60
