"""Order in the queue, and the sorted collection below it."""

from __future__ import annotations

import itertools

from harness.scheduler_world import make_request
from hypothesis import given
from hypothesis import strategies as st

from inferflux.scheduler.jobs import Job, JobState, RequestKey
from inferflux.scheduler.policies import Fcfs, Priority
from inferflux.scheduler.queue import ModelQueue
from inferflux.scheduler.ranking import Ranking

AGING_S = 2.0
ARRIVALS = st.lists(st.tuples(st.integers(-5, 9), st.floats(0, 1000)), max_size=60)


def make_job(arrival: int, *, priority: int = 0, enqueued_s: float = 0.0) -> Job:
    return Job(
        key=RequestKey("acme", f"r{arrival}"),
        request=make_request(f"r{arrival}", priority=priority),
        handle=None,
        sequence=arrival,
        arrival=arrival,
        enqueued_s=enqueued_s,
        deadline_s=None,
        epoch=1,
        state=JobState.QUEUED,
    )


@given(ARRIVALS, st.floats(1000, 2000))
def test_the_first_has_the_highest_effective_priority_at_any_later_time(
    arrivals: list[tuple[int, float]], now: float
) -> None:
    policy = Priority(AGING_S)
    jobs = [make_job(i, priority=p, enqueued_s=t) for i, (p, t) in enumerate(arrivals)]
    for job in jobs:
        policy.push(job)
    served = []
    while (first := policy.first()) is not None:
        assert policy.position(first) == 0
        policy.discard(first)
        served.append(first)
    assert len(served) == len(jobs)
    effective = [j.request.priority + (now - j.enqueued_s) / AGING_S for j in served]
    assert all(a >= b - 1e-6 for a, b in itertools.pairwise(effective))


def test_equal_jobs_are_served_as_they_arrived() -> None:
    policy = Priority(AGING_S)
    for i in (3, 1, 2):
        policy.push(make_job(i))
    assert [job.arrival for job in policy] == [1, 2, 3]


def test_an_ordinary_job_is_served_before_urgent_ones_that_come_later_than_its_aging_bound() -> None:
    policy = Priority(AGING_S)
    old = make_job(0, priority=0, enqueued_s=0.0)
    policy.push(old)
    for i in range(1, 200):
        policy.push(make_job(i, priority=5, enqueued_s=i / 10))
    assert policy.position(old) == 99  # those of the first 10 s, not those after


def test_first_come_first_served_ignores_priority() -> None:
    policy = Fcfs()
    policy.push(make_job(1, priority=9, enqueued_s=5.0))
    policy.push(make_job(2, priority=0, enqueued_s=4.0))
    first = policy.first()
    assert first is not None
    assert first.arrival == 2


def test_the_expected_wait_follows_the_pace_of_departures() -> None:
    queue = ModelQueue(Fcfs())
    jobs = [make_job(i, enqueued_s=float(i)) for i in range(20)]
    for job in jobs:
        queue.push(job)
    assert queue.expected_wait_s(jobs[-1]) == 0
    for i in range(10):
        queue.depart(jobs[i], now=100 + 2.0 * i)
        jobs[i].state = JobState.RUNNING
    assert queue.expected_wait_s(jobs[-1]) == 20.0
    assert queue.oldest_enqueued_s() == 10.0


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
