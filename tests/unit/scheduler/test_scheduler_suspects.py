"""Requests that kill engines, among innocent ones: who is to blame, and for how many deaths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.scheduler_jobs import make_job
from harness.scheduler_world import Sequence, World, make_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferflux.scheduler.core.lifecycle.fairness import FairnessController, FairnessSettings
from inferflux.scheduler.core.lifecycle.moves import Moves
from inferflux.scheduler.core.lifecycle.planning import Planner
from inferflux.scheduler.core.lifecycle.queue import Queue
from inferflux.scheduler.core.lifecycle.state import SchedulerState
from inferflux.scheduler.core.order.queue_policies import make_policy
from inferflux.scheduler.core.types.actions import Dispatch, SendCommand
from inferflux.scheduler.core.types.facets import RequeueReason, Retries
from inferflux.scheduler.core.types.jobs import JobState, RequestKey
from inferflux.scheduler.core.types.limits import Limits
from inferflux.v1 import scheduler_pb2

Kill = Callable[[Sequence, int], bool]


def at(index: int) -> Kill:
    """Kills when it computes this token: the same input, the same end."""
    return lambda sequence, _n: sequence.generated >= index


def after(steps: int) -> Kill:
    """Kills after this many tokens of every attempt."""
    return lambda sequence, _n: sequence.generated - sequence.inherited >= steps


def in_company(_sequence: Sequence, n_running: int) -> bool:
    """Kills only beside others."""
    return n_running > 1


class Quarantined:
    """A world with workers that have room, and requests that kill."""

    def __init__(self, workers: int, *, slots: int = 4, fairness: FairnessSettings | None = None) -> None:
        self.world = World(Limits(settle_s=0.0), fairness=fairness)
        for i in range(workers):
            self.world.add_worker(f"w{i}", slots=slots, kv_cells=512)
        self.world.settle()
        self.world.pass_time(0.1)

    def submit(
        self, name: str, *, tokens: int = 12, priority: int = 0, kills: Kill | None = None
    ) -> RequestKey:
        request = make_request(name, max_tokens=tokens, priority=priority, at=self.world.now)
        key = self.world.submit(request)
        if kills is not None:
            self.world.killers[key] = kills
        self.world.settle()
        return key

    def outcome(self, key: RequestKey) -> str:
        return self.world.read(key).outcome

    def end(self) -> None:
        self.world.live(2000)
        self.world.check()
        self.world.check_quiet()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_request_that_kills_every_engine_takes_no_neighbour_along(workers: int) -> None:
    quarantine = Quarantined(workers)
    others = [quarantine.submit(f"r{i}") for i in range(20)]
    killer = quarantine.submit("killer", priority=1, kills=at(2))
    others += [quarantine.submit(f"s{i}") for i in range(10)]
    quarantine.end()
    assert quarantine.outcome(killer) == "POISON_REQUEST"
    assert {quarantine.outcome(key) for key in others} == {"length"}
    assert len(quarantine.world.deaths) == 2
    assert quarantine.world.deaths[1] == {killer}


def test_a_suspect_runs_alone_until_it_is_past_the_point_of_death_and_then_beside_others() -> None:
    quarantine = Quarantined(1)
    keys = [quarantine.submit(f"r{i}", tokens=40) for i in range(3)]
    worker = quarantine.world.workers["w0"]
    for _ in range(3):
        worker.step()
    quarantine.world.settle()
    worker.die_engine()
    quarantine.world.settle()
    beside: list[int] = []
    for _ in range(40):
        worker.beat()
        quarantine.world.settle()
        beside.append(sum(s.is_running for s in worker.residents.values()))
        worker.step()
        quarantine.world.settle()
    assert set(beside[:24]) == {1}
    assert beside[-1] == 3
    assert min(s.generated for s in worker.residents.values()) > 11
    quarantine.end()
    assert {quarantine.outcome(key) for key in keys} == {"length"}


def test_an_innocent_long_request_outlives_any_number_of_killers() -> None:
    """Its neighbours' deaths are no retries of its own."""
    quarantine = Quarantined(1)
    innocent = quarantine.submit("innocent", tokens=50)
    for i in range(8):
        quarantine.world.live(30)
        quarantine.submit(f"killer{i}", kills=at(1))
    quarantine.end()
    assert quarantine.outcome(innocent) == "length"
    assert {quarantine.outcome(RequestKey("acme", f"killer{i}")) for i in range(8)} == {"POISON_REQUEST"}


