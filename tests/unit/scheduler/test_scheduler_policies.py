"""The orders that look at more than priority: work left, and tenants' shares."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Mapping

import pytest
from harness.profiles import examples
from harness.scheduler_jobs import make_job
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.scheduler.core.order.queue_policies import Fair, Fcfs, Sjf, make_policy, work
from inferflux.scheduler.core.order.queue_policy import QueuePolicy
from inferflux.scheduler.core.order.shares import TenantShares
from inferflux.scheduler.core.order.tenant_service import TenantService
from inferflux.scheduler.core.order.urgent import UrgentFirst
from inferflux.scheduler.core.types.jobs import Job

AGING_S = 2.0


def drain(policy: QueuePolicy) -> list[int]:
    out = []
    while (job := policy.first()) is not None:
        policy.discard(job)
        out.append(job.arrival)
    return out


def test_policies_go_by_name() -> None:
    kinds = [type(make_policy(name, aging_s=AGING_S)) for name in ("priority", "fcfs", "sjf", "fair")]
    assert kinds == [UrgentFirst, Fcfs, Sjf, Fair]


# Shortest job first


def test_of_jobs_that_came_together_the_one_with_least_to_do_is_first_whatever_its_priority() -> None:
    policy = Sjf(AGING_S)
    policy.push(make_job(1, max_tokens=200, priority=9))
    policy.push(make_job(2, max_tokens=10, prompt=1000))
    policy.push(make_job(3, max_tokens=100))
    policy.push(make_job(4, max_tokens=0))  # no bound
    assert drain(policy) == [3, 2, 1, 4]


@given(st.integers(1, 4000), st.floats(0.001, 1000), st.floats(0, 1e6))
def test_a_long_job_is_overtaken_only_by_what_comes_soon_after_it(
    tokens: int, later_s: float, at: float
) -> None:
    policy = Sjf(AGING_S)
    long = make_job(1, prompt=0, max_tokens=tokens + 1, at=at)
    short = make_job(2, prompt=0, max_tokens=1, at=at + later_s)
    policy.push(short)
    policy.push(long)
    bound_s = tokens * AGING_S / 100
    if abs(later_s - bound_s) > 1e-6:
        assert drain(policy) == ([2, 1] if later_s < bound_s else [1, 2])


def test_what_a_parked_job_has_done_is_not_left_to_do() -> None:
    job = make_job(1, prompt=100, max_tokens=50)
    assert work(job) == pytest.approx(60)
    job.stay.report_computed(100, 0.0)
    job.stay.report_tokens(20)
    assert work(job) == pytest.approx(30)


def test_a_job_to_be_computed_again_pays_for_its_tokens_at_the_price_of_a_prompt() -> None:
    job = make_job(1, prompt=100, max_tokens=50)
    job.request.generated_token_ids.extend([7] * 20)
    assert work(job) == pytest.approx(30 + 12)


# Shares of tenants


class Machine:
    """Slots that generate a token per step, charged as they do."""

    def __init__(self, policy: QueuePolicy, slots: int) -> None:
        self.policy = policy
        self.slots = slots
        self.running: deque[tuple[Job, int]] = deque()
        self.served: Counter[str] = Counter()

    def step(self) -> None:
        while len(self.running) < self.slots and (job := self.policy.first()) is not None:
            self.policy.discard(job)
            self.policy.charge(job.key.tenant, job.prompt_tokens, 0)
            self.served[job.key.tenant] += job.prompt_tokens
            self.running.append((job, job.max_tokens))
        for _ in range(len(self.running)):
            job, left = self.running.popleft()
            self.policy.charge(job.key.tenant, 0, 1)
            self.served[job.key.tenant] += 2
            if left > 1:
                self.running.append((job, left - 1))


def make_fair(weights: Mapping[str, float] | None = None) -> Fair:
    return Fair(AGING_S, TenantShares(weights))


@settings(max_examples=10)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=30))
def test_two_backlogged_tenants_are_served_alike_though_one_sends_ten_times_as_much(
    sizes: list[tuple[int, int]],
) -> None:
    """Greedy sends what it likes, in any order and size; modest's jobs are all alike."""
    policy = make_fair()
    arrivals = itertools.count()
    machine = Machine(policy, slots=8)
    wanted = itertools.cycle(sizes)
    for _ in range(1000):
        for _ in range(10):
            prompt, max_tokens = next(wanted)
            policy.push(make_job(next(arrivals), tenant="greedy", prompt=prompt, max_tokens=max_tokens))
        policy.push(make_job(next(arrivals), tenant="modest", prompt=20, max_tokens=20))
        machine.step()
    assert 0.9 < machine.served["greedy"] / machine.served["modest"] < 1.1


