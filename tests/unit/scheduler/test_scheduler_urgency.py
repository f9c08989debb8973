"""One order: the queue, the workers and preemption go by the urgency of the policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from harness.profiles import examples
from harness.scheduler_jobs import make_job
from harness.scheduler_world import SWAPPED, World, make_request
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.order.queue_policies import PolicyName, make_policy
from inferflux.scheduler.core.order.queue_policy import QueuePolicy
from inferflux.scheduler.core.order.running import Running
from inferflux.scheduler.core.types.jobs import Job, JobState, RequestKey
from inferflux.scheduler.core.types.limits import Limits

LIMITS = Limits(settle_s=0.0)
PREEMPTING = FairnessSettings(enable_preemption=True)

# Request id: tenant, prompt, most tokens, priority; in the order of arrival.
WAITING = {
    "long": ("a", 4, 16, 0),
    "urgent": ("a", 4, 12, 9),
    "short": ("a", 4, 2, 0),
    "other": ("b", 4, 14, 1),
    "high": ("a", 4, 8, 4),
}
IN_ORDER: dict[PolicyName, list[str]] = {
    "priority": ["urgent", "high", "other", "long", "short"],
    "fcfs": ["long", "urgent", "short", "other", "high"],
    "sjf": ["short", "high", "urgent", "other", "long"],
    "fair": ["urgent", "other", "high", "long", "short"],
}


def world_with_waiting(policy: PolicyName, *, kv_cells: int) -> World:
    world = World(LIMITS, policy=policy)
    for request_id, (tenant, prompt, most, priority) in WAITING.items():
        world.submit(
            make_request(
                request_id, tenant=tenant, prompt=prompt, max_tokens=most, priority=priority, at=world.now
            )
        )
        world.pass_time(0.001)
    world.settle()
    world.add_worker("w1", slots=8, kv_cells=kv_cells)
    world.settle()
    return world


@pytest.mark.parametrize("policy", IN_ORDER)
def test_a_worker_is_told_the_order_of_the_policy(policy: PolicyName) -> None:
    world = world_with_waiting(policy, kv_cells=400)
    items = [item for batch in world.workers["w1"].batches for item in batch.items]
    assert [item.request.request_id for item in items] == IN_ORDER[policy]
    by_urgency = sorted(items, key=lambda item: item.urgency_key)
    assert [item.request.request_id for item in by_urgency] == IN_ORDER[policy]


@pytest.mark.parametrize("policy", IN_ORDER)
def test_a_worker_evicts_in_the_order_of_the_policy(policy: PolicyName) -> None:
    world = world_with_waiting(policy, kv_cells=100)
    worker = world.workers["w1"]
    assert len(worker.residents) == len(WAITING)
    worker.step()
    worker.size = replace(worker.size, kv_cells=16)
    worker.step()
    evicted = {key.request_id for key, s in worker.residents.items() if s.residence == SWAPPED}
    assert evicted == set(IN_ORDER[policy][-len(evicted) :])
    assert evicted


@pytest.mark.parametrize(("policy", "is_preempted"), [("priority", True), ("fcfs", False), ("fair", True)])
def test_a_request_gives_way_only_to_what_its_policy_puts_before_it(
    policy: PolicyName, is_preempted: bool
) -> None:
    world = World(LIMITS, policy=policy, fairness=PREEMPTING)
    world.pass_time(0.1)
    world.add_worker("w1", slots=2, kv_cells=200)
    world.settle()
    for name, priority in (("first", 0), ("second", 0), ("urgent", 9)):
        world.submit(make_request(name, max_tokens=20, priority=priority, at=world.now))
        world.settle()
        world.pass_time(0.1)
    state = world.core.jobs[RequestKey("acme", "urgent")].state
    assert (state is JobState.RUNNING) == is_preempted
    world.live(200)
    world.check_quiet()


def test_under_sjf_a_short_urgent_request_preempts_a_long_one_and_not_the_other_way_round() -> None:
    for running_tokens, urgent_tokens, is_preempted in ((50, 2, True), (2, 50, False)):
        world = World(LIMITS, policy="sjf", fairness=PREEMPTING)
        world.pass_time(0.1)
        world.add_worker("w1", slots=1, kv_cells=200)
        world.settle()
        world.submit(make_request("running", max_tokens=running_tokens, at=world.now))
        world.settle()
        world.submit(make_request("urgent", max_tokens=urgent_tokens, priority=9, at=world.now))
        world.settle()
        state = world.core.jobs[RequestKey("acme", "urgent")].state
        assert (state is JobState.RUNNING) == is_preempted


def test_under_fair_a_request_gives_way_to_one_of_a_tenant_that_was_served_less() -> None:
    world = World(LIMITS, policy="fair", fairness=PREEMPTING)
    world.pass_time(0.1)
    worker = world.add_worker("w1", slots=2, kv_cells=400)
    world.settle()
    for name, tenant, prompt, priority in (("b1", "b", 4, 0), ("a1", "a", 30, 0), ("b2", "b", 4, 9)):
        world.submit(
            make_request(name, tenant=tenant, prompt=prompt, priority=priority, max_tokens=20, at=world.now)
        )
        world.settle()
    assert [key.request_id for key, s in worker.residents.items() if not s.is_running] == ["a1"]


# Urgent requests, and the share of the others


def is_urgent(job: Job) -> bool:
    return job.priority >= 5


@pytest.mark.parametrize(
    ("slots", "share", "guaranteed"),
    [(8, 0.25, 2), (8, 0.0, 0), (1, 0.25, 0), (2, 0.25, 1), (3, 0.9, 2), (16, 0.3, 4), (0, 0.25, 0)],
)
def test_the_guaranteed_slots_leave_at_least_one_to_each_class(
    slots: int, share: float, guaranteed: int
) -> None:
    assert Running(ordinary_share=share, slots=lambda: slots).guaranteed == guaranteed


class Slots:
    """A queue and the slots it fills; a request runs for `steps` steps."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.running = Running(ordinary_share=0.25, is_urgent=is_urgent, slots=lambda: slots)
        self.policy: QueuePolicy = make_policy(
            "priority", aging_s=2.0, running=self.running, is_urgent=is_urgent
        )
        self.left: dict[Job, int] = {}

    def step(self) -> list[Job]:
        """Fill the slots; the jobs that were given one."""
        given = []
        while len(self.left) < self.slots and (job := self.policy.first()) is not None:
            self.policy.discard(job)
            self.running.add(job)
            self.policy.on_running(job.key.tenant)
            self.left[job] = job.max_tokens
            given.append(job)
        for job in list(self.left):
            self.left[job] -= 1
            if not self.left[job]:
                del self.left[job]
                self.running.remove(job)
                self.policy.on_running(job.key.tenant)
        return given