def test_one_that_kills_after_some_tokens_of_each_attempt_is_found_all_the_same() -> None:
    quarantine = Quarantined(1)
    others = [quarantine.submit(f"r{i}") for i in range(3)]
    killer = quarantine.submit("killer", tokens=50, kills=after(10))
    quarantine.end()
    assert quarantine.outcome(killer) == "POISON_REQUEST"
    assert {quarantine.outcome(key) for key in others} == {"length"}
    assert len(quarantine.world.deaths) <= 3


def test_one_that_kills_only_beside_others_ends_up_alone_and_is_served() -> None:
    quarantine = Quarantined(1)
    killer = quarantine.submit("killer", tokens=50, kills=in_company)
    others = [quarantine.submit(f"r{i}", tokens=50) for i in range(6)]
    quarantine.end()
    assert {quarantine.outcome(key) for key in [killer, *others]} == {"length"}
    assert len(quarantine.world.deaths) <= 4


def test_what_is_parked_when_an_engine_dies_is_no_suspect() -> None:
    quarantine = Quarantined(1, slots=1, fairness=FairnessSettings(enable_preemption=True))
    parked = quarantine.submit("parked", tokens=30)
    urgent = quarantine.submit("urgent", tokens=30, priority=9)
    quarantine.world.workers["w0"].die_engine()
    quarantine.world.settle()
    jobs = quarantine.world.core.jobs
    assert (jobs[parked].is_suspect, jobs[urgent].is_suspect) == (False, True)
    quarantine.end()


def test_suspects_take_a_worker_from_others_when_none_is_idle_and_none_starts() -> None:
    quarantine = Quarantined(2, slots=2)
    long = [quarantine.submit(f"long{i}", tokens=50) for i in range(4)]
    killed = quarantine.world.workers.pop("w0")
    lost = set(killed.residents)
    for _ in range(2):  # a whole worker is lost twice: only then are its requests suspects
        quarantine.world.core.jobs[next(iter(lost))].retries = Retries(worker_deaths=1)
    for _ in range(20):
        quarantine.world.workers["w1"].beat()
        quarantine.world.settle()
        quarantine.world.pass_time(0.25)
    suspect = next(key for key in lost if quarantine.world.core.jobs[key].retries.worker_deaths == 2)
    worker = quarantine.world.workers["w1"]
    assert [key for key, s in worker.residents.items() if s.is_running] == [suspect]
    quarantine.end()
    assert {quarantine.outcome(key) for key in long} == {"length"}


def test_a_suspect_that_stops_before_it_is_cleared_is_placed_anew() -> None:
    fairness = FairnessController(FairnessSettings())
    state = SchedulerState(Limits(), Queue(lambda _: make_policy("fcfs", aging_s=2.0)), fairness, term=1)
    ready = scheduler_pb2.WORKER_STATE_READY
    status = scheduler_pb2.WorkerStatus(worker_id="w0", incarnation="i", state=ready, slots=4, kv_cells=512)
    worker = state.table.add(status, 0.0)
    job = make_job(1)
    job.is_suspect, job.worker_id, job.state = True, "w0", JobState.NEW
    state.add(job, 0.0)
    worker.assign(job.key, 1, 8, is_alone=True)
    state.queue.take_place(job)
    state.on_running(job, 0.0)
    state.end_run(worker, job, "memory", 1.0)
    assert (job.state, job.epoch) == (JobState.QUEUED, 2)
    assert not worker.assignments
    assert worker.alone is None


