"""Order in the queue, its pace, and the sorted collection below it."""

from __future__ import annotations

import itertools

import pytest
from harness.scheduler_jobs import make_job
from hypothesis import given
from hypothesis import strategies as st

from inferflux.scheduler.core.lifecycle.queue import ModelQueue, Pace, Queue
from inferflux.scheduler.core.order.queue_policies import Fcfs, Priority, make_policy
from inferflux.scheduler.core.types.announcements import Outlook
from inferflux.scheduler.core.types.ranking import Ranking

AGING_S = 2.0
ARRIVALS = st.lists(st.tuples(st.integers(-5, 9), st.floats(0, 1000)), max_size=60)


@given(ARRIVALS, st.floats(1000, 2000))
def test_the_first_has_the_highest_effective_priority_at_any_later_time(
    arrivals: list[tuple[int, float]], now: float
) -> None:
    policy = Priority(AGING_S)
    jobs = [make_job(i, priority=p, at=t) for i, (p, t) in enumerate(arrivals)]
    for job in jobs:
        policy.push(job)
    served = []
    while (first := policy.first()) is not None:
        assert policy.position(first) == 0
        policy.discard(first)
        served.append(first)
    assert len(served) == len(jobs)
    effective = [j.request.priority + (now - j.since_s) / AGING_S for j in served]
    assert all(a >= b - 1e-6 for a, b in itertools.pairwise(effective))


def test_equal_jobs_are_served_as_they_arrived() -> None:
    policy = Priority(AGING_S)
    for i in (3, 1, 2):
        policy.push(make_job(i))
    assert [job.arrival for job in policy] == [1, 2, 3]


def test_an_ordinary_job_is_served_before_urgent_ones_that_come_later_than_its_aging_bound() -> None:
    policy = Priority(AGING_S)
    old = make_job(0, priority=0, at=0.0)
    policy.push(old)
    for i in range(1, 200):
        policy.push(make_job(i, priority=5, at=i / 10))
    assert policy.position(old) == 99  # those of the first 10 s, not those after


def test_a_job_that_has_had_its_timeslice_waits_from_then_on() -> None:
    policy = Priority(AGING_S)
    sliced, other = make_job(0, at=0.0), make_job(1, at=1.0)
    sliced.since_s = 5.0
    policy.push(sliced)
    policy.push(other)
    assert policy.first() is other


def test_first_come_first_served_ignores_priority() -> None:
    policy = Fcfs()
    policy.push(make_job(1, priority=9, at=5.0))
    policy.push(make_job(2, priority=0, at=4.0))
    first = policy.first()
    assert first is not None
    assert first.arrival == 2


def test_the_expected_wait_follows_the_pace_of_departures() -> None:
    queue = ModelQueue(Fcfs)
    jobs = [make_job(i, at=float(i)) for i in range(20)]
    for job in jobs:
        queue.push(job)
    assert queue.outlook(jobs[-1]) == Outlook(19, 0.0)
    for i in range(10):
        queue.depart(jobs[i], now=100 + 2.0 * i)
    assert queue.outlook(jobs[-1]) == Outlook(9, 20.0)
    assert queue.oldest_enqueued_s() == 10.0


@given(size=st.integers(1, 500), gap_s=st.floats(0.01, 100), bursts=st.integers(2, 40))
def test_jobs_that_depart_in_bursts_have_the_pace_of_the_whole(size: int, gap_s: float, bursts: int) -> None:
    pace = Pace()
    for i in range(bursts):
        for _ in range(size):
            pace.depart(1000 + i * gap_s)
    assert pace.interval_s == pytest.approx(gap_s / size, rel=0.01)


def test_the_pace_is_soon_that_of_late() -> None:
    pace = Pace()
    for i in range(1000):
        pace.depart(i * 0.01)
    for i in range(1000):
        pace.depart(100 + i * 0.5)
    assert pace.interval_s == pytest.approx(0.5, rel=0.01)