@pytest.mark.parametrize("weight", [0.5, 3.0])
def test_a_tenant_is_served_by_its_weight(weight: float) -> None:
    policy = make_fair({"heavy": weight})
    machine = Machine(policy, slots=4)
    for i in range(4000):
        policy.push(make_job(i, tenant="heavy" if i % 2 else "light", max_tokens=1 + i % 7))
    for _ in range(1500):
        machine.step()
    assert len(policy) > 0
    assert machine.served["heavy"] / machine.served["light"] == pytest.approx(weight, rel=0.05)


def test_an_idle_tenant_saves_up_no_credit() -> None:
    policy = make_fair()
    machine = Machine(policy, slots=2)
    for i in range(5000):
        policy.push(make_job(i, tenant="busy"))
    for _ in range(500):
        machine.step()
    before = machine.served["busy"]
    for i in range(5000, 10000):
        policy.push(make_job(i, tenant="idle"))
    for _ in range(500):
        machine.step()
    assert machine.served["busy"] - before == pytest.approx(machine.served["idle"], rel=0.05)


def test_an_idle_tenant_saves_up_no_credit_while_the_queue_is_empty_either() -> None:
    shares = TenantShares()
    policy = Fair(AGING_S, shares)
    for i in range(100):
        job = make_job(i, tenant="busy")
        policy.push(job)
        policy.discard(job)
        policy.charge("busy", 10, 0)
    policy.push(make_job(200, tenant="late"))
    assert shares.counter("late") == shares.counter("busy") == 1000


def test_a_tenant_that_was_served_long_ago_has_saved_up_no_credit_when_it_returns() -> None:
    shares = TenantShares()
    policy = Fair(AGING_S, shares)
    once = make_job(1, tenant="idle")
    policy.push(once)
    policy.push(make_job(2, tenant="busy"))
    policy.charge("idle", 10, 0)
    policy.discard(once)
    policy.charge("busy", 1000, 0)
    policy.push(make_job(3, tenant="idle"))
    assert shares.counter("idle") == shares.counter("busy") == 1000


def test_what_a_tenant_was_served_beyond_its_share_it_still_owes_when_it_returns() -> None:
    policy = make_fair()
    first, again = make_job(1, tenant="a"), make_job(2, tenant="a", priority=9)
    policy.push(make_job(3, tenant="b"))
    policy.push(make_job(4, tenant="b"))
    policy.push(first)
    policy.discard(first)
    policy.charge("a", 100, 0)
    policy.push(again)
    assert drain(policy) == [3, 4, 2]


def test_a_tenant_with_one_job_does_not_wait_for_all_of_the_others() -> None:
    policy = make_fair()
    for i in range(1000):
        policy.push(make_job(i, tenant=f"t{i % 10}", priority=9))
    policy.push(make_job(1000, tenant="small"))
    machine = Machine(policy, slots=1)
    steps = 0
    while "small" not in machine.served:
        machine.step()
        steps += 1
    assert steps <= 11 * 4  # each other tenant has had one job of four tokens


def test_a_tenants_own_jobs_are_served_by_effective_priority() -> None:
    policy = make_fair()
    policy.push(make_job(1, priority=0, at=5.0))
    policy.push(make_job(2, priority=3, at=5.0))
    policy.push(make_job(3, priority=0, at=-5.0))  # waited for 10 s: worth five levels
    assert drain(policy) == [3, 2, 1]