def test_a_request_that_gives_way_to_a_suspect_may_move_at_once() -> None:
    fairness = FairnessController(FairnessSettings())
    state = SchedulerState(Limits(), Queue(lambda _: make_policy("fcfs", aging_s=2.0)), fairness, term=1)
    jobs = [make_job(i) for i in range(3)]
    ready = scheduler_pb2.WORKER_STATE_READY
    for job, worker_id in zip(jobs, ("w0", "w1"), strict=False):
        status = scheduler_pb2.WorkerStatus(
            worker_id=worker_id, incarnation="i", state=ready, slots=2, kv_cells=512
        )
        status.models.add(name="demo", context_length=128)
        state.table.add(status, 0.0).assign(job.key, 1, 8)
        job.worker_id = worker_id
        state.add(job, 0.0)
        state.queue.take_place(job)
        job.stay.park(0.0)
        job.stay.resume(5.0)  # it has waited on its worker for long
        state.on_running(job, 5.0)
    suspect = jobs[-1]
    suspect.is_suspect, suspect.state = True, JobState.NEW
    state.add(suspect, 5.0)
    state.enqueue(suspect, 5.0)
    state.settle()
    todo = Planner(state, Moves(state), name="s").plan_model("demo", 6.0)
    assert [action.worker_id for action in todo if isinstance(action, Dispatch)] == []
    commands = [action.command for action in todo if isinstance(action, SendCommand)]
    assert [command.WhichOneof("command") for command in commands] == ["drop"]
    assert sorted(job.epoch for job in jobs) == [1, 1, 2]


def test_an_urgent_request_does_not_preempt_a_suspect() -> None:
    quarantine = Quarantined(1, fairness=FairnessSettings(enable_preemption=True))
    suspect = quarantine.submit("suspect", tokens=30)
    worker = quarantine.world.workers["w0"]
    worker.die_engine()
    quarantine.world.settle()
    worker.beat()
    quarantine.world.settle()
    quarantine.submit("urgent", priority=9)
    assert list(worker.residents) == [suspect]
    quarantine.end()


def test_a_suspect_that_is_cancelled_while_it_waits_frees_its_worker() -> None:
    quarantine = Quarantined(1)
    key = quarantine.submit("suspect", tokens=30)
    worker = quarantine.world.workers["w0"]
    worker.die_engine()
    quarantine.world.settle()
    assert quarantine.world.core.jobs[key].state is JobState.QUEUED
    quarantine.world.cancel(key)
    quarantine.world.settle()
    worker.beat()
    other = quarantine.submit("other")
    assert other in worker.residents
    quarantine.end()


def test_deaths_of_engines_are_no_retries() -> None:
    assert not RequeueReason.ENGINE_DIED.counts
    assert RequeueReason.WORKER_DEAD.counts


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    workers=st.integers(1, 4),
    slots=st.integers(1, 4),
    restart_steps=st.integers(1, 8),
    preempts=st.booleans(),
    timeslice=st.sampled_from([0, 0, 3]),
    traffic=st.lists(
        st.tuples(
            st.integers(1, 40),  # tokens
            st.integers(-1, 6),  # priority
            st.sampled_from(["no", "no", "no", "at", "after"]),
            st.integers(0, 12),  # kills at, or after
            st.integers(0, 3),  # seconds until the next
        ),
        min_size=1,
        max_size=16,
    ),
)
def test_no_innocent_request_fails_and_each_killer_does_after_few_deaths(
    workers: int,
    slots: int,
    restart_steps: int,
    preempts: bool,
    timeslice: int,
    traffic: list[tuple[int, int, str, int, int]],
) -> None:
    quarantine = Quarantined(workers, slots=slots, fairness=FairnessSettings(preempts, 5, timeslice))
    quarantine.world.restart_steps = restart_steps
    kills: dict[str, Callable[[int], Kill]] = {"at": at, "after": after}
    innocent: list[RequestKey] = []
    killers: list[RequestKey] = []
    certain: list[RequestKey] = []
    for i, (tokens, priority, kind, moment, pause_s) in enumerate(traffic):
        does_kill = kind in kills and moment < tokens
        kill = kills[kind](moment) if does_kill else None
        key = quarantine.submit(f"r{i}", tokens=tokens, priority=priority, kills=kill)
        (killers if does_kill else innocent).append(key)
        certain += [key] if does_kill and kind == "at" else []
        quarantine.world.live(pause_s)
        quarantine.world.check()
    quarantine.end()
    assert {quarantine.outcome(key) for key in innocent} <= {"length"}
    # One that kills after some tokens of each attempt may have fewer left to make.
    allowed = {"POISON_REQUEST", "length"}
    assert all(quarantine.outcome(k) in allowed for k in killers)
    assert all(quarantine.outcome(k) == "POISON_REQUEST" for k in certain)
    assert len(quarantine.world.deaths) <= 4 * len(killers)


