"""When a waiting job is told again where it stands."""

from __future__ import annotations

import pytest
from harness.scheduler_jobs import make_job
from hypothesis import given
from hypothesis import strategies as st

from inferflux.scheduler.core.lifecycle.queue import ModelQueue
from inferflux.scheduler.core.order.queue_policies import make_policy
from inferflux.scheduler.core.types.announcements import LEAST_INTERVAL_S, Announcements, Outlook
from inferflux.scheduler.core.types.jobs import Job, JobState


@pytest.mark.parametrize(
    ("told", "now", "is_worth_it"),
    [
        (Outlook(100, 50.0), Outlook(51, 26.0), False),
        (Outlook(100, 50.0), Outlook(50, 50.0), True),
        (Outlook(100, 50.0), Outlook(150, 50.0), True),
        (Outlook(2, 0.0), Outlook(1, 0.0), True),
        (Outlook(1, 0.0), Outlook(0, 0.0), True),
        (Outlook(0, 0.0), Outlook(1, 0.0), True),
        (Outlook(0, 0.0), Outlook(0, 0.0), False),
        (Outlook(9, 10.0), Outlook(9, 16.0), True),
        (Outlook(9, 10.0), Outlook(9, 4.0), True),
        (Outlook(9, 10.0), Outlook(9, 14.0), False),
        (Outlook(9, 0.5), Outlook(9, 1.4), False),
        (Outlook(9, 0.5), Outlook(9, 1.6), True),
    ],
)
def test_a_change_by_half_is_worth_telling(told: Outlook, now: Outlook, is_worth_it: bool) -> None:
    assert now.differs_much_from(told) is is_worth_it


def test_a_job_is_told_again_when_it_has_moved_and_not_before() -> None:
    announcements = Announcements()
    job = make_job(1)
    announcements.tell(job, Outlook(10, 4.0), now=100.0)
    moved = Outlook(3, 1.2)
    assert announcements.due(101.9, lambda _: moved) == []
    assert announcements.due(102.0, lambda _: moved) == [(job, moved)]
    assert announcements.due(104.0, lambda _: moved) == []
    assert announcements.due(106.0, lambda _: Outlook(0, 0.4)) == [(job, Outlook(0, 0.4))]


def test_a_job_far_behind_is_looked_at_seldom_yet_every_minute() -> None:
    announcements = Announcements()
    announcements.tell(make_job(1), Outlook(1000, 40.0), now=0.0)
    announcements.tell(make_job(2), Outlook(100_000, 40_000.0), now=0.0)
    near, far = Outlook(0, 0.0), Outlook(99_999, 39_999.0)
    looks: list[tuple[float, int]] = []

    for tick in range(601):

        def look(job: Job, now: float = tick / 10) -> Outlook:
            looks.append((now, job.arrival))
            return near if job.arrival == 1 else far

        announcements.due(tick / 10, look)
    assert looks[0] == (10.0, 1)
    assert [now for now, arrival in looks if arrival == 2] == [60.0]


def test_jobs_that_wait_no_more_are_not_told() -> None:
    announcements = Announcements()
    ended, forgotten, parked = make_job(1), make_job(2), make_job(3)
    for job in (ended, forgotten, parked):
        announcements.tell(job, Outlook(10, 1.0), now=0.0)
    ended.state, parked.state = JobState.FINISHED, JobState.RUNNING
    announcements.forget(forgotten)
    announcements.forget(forgotten)
    assert announcements.due(5.0, lambda _: Outlook(0, 0.0)) == []
    assert len(announcements) == 0


def test_a_job_that_is_told_otherwise_meanwhile_is_looked_at_once_not_twice() -> None:
    announcements = Announcements()
    job = make_job(1)
    for now in (0.0, 1.0, 1.5):
        announcements.tell(job, Outlook(10, 1.0), now)
    assert announcements.due(3.4, lambda _: Outlook(1, 1.0)) == []
    assert len(announcements.due(3.5, lambda _: Outlook(1, 1.0))) == 1
    assert announcements.due(3.5, lambda _: Outlook(0, 1.0)) == []


def test_a_request_that_comes_again_under_its_id_is_another_job() -> None:
    announcements = Announcements()
    old, new = make_job(1), make_job(1)
    announcements.tell(old, Outlook(10, 1.0), now=0.0)
    announcements.tell(new, Outlook(8, 1.0), now=1.0)
    announcements.forget(old)
    assert announcements.due(3.0, lambda _: Outlook(0, 1.0)) == [(new, Outlook(0, 1.0))]


def test_however_many_wait_a_call_looks_at_few_and_each_gets_its_turn() -> None:
    announcements = Announcements(looks_per_call=10)
    jobs = [make_job(i) for i in range(1000)]
    for job in jobs:
        announcements.tell(job, Outlook(1000, 0.0), now=0.0)
    looks: list[int] = []

    def look(job: Job) -> Outlook:
        looks.append(job.arrival)
        return Outlook(1, 0.0)

    for call in range(100):
        announcements.due(10.0 + call / 1000, look)
        assert len(looks) == 10 * (call + 1)
    assert sorted(looks) == [job.arrival for job in jobs]


def test_jobs_that_come_and_go_quickly_leave_nothing_behind() -> None:
    announcements = Announcements(looks_per_call=10)
    for i in range(2000):
        job = make_job(i)
        announcements.tell(job, Outlook(1, 0.0), now=0.0)
        announcements.forget(job)
    for call in range(20):
        announcements.due(10.0 + call, lambda _: Outlook(0, 0.0))
    assert len(announcements._looks) == 0


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_no_request_is_told_twice_within_two_seconds_and_none_is_left_with_old_news(
    steps: list[tuple[float, int]],
) -> None:
    """A queue that moves at random: at the end, time for looking at all of them is given."""
    queue = ModelQueue(lambda: make_policy("priority", aging_s=2.0))
    announcements = Announcements(looks_per_call=5)
    jobs = [make_job(i) for i in range(20)]
    told: dict[Job, tuple[float, Outlook]] = {}
    now = 0.0
    for job in jobs:
        queue.push(job)
        told[job] = (now, queue.outlook(job))
        announcements.tell(job, queue.outlook(job), now)

    def announce() -> None:
        for job, outlook in announcements.due(now, queue.outlook):
            assert now - told[job][0] >= LEAST_INTERVAL_S - 1e-9
            told[job] = (now, outlook)

    for elapsed_s, served in steps:
        now += elapsed_s
        for _ in range(min(served, len(queue))):
            first = queue.first()
            assert first is not None
            queue.depart(first, now)
            first.state = JobState.RUNNING
        announce()
    for _ in range(200):
        now += 1.0
        announce()
    for job in queue:
        assert not queue.outlook(job).differs_much_from(told[job][1])
