"""Whatever the network and the workers do, each request ends once and nothing is left behind."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
from harness.scheduler_world import World, make_request
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inferflux.common.contract.errors import InferFluxError
from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.order.queue_policies import PolicyName
from inferflux.scheduler.core.types.limits import Limits
from inferflux.scheduler.core.workers import pools, split

PICK = st.integers(min_value=0, max_value=1_000_000)
WORKERS = st.sampled_from(["w1", "w2", "w3"])


class Chaos(RuleBasedStateMachine):
    """Arrivals, losses, repeats, reorderings, deaths and restarts, in any order."""

    policy: PolicyName = "priority"
    fairness = FairnessSettings(enable_preemption=True, high_priority_threshold=2, max_timeslice_tokens=3)

    def __init__(self) -> None:
        super().__init__()
        self.world = World(Limits(settle_s=0.5, max_retries=3), policy=self.policy, fairness=self.fairness)
        self.world.pass_time(1.0)
        self.add_worker("w1")
        self.add_worker("w2")
        self.arrived = 0

    def add_worker(self, worker_id: str) -> None:
        """The third is too small for some."""
        self.world.add_worker(worker_id, kv_cells=16 if worker_id == "w3" else 32)

    @rule(
        priority=st.integers(0, 3),
        prompt=st.integers(1, 12),
        max_tokens=st.integers(1, 12),
        deadline_in=st.sampled_from([0.0, 0.0, 0.0, 2.0, 20.0]),
        tenant=st.sampled_from(["acme", "bolt"]),
    )
    def arrive(self, priority: int, prompt: int, max_tokens: int, deadline_in: float, tenant: str) -> None:
        self.arrived += 1
        now = self.world.now
        request = make_request(
            f"r{self.arrived // 2}",  # two tenants may choose the same
            tenant=tenant,
            prompt=prompt,
            max_tokens=max_tokens,
            priority=priority,
            at=now,
            deadline=now + deadline_in if deadline_in else 0.0,
        )
        if (request.tenant, request.request_id) not in self.world.clients:
            self.world.submit(request)

    @precondition(lambda self: self.world.network)
    @rule(pick=PICK)
    def deliver_any(self, pick: int) -> None:
        self.world.deliver(pick % len(self.world.network))

    @rule()
    def deliver_all(self) -> None:
        self.world.settle()

    @rule(worker_id=WORKERS)
    def beat(self, worker_id: str) -> None:
        if worker_id in self.world.workers:
            self.world.workers[worker_id].beat()

    @rule(worker_id=WORKERS)
    def beat_twice(self, worker_id: str) -> None:
        if (worker := self.world.workers.get(worker_id)) is not None:
            worker.beat()
            self.world.tell(self.world.network[-1])

    @rule(worker_id=WORKERS, steps=st.integers(1, 4))
    def step(self, worker_id: str, steps: int) -> None:
        if (worker := self.world.workers.get(worker_id)) is not None:
            for _ in range(steps):
                worker.step()

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.1, 3.5]))
    def wait(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(worker_id=WORKERS)
    def kill(self, worker_id: str) -> None:
        self.world.workers.pop(worker_id, None)

    @rule(worker_id=WORKERS)
    def start(self, worker_id: str) -> None:
        self.add_worker(worker_id)

    @rule(worker_id=WORKERS)
    def die_engine(self, worker_id: str) -> None:
        if (worker := self.world.workers.get(worker_id)) is not None:
            worker.die_engine()

    @rule(worker_id=WORKERS)
    def leave(self, worker_id: str) -> None:
        if (worker := self.world.workers.pop(worker_id, None)) is not None:
            worker.leave()

    @rule(worker_id=WORKERS, undo=st.booleans(), hand_over=st.sampled_from([None, 0.0, 2.0]))
    def drain(self, worker_id: str, undo: bool, hand_over: float | None) -> None:
        world = self.world
        if world.core.table.get(worker_id) is not None:
            world.do(
                world.core.commands.drain(worker_id, now=world.now, undo=undo, hand_over_after_s=hand_over)
            )

    @rule(preempt=st.booleans(), timeslice=st.sampled_from([0, 1, 5]))
    def change_fairness(self, preempt: bool, timeslice: int) -> None:
        self.world.core.set_fairness(FairnessSettings(preempt, 2, timeslice))

    @precondition(lambda self: self.world.clients)
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        keys = list(self.world.clients)
        self.world.cancel(keys[pick % len(keys)])

    @precondition(lambda self: self.world.in_flight)
    @rule(pick=PICK)
    def time_out(self, pick: int) -> None:
        batches = list(self.world.in_flight)
        self.world.time_out(batches[pick % len(batches)])

    @precondition(lambda self: self.world.jobs)
    @rule(pick=PICK)
    def redeliver(self, pick: int) -> None:
        sequences = list(self.world.jobs)
        self.world.deliver_job(sequences[pick % len(sequences)])

    @rule()
    def lose_connection(self) -> None:
        self.world.core.on_connection(False, self.world.now)
        self.world.pass_time(4.0)
        self.world.core.on_connection(True, self.world.now)

    @rule()
    def restart_scheduler(self) -> None:
        self.world.restart_scheduler()

    @rule()
    def forget_tokens(self) -> None:
        self.world.forget_tokens()

    @invariant()
    def table_and_jobs_agree(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        world = self.world
        self.add_worker("w1")
        world.settle()
        for batch_id in list(world.in_flight):
            world.time_out(batch_id)
        world.live(600)
        world.check()
        world.check_quiet()


class LossyChaos(Chaos):
    """The same over a network that loses what it may lose: what workers and the scheduler tell each other."""

    @precondition(lambda self: self.world.network)
    @rule(pick=PICK)
    def lose_any(self, pick: int) -> None:
        network = self.world.network
        index = pick % len(network)
        # Jobs are stored until acknowledged, and replays are asked for until answered.
        if "deliver_job" in network[index].__qualname__ or "replay" in _source(network[index]):
            return
        del network[index]


class MovingChaos(LossyChaos):
    """The same with state that workers fetch from each other: prompts are computed apart, requests move."""

    def __init__(self) -> None:
        self._least, split.LEAST_UNMEASURED = split.LEAST_UNMEASURED, 1
        super().__init__()

    def add_worker(self, worker_id: str) -> None:
        role = pools.PREFILL if worker_id == "w3" else pools.DECODE
        self.world.add_worker(worker_id, slots=3, kv_cells=64, role=role, is_source=True)

    @precondition(lambda self: self.world.core.jobs)
    @rule(pick=PICK, worker_id=WORKERS)
    def move(self, pick: int, worker_id: str) -> None:
        keys, world = list(self.world.core.jobs), self.world
        with contextlib.suppress(InferFluxError):
            world.do(world.core.commands.move(keys[pick % len(keys)], worker_id, now=world.now)[0])

    @rule(worker_id=WORKERS, error=st.sampled_from(["", "", "broken"]))
    def tell_taken(self, worker_id: str, error: str) -> None:
        worker = self.world.workers.get(worker_id)
        if worker is not None and worker.taking:
            worker.taken(next(iter(worker.taking)), error=error)

    def teardown(self) -> None:
        split.LEAST_UNMEASURED = self._least
        super().teardown()


class FairChaos(LossyChaos):
    policy = "fair"


class SjfChaos(LossyChaos):
    policy = "sjf"


def _source(delivery: object) -> str:
    names = getattr(delivery, "__code__").co_names  # noqa: B009
    return " ".join(names)


LIMITS = settings(max_examples=40, stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow])
TestChaos = Chaos.TestCase
TestChaos.settings = LIMITS
TestLossyChaos = LossyChaos.TestCase
TestLossyChaos.settings = LIMITS
TestMovingChaos = MovingChaos.TestCase
TestMovingChaos.settings = LIMITS


@pytest.mark.parametrize("seed", range(120))
def test_a_long_walk_through_trouble_leaves_nothing_behind(seed: int) -> None:
    """What hypothesis shrinks well it does not reach: hundreds of steps, most of them ordinary."""
    rng = random.Random(seed)
    chaos = (Chaos, LossyChaos, FairChaos, SjfChaos)[seed % 4]()
    ordinary = [chaos.deliver_any] * 24 + [chaos.arrive] * 6 + [chaos.beat] * 8 + [chaos.step] * 6
    trouble = _trouble(chaos)
    for _ in range(300):
        action = rng.choice(ordinary if rng.random() < 0.85 else trouble)
        _call(action, chaos, rng)
        chaos.world.check()
    chaos.teardown()


def _trouble(chaos: Chaos) -> list[Callable[..., None]]:
    trouble = [
        chaos.wait, chaos.wait, chaos.kill, chaos.start, chaos.start, chaos.die_engine, chaos.leave,
        chaos.cancel, chaos.time_out, chaos.redeliver, chaos.lose_connection, chaos.restart_scheduler,
        chaos.forget_tokens, chaos.beat_twice, chaos.deliver_all, chaos.drain, chaos.change_fairness,
    ]  # fmt: skip
    return trouble + [chaos.lose_any] * 4 if isinstance(chaos, LossyChaos) else trouble


def _move_about(seed: int) -> set[tuple[str, str]]:
    """Have requests be split and moved on a network that is mostly in order. Returns what became of that."""
    rng, chaos = random.Random(seed), MovingChaos()
    world, trouble = chaos.world, _trouble(chaos)
    for _ in range(100):
        if rng.random() < 0.6:
            _call(chaos.arrive, chaos, rng)
        for worker in list(world.workers.values()):
            if rng.random() < 0.7:
                worker.step()
                worker.beat()
            if worker.taking and rng.random() < 0.4:
                worker.taken(next(iter(worker.taking)), error=rng.choice(["", "", "", "broken"]))
        if world.core.jobs and rng.random() < 0.3:
            chaos.move(rng.randrange(len(world.core.jobs)), rng.choice(["w1", "w2", "w3"]))
        if rng.random() < 0.1:
            _call(rng.choice(trouble), chaos, rng)
        if rng.random() < 0.1:
            chaos.drain(rng.choice(["w1", "w2"]), rng.random() < 0.6, 0.0)
        while world.network and rng.random() < 0.97:
            chaos.deliver_any(min(rng.randrange(len(world.network)), rng.randrange(len(world.network))))
        world.check()
        world.pass_time(0.3)
        if len(world.workers) < 3:
            chaos.add_worker(next(name for name in ("w1", "w2", "w3") if name not in world.workers))
    chaos.teardown()
    return world.moved


def test_requests_that_move_about_leave_nothing_behind_in_whichever_way_their_moves_end() -> None:
    seen = set().union(*(_move_about(seed) for seed in range(40)))
    assert {why for why, outcome in seen if outcome == "done"} == {"split", "admin", "drain", "preempted"}
    assert {outcome for _, outcome in seen} >= {"done", "error", "gone", "no_room", "over"}


def _call(action: Callable[..., None], chaos: Chaos, rng: random.Random) -> None:
    world = chaos.world
    match action.__name__:
        case "arrive":
            action(
                priority=rng.randint(0, 3),
                prompt=rng.randint(1, 12),
                max_tokens=rng.randint(1, 12),
                deadline_in=rng.choice([0.0, 0.0, 0.0, 2.0, 20.0]),
                tenant=rng.choice(["acme", "bolt"]),
            )
        case "deliver_any" | "lose_any" if world.network:
            action(pick=min(rng.randrange(len(world.network)), rng.randrange(len(world.network))))
        case "cancel" if world.clients:
            action(pick=rng.randrange(len(world.clients)))
        case "time_out" if world.in_flight:
            action(pick=rng.randrange(len(world.in_flight)))
        case "redeliver" if world.jobs:
            action(pick=rng.randrange(len(world.jobs)))
        case "wait":
            action(seconds=rng.choice([0.1, 0.5, 1.1, 3.5]))
        case "drain":
            action(
                worker_id=rng.choice(["w1", "w2", "w3"]),
                undo=rng.random() < 0.7,
                hand_over=rng.choice([None, 0.0, 2.0]),
            )
        case "change_fairness":
            action(preempt=rng.random() < 0.7, timeslice=rng.choice([0, 1, 5]))
        case "step":
            action(worker_id=rng.choice(["w1", "w2", "w3"]), steps=rng.randint(1, 3))
        case "beat" | "beat_twice" | "kill" | "start" | "die_engine" | "leave":
            action(worker_id=rng.choice(["w1", "w2", "w3"]))
        case "deliver_all" | "lose_connection" | "restart_scheduler" | "forget_tokens":
            action()