def test_a_request_that_a_death_lists_twice_is_lost_once() -> None:
    quarantine = Quarantined(1)
    world = quarantine.world
    key = quarantine.submit("a")
    job, worker = world.core.jobs[key], world.workers["w0"]
    assert job.state is JobState.RUNNING
    event = worker.event()
    for _ in range(2):
        event.engine_died.residents.add(tenant=key.tenant, request_id=key.request_id, epoch=job.epoch)
    worker.residents.clear()
    world.tell(lambda: world.core.on_event(event, world.now))
    world.settle()
    assert job.retries.engine_deaths == 1
    quarantine.end()
    assert quarantine.outcome(key) == "length"


class Crashed(Quarantined):
    """A world in which an engine names the image that it crashes over."""

    IMAGE = "a" * 64

    def ask_about(self, name: str, image_id: str = IMAGE) -> RequestKey:
        request = make_request(name, max_tokens=12, at=self.world.now)
        request.images.add(id=image_id)
        key = self.world.submit(request)
        self.world.settle()
        return key

    def crash(self) -> None:
        worker = self.world.workers["w0"]
        event = worker.event()
        event.engine_died.killer_image_id = self.IMAGE
        event.engine_died.message = "the engine was ended by SIGABRT"
        for key, sequence in worker.residents.items():
            resident = event.engine_died.residents.add(tenant=key.tenant, request_id=key.request_id)
            resident.epoch = sequence.epoch
        worker.residents.clear()
        self.world.tell(lambda: self.world.core.on_event(event, self.world.now))
        self.world.settle()


def test_an_image_that_an_engine_crashed_over_ends_its_requests_and_makes_no_suspects() -> None:
    crashed = Crashed(1)
    others = [crashed.submit("r0"), crashed.ask_about("r1", "b" * 64)]
    killers = [crashed.ask_about(f"killer{i}") for i in range(3)]  # the last one waits
    crashed.crash()
    assert {crashed.outcome(key) for key in killers} == {"POISON_REQUEST"}
    assert not any(job.is_suspect for job in crashed.world.core.jobs.values())
    later = crashed.ask_about("later")
    assert crashed.outcome(later) == "POISON_REQUEST"
    crashed.end()
    assert {crashed.outcome(key) for key in others} == {"length"}


def test_an_image_that_an_engine_crashed_over_is_tried_again_after_an_hour() -> None:
    crashed = Crashed(1)
    crashed.ask_about("killer")
    crashed.crash()
    crashed.world.pass_time(3601.0)
    later = crashed.ask_about("later")
    crashed.end()
    assert crashed.outcome(later) == "length"


def test_the_next_leader_takes_over_which_images_engines_crashed_over() -> None:
    crashed, following = Crashed(1), Crashed(1)
    crashed.ask_about("killer")
    crashed.crash()
    killers = following.world.core.killer_images
    for unreadable in (b"", b"{", b"7", b"[[1]]", b'[["m", "a", "x", "y"]]', b'{"a": 1}'):
        killers.restore(unreadable)
    assert killers.encode() == b"[]"
    killers.restore(crashed.world.core.killer_images.encode())
    assert following.outcome(following.ask_about("later")) == "POISON_REQUEST"
    following.world.pass_time(3601.0)
    much_later = following.ask_about("much-later")
    following.end()
    assert following.outcome(much_later) == "length"