def test_the_first_departures_after_a_pause_tell_nothing() -> None:
    queue = ModelQueue(Fcfs)
    for start in (100.0, 5000.0):
        jobs = [make_job(i, at=start) for i in range(24)]
        for job in jobs:
            queue.push(job)
        for i, job in enumerate(jobs):  # 8 at once: as many slots were free
            queue.depart(job, now=start + i // 8 * 4.0)
        assert queue.departure_interval_s == pytest.approx(0.5)


def test_time_in_which_no_job_waits_does_not_count() -> None:
    queue = ModelQueue(Fcfs)
    first, discarded, late, last = (make_job(i) for i in range(4))
    queue.push(first)
    queue.push(discarded)
    queue.depart(first, now=10.0)
    queue.discard(discarded)
    queue.push(late)
    queue.push(last)
    queue.depart(late, now=5000.0)
    assert queue.departure_interval_s == 0
    queue.depart(last, now=5003.0)
    assert queue.departure_interval_s == 3.0


def test_a_burst_that_begins_slowly_foretells_no_long_wait() -> None:
    queue = ModelQueue(Fcfs)
    jobs = [make_job(i, at=0.0) for i in range(1000)]
    for job in jobs:
        queue.push(job)
    for i in range(6):
        queue.depart(jobs[i], now=10 + 0.5 * i)
    assert queue.outlook(jobs[-1]).expected_wait_s > 450.0
    assert queue.certain_wait_s(jobs[-1]) == 25.0
    for i in range(6, 300):
        queue.depart(jobs[i], now=10 + 0.5 * i)
    assert queue.certain_wait_s(jobs[-1]) == queue.outlook(jobs[-1]).expected_wait_s


def test_what_was_seen_before_a_pause_foretells_nothing() -> None:
    queue = ModelQueue(Fcfs)
    first, second, later = (make_job(i, at=0.0) for i in range(3))
    queue.push(first)
    queue.push(second)
    queue.depart(first, now=10.0)
    queue.depart(second, now=40.0)
    queue.push(later)
    assert queue.outlook(later).expected_wait_s > 0
    assert queue.certain_wait_s(later) == 0.0


def test_a_clock_that_is_set_back_does_no_harm() -> None:
    pace = Pace()
    for now in (10.0, 12.0, 5.0, 14.0):
        pace.depart(now)
    assert 0 < pace.interval_s < 2.5


def test_the_oldest_is_told_among_those_that_wait_whatever_became_of_the_others() -> None:
    queue = Queue(lambda _places: make_policy("priority", aging_s=AGING_S))
    jobs = [make_job(i, at=float(i), priority=i, model=f"m{i % 2}") for i in range(100)]
    for job in jobs:
        queue.push(job)
    assert queue.oldest_enqueued_s() == 0.0
    for job in jobs[:50]:
        queue.discard(job)
    assert queue.oldest_enqueued_s() == 50.0
    queue.push(jobs[3])
    assert queue.oldest_enqueued_s() == 3.0
    for job in [jobs[3], *jobs[50:]]:
        queue.models[job.model].depart(job, now=200.0)
    assert queue.oldest_enqueued_s() is None
    assert len(queue) == 0


def test_a_job_that_does_not_wait_cannot_depart() -> None:
    queue = ModelQueue(Fcfs)
    queue.push(make_job(1))
    with pytest.raises(KeyError):
        queue.depart(make_job(2), now=1.0)
    assert len(queue) == 1


def test_queues_of_models_that_no_worker_serves_are_forgotten_once_empty() -> None:
    queue = Queue(lambda _places: make_policy("fcfs", aging_s=AGING_S))
    kept, gone = make_job(1, model="kept"), make_job(2, model="gone")
    queue.push(kept)
    queue.push(gone)
    queue.forget_empty(lambda _: False)
    assert set(queue.models) == {"kept", "gone"}
    queue.discard(kept)
    queue.discard(gone)
    queue.forget_empty(lambda model: model == "kept")
    assert set(queue.models) == {"kept"}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3000))))
def test_a_ranking_is_a_sorted_list(steps: list[tuple[bool, int]]) -> None:
    _compare_with_a_list(steps)


def test_a_ranking_is_a_sorted_list_over_many_chunks_too() -> None:
    add = [(True, (i * 7919) % 5003) for i in range(5003)]
    remove = [(False, (i * 31) % 5003) for i in range(4500)]
    _compare_with_a_list([*add, *remove, *add[:500]])


def _compare_with_a_list(steps: list[tuple[bool, int]]) -> None:
    ranking: Ranking[tuple[int, str]] = Ranking()
    model: set[int] = set()
    for is_added, value in steps:
        if is_added and value not in model:
            ranking.add((value, "x"))
            model.add(value)
        elif not is_added and value in model:
            ranking.remove((value, "x"))
            model.remove(value)
    expected = sorted(model)
    assert [value for value, _ in ranking] == expected
    assert len(ranking) == len(expected)
    for position, value in enumerate(expected[::97]):
        assert ranking.position((value, "x")) == position * 97
    if expected:
        assert ranking.first() == (expected[0], "x")
