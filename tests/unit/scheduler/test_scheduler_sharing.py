"""How tenants share the workers under the policy `priority`."""

from __future__ import annotations

from collections import Counter

from harness.scheduler_jobs import make_job
from harness.scheduler_world import World, make_request
from hypothesis import given
from hypothesis import strategies as st

from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.order.queue_policies import make_policy
from inferflux.scheduler.core.order.queue_policy import QueuePolicy
from inferflux.scheduler.core.order.running import Running
from inferflux.scheduler.core.order.urgent import URGENT_LEAD_S
from inferflux.scheduler.core.types.jobs import Job, JobState, RequestKey
from inferflux.scheduler.core.types.limits import Limits

AGING_S = 2.0
URGENT = 5


def _is_urgent(job: Job) -> bool:
    return job.priority >= URGENT


class Line:
    """A queue and what runs of it."""

    def __init__(self) -> None:
        self.running = Running(is_urgent=_is_urgent)
        self.policy: QueuePolicy = make_policy(
            "priority", aging_s=AGING_S, running=self.running, is_urgent=_is_urgent
        )
        self._arrivals = 0
        self._run: dict[str, list[Job]] = {}

    def push(self, tenant: str, *, priority: int = 0, at: float = 0.0) -> Job:
        self._arrivals += 1
        job = make_job(self._arrivals, tenant=tenant, priority=priority, at=at)
        self.policy.push(job)
        return job

    def run(self, tenant: str, requests: int) -> None:
        for _ in range(requests):
            job = make_job(0, tenant=tenant)
            self.running.add(job)
            self._run.setdefault(tenant, []).append(job)
            self.policy.on_running(tenant)

    def end(self, tenant: str) -> None:
        """One of a tenant's ends."""
        self.running.remove(self._run[tenant].pop())
        self.policy.on_running(tenant)

    def serve(self) -> Job:
        """The next takes a place."""
        job = self.policy.first()
        assert job is not None
        self.policy.discard(job)
        self.run(job.key.tenant, 1)
        return job


def test_a_flood_lets_a_tenant_with_nothing_running_go_first() -> None:
    line = Line()
    line.run("flood", 16)
    for _ in range(84):
        line.push("flood", at=0.0)
    late = line.push("other", at=30.0)
    assert line.policy.position(late) == 1
    assert line.serve() is late
    assert line.serve().key.tenant == "flood"


def test_tenants_with_alike_many_running_go_in_priority_order() -> None:
    line = Line()
    line.run("a", 4)
    line.run("b", 3)
    older = line.push("a", at=0.0)
    line.push("b", at=1.0)
    assert line.policy.first() is older


def test_each_level_of_priority_is_worth_one_more_place() -> None:
    line = Line()
    line.push("low", priority=0, at=1.0)
    line.push("high", priority=3, at=1.0)
    line.run("third", 6)
    line.run("high", 4)
    assert line.serve().key.tenant == "high"
    line.push("high", priority=3, at=1.0)
    assert line.serve().key.tenant == "low"


def test_no_number_of_levels_shuts_another_tenant_out() -> None:
    line = Line()
    line.run("flood", 7)
    for _ in range(3):
        line.push("flood", priority=100)
    other = line.push("other", priority=URGENT)
    assert line.serve() is other
    assert line.serve().key.tenant == "flood"


def test_an_urgent_request_goes_first_whatever_its_tenant_has_running() -> None:
    line = Line()
    line.run("busy", 50)
    line.push("idle")
    urgent = line.push("busy", priority=URGENT)
    assert line.policy.first() is urgent


def test_urgent_requests_are_shared_by_tenant_too() -> None:
    line = Line()
    line.run("flood", 4)
    for _ in range(9):
        line.push("flood", priority=URGENT)
    other = line.push("other", priority=URGENT, at=30.0)
    line.push("third")
    assert line.serve() is other
    assert line.serve().key.tenant == "flood"


