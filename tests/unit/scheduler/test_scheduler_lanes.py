"""Workers of several sizes: a plan looks at the first of each lane of requests alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from harness.scheduler_jobs import make_job
from harness.scheduler_world import MODEL, make_request
from hypothesis import example, given
from hypothesis import strategies as st

from inferflux.scheduler.core.lifecycle import planning
from inferflux.scheduler.core.lifecycle.queue import ModelQueue
from inferflux.scheduler.core.order.queue_policies import PolicyName, make_policy
from inferflux.scheduler.core.order.queue_policy import QueuePolicy
from inferflux.scheduler.core.order.running import Running
from inferflux.scheduler.core.order.shares import Floor, TenantShares
from inferflux.scheduler.core.order.tenant_service import TenantService
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.jobs import Job, JobState
from inferflux.scheduler.core.types.limits import Limits
from inferflux.scheduler.core.workers.placement import Size, cells_wanted, fits_size
from inferflux.v1 import scheduler_pb2

START_S = 1_000_000.0
NAMES: tuple[PolicyName, ...] = ("priority", "fcfs", "sjf", "fair")


@dataclass
class Fleet:
    """A core with workers, and where it places requests."""

    core: SchedulerCore = field(
        default_factory=lambda: SchedulerCore(Limits(settle_s=0.0), now=START_S, policy="fcfs")
    )
    placed: dict[str, str] = field(default_factory=dict)

    def add_worker(self, worker_id: str, *, slots: int, kv_cells: int, context: int = 0) -> None:
        status = scheduler_pb2.WorkerStatus(
            worker_id=worker_id,
            incarnation="1",
            state=scheduler_pb2.WORKER_STATE_READY,
            slots=slots,
            kv_cells=kv_cells,
        )
        status.models.add(name=MODEL, context_length=context)
        self.core.on_heartbeat(status, START_S)

    def submit(self, name: str, *, prompt: int, max_tokens: int) -> Job:
        request = make_request(name, prompt=prompt, max_tokens=max_tokens, at=START_S)
        self.core.on_job(request, name, len(self.core.jobs) + 1, START_S)
        return next(job for key, job in self.core.jobs.items() if key.request_id == name)

    def plan(self) -> None:
        self.core.on_tick(START_S)
        for action in self.core.plan(START_S):
            if isinstance(action, actions.Dispatch):
                for item in action.batch.items:
                    self.placed[item.request.request_id] = action.worker_id


def test_however_many_wait_for_large_workers_a_small_one_takes_what_fits_it() -> None:
    fleet = Fleet()
    fleet.add_worker("large", slots=1, kv_cells=1000)
    fleet.add_worker("small", slots=1, kv_cells=50)
    for i in range(500):
        fleet.submit(f"big{i}", prompt=100, max_tokens=10)
    fleet.submit("little", prompt=10, max_tokens=10)
    fleet.plan()
    assert fleet.placed == {"big0": "large", "little": "small"}


def test_a_worker_of_a_new_size_is_used_though_many_before_do_not_fit_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "_MOVES_AT_MOST", 10)
    fleet = Fleet()
    fleet.add_worker("large", slots=1, kv_cells=1000)
    for i in range(35):
        fleet.submit(f"big{i}", prompt=100, max_tokens=10)
    fleet.submit("little", prompt=10, max_tokens=10)
    fleet.plan()
    fleet.add_worker("small", slots=1, kv_cells=50)
    for _ in range(3):
        fleet.plan()
        assert fleet.core.must_plan, "the next plan goes on"
    fleet.plan()
    assert fleet.placed == {"big0": "large", "little": "small"}
    assert not fleet.core.must_plan


WORKER = st.tuples(st.integers(1, 3), st.sampled_from([20, 60, 200]), st.sampled_from([0, 40, 150]))
REQUEST = st.tuples(st.integers(1, 120), st.integers(1, 60))


@given(st.lists(WORKER, min_size=1, max_size=5), st.lists(REQUEST, max_size=40), st.booleans())
def test_a_plan_places_what_a_walk_through_all_that_wait_would(
    workers: list[tuple[int, int, int]], requests: list[tuple[int, int]], come_first: bool
) -> None:
    fleet = Fleet()

    def add_workers() -> None:
        for i, (slots, kv_cells, context) in enumerate(workers):
            fleet.add_worker(f"w{i}", slots=slots, kv_cells=kv_cells, context=context)

    if not come_first:
        add_workers()
    jobs = [
        fleet.submit(f"r{i}", prompt=prompt, max_tokens=most)
        for i, (prompt, most) in enumerate(requests)
        if any(_fits(prompt, most, Size(context, cells)) for _slots, cells, context in workers)
    ]
    if come_first:
        add_workers()
    fleet.plan()
    assert fleet.placed == _walk(workers, jobs)
    assert {job.key.request_id for job in jobs if job.state is JobState.QUEUED} == (
        {job.key.request_id for job in jobs} - fleet.placed.keys()
    )


def _fits(prompt: int, most: int, size: Size) -> bool:
    return fits_size(make_job(0, prompt=prompt, max_tokens=most), size)


def _walk(workers: Sequence[tuple[int, int, int]], jobs: Sequence[Job]) -> dict[str, str]:
    """Strict order, plainly: what an earlier request waits for, later ones do not get."""
    free = [slots for slots, _cells, _context in workers]
    load = [0] * len(workers)
    blocked: set[Size] = set()
    placed: dict[str, str] = {}
    for job in jobs:
        sizes = {i: Size(context, cells) for i, (_slots, cells, context) in enumerate(workers) if free[i]}
        could = {i: size for i, size in sizes.items() if fits_size(job, size)}
        rooms = [
            i
            for i, size in could.items()
            if size not in blocked and load[i] + cells_wanted(job, size[0]) <= size[1]
        ]
        if rooms:
            best = min(rooms, key=lambda i: (load[i], f"w{i}"))
            free[best] -= 1
            load[best] += cells_wanted(job, could[best][0])
            placed[job.key.request_id] = f"w{best}"
        else:
            blocked.update(could.values())
    return placed


STEP = st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 120), st.integers(0, 9))


@given(st.sampled_from(NAMES), st.lists(STEP, max_size=40), st.lists(st.integers(0, 30), max_size=3))
@example("fair", [(1, 0, 28, 0), (2, 0, 28, 0), (0, 0, 1, 0)], [])
def test_requests_in_several_lines_are_served_in_the_order_of_one(
    name: PolicyName, requests: list[tuple[int, int, int, int]], changes: list[int]
) -> None:
    """Sizes of workers come and go meanwhile; requests of any lane are moved."""
    sizes = {Size(0, 30), Size(0, 300)}
    served: list[list[int]] = []
    for has_lanes in (False, True):
        service = TenantService()
        running = Running(is_urgent=_is_urgent)
        floor = Floor()

        def new_policy(
            service: TenantService = service, running: Running = running, floor: Floor = floor
        ) -> QueuePolicy:
            shares = TenantShares(None, service, floor)
            return make_policy(name, aging_s=2.0, shares=shares, running=running, is_urgent=_is_urgent)

        now = set(sizes) if has_lanes else set[Size]()

        def sizes_now(now: set[Size] = now) -> set[Size]:
            return now

        queue = ModelQueue(new_policy, sizes=sizes_now)
        jobs = []
        for i, (tenant, priority, prompt, _) in enumerate(requests):
            jobs.append(make_job(i, tenant=f"t{tenant}", priority=priority, prompt=prompt, at=float(i)))
            queue.push(jobs[-1])
            queue.policy.charge(f"t{tenant}", 2**i, 0)  # so that no two are ever alike
        order: list[int] = []
        while (job := queue.first()) is not None:
            if len(order) in changes:
                now ^= {Size(0, 60), Size(0, 300)} if has_lanes else set()
                for other in jobs:
                    if other.arrival not in order:
                        queue.move(other)
                assert queue.first() is job
            assert queue.position(job) == 0 or name in ("fair", "priority")
            queue.depart(job, now=1.0)
            order.append(job.arrival)
        served.append(order)
    assert served[0] == served[1]
    assert sorted(served[1]) == list(range(len(requests)))


def _is_urgent(job: Job) -> bool:
    return job.priority >= 3
