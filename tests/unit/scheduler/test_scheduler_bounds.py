"""How many may wait, and what those are told that may not."""

from __future__ import annotations

from collections import Counter

import pytest
from harness.scheduler_jobs import make_job
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.errors import ResourceExhausted, from_failed
from inferflux.scheduler.core.lifecycle.queue import Queue
from inferflux.scheduler.core.order.queue_policies import PolicyName, make_policy
from inferflux.scheduler.core.types.bounds import Bounds, Full, Waiting, full, retry_delay_s
from inferflux.scheduler.core.types.jobs import Job

STEPS = st.lists(st.tuples(st.sampled_from(["push", "serve", "discard"]), st.integers(0, 30)), max_size=100)


@given(STEPS, st.sampled_from(["priority", "sjf", "fair"]))
def test_the_count_of_waiting_jobs_is_that_of_the_queues(
    steps: list[tuple[str, int]], policy: PolicyName
) -> None:
    queue = Queue(lambda _places: make_policy(policy, aging_s=2.0))
    waiting: list[Job] = []
    for i, (what, which) in enumerate(steps):
        if what == "push":
            job = make_job(i, tenant=f"t{which % 3}", model=f"m{which % 2}", priority=which)
            queue.push(job)
            waiting.append(job)
        elif waiting and what == "serve":
            model = queue.models[waiting[which % len(waiting)].model]
            job = model.first() or waiting[0]
            model.depart(job, now=float(i))
            waiting.remove(job)
        elif waiting:
            queue.discard(waiting.pop(which % len(waiting)))
        by_tenant = Counter(job.key.tenant for job in waiting)
        assert queue.waiting.total == len(queue) == len(waiting)
        assert {t: queue.waiting.of(t) for t in ("t0", "t1", "t2") if queue.waiting.of(t)} == dict(by_tenant)
        assert queue.waiting.tenants == len(by_tenant)  # names come from outside: none is kept


def test_a_job_that_cannot_be_taken_out_is_not_counted_out() -> None:
    queue = Queue(lambda _places: make_policy("fair", aging_s=2.0))
    queue.push(make_job(1))
    with pytest.raises(KeyError):
        queue.discard(make_job(2))
    assert queue.waiting.total == 1


def fill(*tenants: str) -> Waiting:
    waiting = Waiting()
    for tenant in tenants:
        waiting.enter(tenant)
    return waiting


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (Bounds(), None),
        (Bounds(max_queued=4, max_queued_per_tenant=3), None),
        (Bounds(max_queued=3), Full.QUEUE),
        (Bounds(max_queued_per_tenant=2), Full.TENANT),
        (Bounds(max_queued=3, max_queued_per_tenant=2), Full.TENANT),
        (Bounds(max_queued=3, max_queued_per_tenant=3), Full.QUEUE),
    ],
)
def test_a_new_job_waits_unless_a_bound_is_reached(bounds: Bounds, why: Full | None) -> None:
    assert bounds.why_not(fill("a", "a", "b"), "a") is why


def fill_up(bounds: Bounds, waiting: Waiting, tenant: str) -> int:
    """Let jobs of a tenant come until one is refused; how many of it wait then."""
    while bounds.why_not(waiting, tenant, waiting.total) is None:
        waiting.enter(tenant)
    return waiting.of(tenant)


@pytest.mark.parametrize("bounds", [Bounds(queue_limit=13), Bounds(max_queued=13, queue_limit=13)])
def test_beside_others_a_tenant_fills_no_more_than_it_leaves_free(bounds: Bounds) -> None:
    waiting = fill("z")
    assert [fill_up(bounds, waiting, tenant) for tenant in "abcd"] == [6, 3, 2, 1]
    assert bounds.why_not(waiting, "a", waiting.total) is not None


@pytest.mark.parametrize("bounds", [Bounds(queue_limit=64), Bounds(max_queued=64, queue_limit=4096)])
def test_a_tenant_alone_fills_all_but_a_reserve_for_newcomers(bounds: Bounds) -> None:
    waiting = Waiting()
    assert fill_up(bounds, waiting, "a") == 60
    assert bounds.why_not(waiting, "a", waiting.total) is Full.TENANT
    assert fill_up(bounds, waiting, "b") == 2
    assert bounds.why_not(waiting, "a", waiting.total) is Full.TENANT


@given(st.integers(1, 100), st.lists(st.sampled_from("abcd"), max_size=200))
def test_only_a_full_queue_keeps_a_tenant_out_that_has_nothing_in_it(size: int, arrivals: list[str]) -> None:
    bounds, waiting = Bounds(max_queued=size), Waiting()
    for tenant in arrivals:
        why = bounds.why_not(waiting, tenant, waiting.total)
        if why is None:
            waiting.enter(tenant)
        elif not waiting.of(tenant):
            assert waiting.total == size


def test_what_runs_takes_room_in_the_work_queue_and_a_newcomer_has_some_left() -> None:
    bounds = Bounds(queue_limit=10)
    assert bounds.why_not(fill("a"), "a", held=9) is Full.TENANT
    assert bounds.why_not(fill("a"), "b", held=9) is None


def test_a_bound_that_is_set_holds_instead() -> None:
    bounds = Bounds(queue_limit=10, max_queued_per_tenant=8)
    assert bounds.why_not(fill(*"aaaaaaa"), "a", held=7) is None
    assert bounds.why_not(fill(*"aaaaaaaa"), "a", held=8) is Full.TENANT


def test_a_tenant_at_its_bound_keeps_no_other_out() -> None:
    bounds = Bounds(max_queued=10, max_queued_per_tenant=2)
    waiting = fill("a", "a")
    assert bounds.why_not(waiting, "a") is Full.TENANT
    assert bounds.why_not(waiting, "b") is None
    waiting.leave("a")
    assert bounds.why_not(waiting, "a") is None


@pytest.mark.parametrize(
    ("why", "reason", "says"),
    [
        (Full.QUEUE, "QUEUE_FULL", "3 requests wait"),
        (Full.TENANT, "TENANT_QUEUE_FULL", "2 requests of tenant a"),
    ],
)
def test_who_may_not_wait_is_told_which_bound_and_when_to_try_again(
    why: Full, reason: str, says: str
) -> None:
    error = from_failed(full(why, "a", fill("a", "a", "b"), departure_interval_s=10.0))
    assert isinstance(error, ResourceExhausted)
    assert error.reason == reason
    assert says in error.message
    assert error.retry_delay_s is not None
    assert error.retry_delay_s >= 1


def test_the_retry_delay_is_the_time_for_a_tenth_to_leave_within_reason() -> None:
    assert retry_delay_s(1000, 0.05) == 5.0
    assert retry_delay_s(10, 0.0) == 1.0
    assert retry_delay_s(100_000, 1.0) == 30.0