def test_tenants_that_were_served_alike_take_turns() -> None:
    policy = make_fair()
    for i in range(6):
        policy.push(make_job(i, tenant="abc"[i // 2]))
    served = []
    while (job := policy.first()) is not None:
        policy.discard(job)
        policy.charge(job.key.tenant, 4, 0)
        served.append(job.key.tenant)
    assert "".join(served) == "abcabc"


STEP = st.tuples(
    st.sampled_from(["push", "serve", "discard", "charge"]), st.integers(0, 3), st.integers(0, 50)
)


@settings(max_examples=examples(500))
@given(st.lists(STEP, max_size=120))
def test_shares_are_the_papers_counters(steps: list[tuple[str, int, int]]) -> None:
    """Against the same rules without any index: every counter is looked at each time."""
    weights = {"t0": 2.0, "t1": 0.5}
    shares = TenantShares(weights)
    policy = Fair(AGING_S, shares)
    counters: dict[str, float] = {}
    waiting: dict[str, list[Job]] = defaultdict(list)
    last_left = ""
    arrivals = itertools.count()
    for what, which, amount in steps:
        tenant = f"t{which}"
        if what == "push":
            if not waiting[tenant]:
                active = [counters[t] for t, jobs in waiting.items() if jobs]
                floor = min(active, default=counters.get(last_left, 0.0))
                counters[tenant] = max(counters.get(tenant, 0.0), floor)
            job = make_job(next(arrivals), tenant=tenant, priority=amount % 3)
            waiting[tenant].append(job)
            policy.push(job)
        elif what == "charge" and tenant in counters:
            counters[tenant] += (amount + 2 * which) / weights.get(tenant, 1.0)
            policy.charge(tenant, amount, which)
        elif what != "charge":
            first = policy.first()
            least = min((counters[t] for t, jobs in waiting.items() if jobs), default=None)
            assert (first is None) == (least is None)
            if first is not None:
                assert counters[first.key.tenant] == least
                own = waiting[first.key.tenant]
                assert (-first.request.priority, first.arrival) == min(
                    (-j.request.priority, j.arrival) for j in own
                )
                assert policy.position(first) == 0
                gone = first if what == "serve" else own[amount % len(own)]
                own.remove(gone)
                policy.discard(gone)
                last_left = last_left if own else gone.key.tenant
        assert {t: shares.counter(t) for t in counters if shares.counter(t) != counters[t]} == {}
        assert shares.active_weight == sum(weights.get(t, 1.0) for t, jobs in waiting.items() if jobs)
        assert sorted(j.arrival for j in policy) == sorted(j.arrival for js in waiting.values() for j in js)
        assert len(policy) == sum(map(len, waiting.values()))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.sampled_from([0.5, 1.0, 4.0]))
def test_a_position_among_tenants_is_about_how_many_are_served_before(
    tenants: list[int], weight: float
) -> None:
    policy = make_fair({"t0": weight})
    jobs = [make_job(i, tenant=f"t{t}") for i, t in enumerate(tenants)]
    for job in jobs:
        policy.push(job)
    told = {job.arrival: policy.position(job) for job in jobs}
    order: list[int] = []
    while (first := policy.first()) is not None:
        policy.discard(first)
        policy.charge(first.key.tenant, first.prompt_tokens, first.max_tokens)
        order.append(first.arrival)
    for at, arrival in enumerate(order):
        assert 0 <= told[arrival] < len(jobs)
        if weight == 1.0 and len(set(Counter(tenants).values())) == 1:
            assert told[arrival] == at
        own = [a for a in order if tenants[a] == tenants[arrival]]
        assert told[arrival] >= own.index(arrival)


def test_tenants_that_owe_nothing_are_forgotten() -> None:
    shares = TenantShares()
    policy = Fair(AGING_S, shares)
    policy.push(make_job(0, tenant="stays"))
    policy.charge("stays", 10, 0)
    for i in range(1, 20_000):
        job = make_job(i, tenant=f"visitor{i}")
        policy.push(job)
        policy.discard(job)
    assert len(shares._counters) < 3000
    assert shares.counter("visitor1") == shares.counter("stays") == 10


def test_tenants_that_owe_something_are_remembered() -> None:
    shares = TenantShares()
    policy = Fair(AGING_S, shares)
    policy.push(make_job(0, tenant="stays"))
    for i in range(1, 5000):
        job = make_job(i, tenant=f"visitor{i}")
        policy.push(job)
        policy.discard(job)
        policy.charge(job.key.tenant, i, 0)
    assert all(shares.counter(f"visitor{i}") == i for i in range(1, 5000))


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_refused_by_the_tenants_name(weight: float) -> None:
    with pytest.raises(ValueError, match="weight of tenant acme"):
        TenantShares({"acme": weight})


def test_a_tenant_that_was_served_of_one_model_waits_longer_for_another() -> None:
    service = TenantService()
    one, other = (Fair(AGING_S, TenantShares(service=service)) for _ in range(2))
    for policy in (one, other):
        policy.push(make_job(1, tenant="greedy"))
        policy.push(make_job(2, tenant="modest"))
    one.charge("greedy", 100, 0)
    assert [drain(policy) for policy in (one, other)] == [[2, 1], [2, 1]]


def test_what_was_served_is_known_to_the_next_leader_and_idle_tenants_have_no_credit() -> None:
    service = TenantService()
    policy = Fair(AGING_S, TenantShares(service=service))
    service.set("idle", -50.0)
    for i, tenant in enumerate(("greedy", "modest")):
        policy.push(make_job(i, tenant=tenant))
    policy.charge("greedy", 100, 0)
    following = TenantService()
    following.restore(service.encode())
    assert following.counters == {"greedy": 100.0, "modest": 0.0, "idle": 0.0}
    then = Fair(AGING_S, TenantShares(service=following))
    for i, tenant in enumerate(("greedy", "modest")):
        then.push(make_job(i, tenant=tenant))
    assert drain(then) == [1, 0]


@pytest.mark.parametrize(
    "written",
    [
        *(b"", b"no", b"[1]", b'{"a": "x", "b": -1, "c": NaN}'),
        *(b"[" * 100_000, b'{"a": 1' + b"0" * 400 + b"}", b'{"a": 1e999}'),
    ],
)
def test_shares_that_cannot_be_read_are_ignored(written: bytes) -> None:
    service = TenantService()
    service.restore(written)
    assert service.counters == {}