def test_a_tenant_alone_is_served_in_priority_order() -> None:
    line = Line()
    line.run("only", 9)
    jobs = [line.push("only", priority=priority, at=at) for priority, at in ((0, 0.0), (1, 0.0), (0, -9.0))]
    assert [line.serve() for _ in jobs] == [jobs[2], jobs[1], jobs[0]]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["push", "serve", "discard", "put back", "end"]),
            st.integers(0, 30),
            st.integers(0, 7),
        ),
        max_size=120,
    )
)
def test_the_first_is_always_the_one_that_the_rule_names(steps: list[tuple[str, int, int]]) -> None:
    line = Line()
    waiting: list[Job] = []
    running: Counter[str] = Counter()
    for i, (what, which, priority) in enumerate(steps):
        tenant = f"t{which % 4}"
        if what == "push":
            waiting.append(line.push(tenant, priority=priority, at=float(i)))
        elif what == "serve" and waiting:
            job = line.serve()
            waiting.remove(job)
            running[job.key.tenant] += 1
        elif what == "discard" and waiting:
            line.policy.discard(waiting.pop(which % len(waiting)))
        elif what == "put back" and waiting:
            line.policy.discard(waiting[which % len(waiting)])
            line.policy.put_back(waiting[which % len(waiting)])
        elif what == "end" and running[tenant]:
            running[tenant] -= 1
            line.end(tenant)
        assert len(line.policy) == len(waiting)
        assert set(line.policy) == set(waiting)
        assert line.policy.first() is _named(waiting, running)
        for job in waiting:
            assert 0 <= line.policy.position(job) < len(waiting)


def _named(waiting: list[Job], running: Counter[str]) -> Job | None:
    """The rule, plainly: of either class, and of the two the one with the more urgent key."""
    urgent = _shared([job for job in waiting if job.priority >= URGENT], running)
    ordinary = _shared([job for job in waiting if job.priority < URGENT], running)
    if urgent is None or ordinary is None:
        return urgent or ordinary
    return urgent if urgent.order[0] - URGENT_LEAD_S <= ordinary.order[0] else ordinary


def _shared(waiting: list[Job], running: Counter[str]) -> Job | None:
    in_order = sorted(waiting, key=lambda job: job.order)
    if not in_order:
        return None
    heads = {job.key.tenant: job for job in reversed(in_order)}
    other = min(heads.values(), key=lambda job: (running[job.key.tenant], job.order))
    first = in_order[0]
    lead = running[first.key.tenant] - running[other.key.tenant]
    total = running.total()
    levels = min(first.priority - other.priority, total // 2, total - 2)
    return other if lead >= 2 + max(0, levels) else first


def test_a_tenant_gets_the_next_place_beside_a_flood_and_both_then_share() -> None:
    world = World(Limits(settle_s=0.0))
    world.add_worker("w1", slots=8, kv_cells=512)
    world.settle()
    world.pass_time(0.1)
    for i in range(60):
        world.submit(make_request(f"f{i}", tenant="flood", max_tokens=8, at=world.now))
    world.settle()
    world.pass_time(10.0)
    for i in range(6):
        world.submit(make_request(f"o{i}", tenant="other", max_tokens=8, at=world.now))
    world.settle()
    world.live(9)
    running = Counter(j.key.tenant for j in world.core.jobs.values() if j.state is JobState.RUNNING)
    assert running["other"] >= 3
    world.live(300)
    world.check_quiet()


def test_urgent_requests_preempt_as_before() -> None:
    world = World(Limits(settle_s=0.0), fairness=FairnessSettings(enable_preemption=True))
    worker = world.add_worker("w1", slots=2, kv_cells=512)
    world.settle()
    world.pass_time(0.1)
    for i in range(6):
        world.submit(make_request(f"f{i}", tenant="flood", max_tokens=30, at=world.now))
    world.submit(make_request("o", tenant="other", max_tokens=30, at=world.now))
    world.settle()
    world.submit(make_request("urgent", tenant="flood", priority=9, max_tokens=30, at=world.now))
    world.settle()
    assert worker.residents[RequestKey("flood", "urgent")].is_running
    world.live(300)
    world.check_quiet()