@settings(max_examples=examples(60))
@given(
    st.integers(2, 12),
    st.lists(st.integers(1, 6), min_size=1, max_size=20),
    st.lists(st.integers(1, 6), min_size=1, max_size=20),
)
def test_ordinary_requests_wait_no_longer_than_their_share_needs_however_many_are_urgent(
    n_slots: int, ordinary: list[int], urgent: list[int]
) -> None:
    slots = Slots(n_slots)
    for i, tokens in enumerate(ordinary):
        slots.policy.push(make_job(i, max_tokens=tokens, at=0.0))
    guaranteed, arrival, waiting = slots.running.guaranteed, len(ordinary), len(ordinary)
    # All slots may be taken at first; after that, the guaranteed ones serve them one after the other.
    bound = max(urgent) + sum(ordinary) // guaranteed + max(ordinary) + 1
    for step in range(bound + 1):
        for _ in range(n_slots):  # more than there are places for, at every step
            slots.policy.push(
                make_job(arrival, max_tokens=urgent[arrival % len(urgent)], priority=9, at=step)
            )
            arrival += 1
        waiting -= sum(not is_urgent(job) for job in slots.step())
    assert waiting == 0


@settings(max_examples=examples(60))
@given(st.integers(2, 12), st.lists(st.integers(1, 6), min_size=1, max_size=20), st.floats(0, 1e5))
def test_an_urgent_request_gets_the_first_place_beyond_the_share_of_the_others_however_old_they_are(
    n_slots: int, tokens: list[int], waited_s: float
) -> None:
    slots = Slots(n_slots)
    for i in range(6 * n_slots):
        slots.policy.push(make_job(i, max_tokens=tokens[i % len(tokens)], at=0.0))
    slots.step()
    urgent = make_job(10_000, priority=5, at=waited_s)
    slots.policy.push(urgent)
    counts: Counter[bool] = Counter()
    while urgent not in slots.left:
        given = slots.step()
        before = given[: given.index(urgent)] if urgent in given else given
        counts[True] += len(before)
        if urgent in given:
            break
    # Those before it at most fill up the share of the others.
    assert counts[True] <= slots.running.guaranteed


def test_who_waits_is_sorted_anew_when_the_threshold_changes() -> None:
    world = World(LIMITS)
    world.pass_time(0.1)
    worker = world.add_worker("w1", slots=2, kv_cells=200)
    world.settle()
    for name in ("r1", "r2"):
        world.submit(make_request(name, priority=3, max_tokens=3, at=world.now))
    world.submit(make_request("old", priority=0, max_tokens=3, at=world.now))
    world.settle()
    world.pass_time(20.0)
    worker.beat()
    world.submit(make_request("new", priority=3, max_tokens=3, at=world.now))
    world.settle()
    world.core.set_fairness(FairnessSettings(high_priority_threshold=3))
    queue = world.core.queue.models["demo"]
    first = queue.first()
    assert first is not None
    assert first.key.request_id == "new"
    world.core.set_fairness(FairnessSettings(high_priority_threshold=1000))
    first = queue.first()
    assert first is not None
    assert first.key.request_id == "old"
    world.live(100)
    world.check_quiet()
