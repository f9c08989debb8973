"""A slow worker and a fast one of a model are loaded in proportion to their speed."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from harness.scheduler_world import MODEL, make_request
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.requests.kv_cells import reserved_cells
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.jobs import Job, RequestKey
from inferflux.scheduler.core.types.limits import Limits
from inferflux.scheduler.core.workers.placement import FAR_TOKENS, SAVED_WORTH, Placement, cells_wanted, fits
from inferflux.scheduler.core.workers.rates import ModelRates, SlownessChange
from inferflux.scheduler.core.workers.slots import WorkerSlots
from inferflux.scheduler.core.workers.slowness import Speed, fastest, slowness_of
from inferflux.v1 import scheduler_pb2

CONTEXT = 4096


def heartbeat(
    worker_id: str,
    prefill: float,
    decode: float,
    *,
    is_idle: bool = False,
    models: tuple[str, ...] = (MODEL,),
) -> scheduler_pb2.WorkerStatus:
    status = scheduler_pb2.WorkerStatus(
        worker_id=worker_id,
        incarnation="i",
        state=scheduler_pb2.WORKER_STATE_READY,
        slots=16,
        kv_cells=16_384,
        prefill_tokens_per_s=prefill,
        decode_tokens_per_s=decode,
    )
    for model in models:
        status.models.add(name=model, context_length=CONTEXT)
    if not is_idle:
        status.residents.add(
            tenant="t", request_id=f"of-{worker_id}", epoch=1, residence=scheduler_pb2.RESIDENCE_PARKED
        )
    return status


# How slow a worker is


def speed(prefill: float, decode: float, beats: int = 10) -> Speed:
    seen = Speed()
    for _ in range(beats):
        seen.observe(heartbeat("w", prefill, decode))
    return seen


BEST = fastest([speed(1000, 100), speed(1, 1)])


def test_a_speed_is_known_after_some_heartbeats_with_requests_and_rates() -> None:
    assert slowness_of(speed(100, 10, beats=9), BEST, 1.0) == 1.0
    assert slowness_of(speed(100, 10), BEST, 1.0) == 9.25
    idle = Speed()
    for _ in range(20):
        idle.observe(heartbeat("w", 100, 10, is_idle=True))
        idle.observe(heartbeat("w", 100, 0))
        idle.observe(heartbeat("w", 0, 10))
    assert not idle.is_known


def test_a_worker_with_fewer_sequences_does_not_count_as_slower_for_it() -> None:
    """Ten times the steps a second, and twice the sequences in each."""
    fast, slow = Speed(), Speed()
    for seen, decode, running in ((fast, 600, 12), (slow, 30, 6)):
        status = heartbeat("w", 10 * decode, decode, is_idle=True)
        for i in range(running):
            status.residents.add(
                tenant="t", request_id=f"{i}", epoch=1, residence=scheduler_pb2.RESIDENCE_RUNNING
            )
        for _ in range(10):
            seen.observe(status)
    assert slowness_of(slow, fastest([fast, slow]), 1.0) == 9.25


def test_one_heartbeat_that_is_far_off_makes_no_other_worker_slower() -> None:
    odd = speed(1000, 100)
    odd.observe(heartbeat("w", 1e9, 1e9))
    odd.observe(heartbeat("w", 1000, 100))
    assert slowness_of(speed(1000, 100), fastest([odd, speed(1000, 100)]), 1.0) == 1.0


def test_a_worker_is_as_slow_as_in_the_rate_that_differs_less() -> None:
    assert slowness_of(speed(100, 33), BEST, 1.0) == 3.0
    assert slowness_of(speed(300, 10), BEST, 1.0) == 3.0
    assert slowness_of(speed(1000, 10), BEST, 1.0) == 1.0
    assert slowness_of(speed(510, 1), BEST, 1.0) == 1.0


def test_a_worker_that_is_alone_with_a_known_speed_is_not_slow() -> None:
    assert fastest([speed(1000, 100), speed(1, 1, beats=9)]) is None
    assert slowness_of(speed(1, 1), None, 9.25) == 1.0


def test_a_workers_best_counts_and_fades() -> None:
    seen = speed(1000, 100)
    seen.observe(heartbeat("w", 10, 1))
    assert seen.prefill == pytest.approx(1000, rel=0.01)
    for _ in range(700):
        seen.observe(heartbeat("w", 10, 1))
    assert seen.prefill == pytest.approx(500, rel=0.02)


RATIO = st.floats(0.01, 1e6)


@given(RATIO, st.lists(st.floats(0.9, 1.11), max_size=20))
def test_a_ratio_that_wavers_by_a_tenth_does_not_move_a_worker(ratio: float, noise: list[float]) -> None:
    best = Speed(1e6, 1e6, 1e6)
    now = slowness_of(speed(1e6 / ratio, 1e6 / ratio), best, 1.0)
    settled = [now]
    for factor in noise:
        wavering = ratio * factor
        settled.append(slowness_of(speed(1e6 / wavering, 1e6 / wavering), best, settled[-1]))
    # One that is just below 2 may be found above it once, and stays there.
    assert len(set(settled)) <= 2
    if now > 1.0:
        assert set(settled) == {now}


@given(RATIO, RATIO)
def test_slowness_is_exact_bounded_and_near_the_ratio(ratio: float, before: float) -> None:
    best = Speed(1e6, 1e6, 1e6)
    of = [speed(1e6 / each, 1e6 / each) for each in (before, ratio)]
    slowness = slowness_of(of[1], best, slowness_of(of[0], best, 1.0))
    assert slowness == 1.0 or slowness >= 2.0
    assert (4 * slowness).is_integer()
    assert slowness <= 64 * 1.25
    if slowness > 1.0:
        assert ratio >= 1.6
        assert min(ratio, 64.0) / 1.3 <= slowness <= min(ratio, 64.0) * 1.3
    else:
        assert ratio < 2.0


def test_workers_of_each_model_are_compared_now_and_then() -> None:
    rates = ModelRates()
    for _ in range(10):
        for worker_id, factor in (("fast", 10.0), ("slow", 1.0)):
            rates.update(heartbeat(worker_id, 100 * factor, 10 * factor))
    rates.update(heartbeat("new", 1, 1))
    rates.update(heartbeat("other", 1, 1, models=("another",)))
    assert list(rates.compare("fast", now=1000.0)) == [SlownessChange("slow", MODEL, 9.25)]
    assert list(rates.compare("slow", now=1004.0)) == []
    rates.remove("fast")
    assert list(rates.compare("slow", now=1004.0)) == []
    assert list(rates.compare("slow", now=1005.0)) == [SlownessChange("slow", MODEL, 1.0)]
    assert list(rates.compare("gone", now=1010.0)) == []


# What placement makes of it


class Spec(NamedTuple):
    """A worker: what it holds, and how slow it is."""

    load: int = 0
    slowness: float = 1.0
    kv_cells: int = 8192
    context_length: int = CONTEXT
    zone: str = ""
    slots: int = 2


def worker_of(worker_id: str, spec: Spec) -> WorkerSlots:
    status = heartbeat(worker_id, 0, 0, is_idle=True)
    status.slots, status.kv_cells, status.zone = spec.slots, spec.kv_cells, spec.zone
    status.models[0].context_length = spec.context_length
    worker = WorkerSlots(status, 0.0)
    if spec.load:
        worker.assign(RequestKey("other", worker_id), 1, spec.load)
    worker.set_slowness(MODEL, spec.slowness)
    return worker


def job_of(prompt: int = 300, max_tokens: int = 100, zone: str = "") -> Job:
    request = make_request("r", prompt=prompt, max_tokens=max_tokens, zone=zone)
    if not max_tokens:
        request.params.ClearField("max_tokens")
    return Job(RequestKey("acme", "r"), request, None, 1, 1, enqueued_s=0.0, deadline_s=None, epoch=1)


def chosen(workers: dict[str, WorkerSlots], job: Job) -> str | None:
    placement = Placement()
    for worker in workers.values():
        placement.changed(worker)
    found = placement.choose(job)
    return None if found is None else found.worker_id


def made(*specs: Spec) -> dict[str, WorkerSlots]:
    return {f"w{number}": worker_of(f"w{number}", spec) for number, spec in enumerate(specs)}


def has_room(job: Job, worker: WorkerSlots) -> bool:
    wanted = cells_wanted(job, worker.context_lengths[MODEL])
    return worker.free_slots > 0 and fits(job, worker) and wanted <= worker.free_cells


def by_load_alone(workers: dict[str, WorkerSlots], job: Job) -> str | None:
    """The rule for workers of one speed."""

    def held(worker: WorkerSlots) -> int:
        return worker.load + (FAR_TOKENS if job.is_far_from(worker.zone) else 0)

    def rank(worker: WorkerSlots) -> tuple[int, int, str]:
        saved = SAVED_WORTH * job.cached_on.get(worker.worker_id, 0)
        return held(worker) - saved, held(worker), worker.worker_id

    able = [worker for worker in workers.values() if has_room(job, worker)]
    if not able:
        return None
    emptiest = min(able, key=lambda worker: (held(worker), worker.worker_id))
    holders = [worker for worker in able if worker.worker_id in job.cached_on]
    return min([emptiest, *holders], key=rank).worker_id


SLOWNESS = st.sampled_from([1.0, 2.0, 2.5, 3.0, 4.75, 9.25, 36.5])
SPEC = st.builds(
    Spec,
    load=st.sampled_from([0, 1, 100, 101]) | st.integers(0, 4000),
    slowness=SLOWNESS,
    kv_cells=st.sampled_from([1000, 4000, 8192]),
    context_length=st.sampled_from([500, CONTEXT]),
    zone=st.sampled_from(["", "a", "b"]),
    slots=st.integers(1, 3),
)
JOB = st.builds(job_of, st.integers(1, 900), st.sampled_from([0, 1, 100, 500]), st.sampled_from(["", "a"]))
CACHED = st.dictionaries(st.sampled_from([f"w{number}" for number in range(6)]), st.integers(1, 900))


@given(st.lists(SPEC, min_size=1, max_size=6), JOB, CACHED, SLOWNESS)
def test_between_workers_of_one_speed_the_choice_is_that_by_load_alone(
    specs: list[Spec], job: Job, cached_on: dict[str, int], slowness: float
) -> None:
    job.cached_on = cached_on
    workers = made(*(spec._replace(slowness=slowness) for spec in specs))
    assert chosen(workers, job) == by_load_alone(workers, job)


@given(st.lists(SPEC, min_size=1, max_size=6), JOB, CACHED)
def test_whatever_the_speeds_a_worker_with_room_is_chosen_if_there_is_one(
    specs: list[Spec], job: Job, cached_on: dict[str, int]
) -> None:
    job.cached_on = cached_on
    workers = made(*specs)
    with_room = {worker_id for worker_id, worker in workers.items() if has_room(job, worker)}
    worker_id = chosen(workers, job)
    assert worker_id in with_room if with_room else worker_id is None


def test_a_worker_of_ten_times_the_speed_comes_to_hold_ten_times_as_much() -> None:
    workers = made(Spec(kv_cells=200_000, slots=100), Spec(kv_cells=200_000, slots=100, slowness=10.0))
    placement = Placement()
    for worker in workers.values():
        placement.changed(worker)
    for number in range(88):
        job = job_of()
        found = placement.choose(job)
        assert found is not None
        found.assign(RequestKey("acme", str(number)), 1, reserved_cells(300, 0, 100))
        placement.changed(found)
    assert [worker.n_running for worker in workers.values()] == [80, 8]


def test_a_slow_worker_is_used_when_the_fast_one_has_no_room() -> None:
    assert chosen(made(Spec(load=10, slots=1), Spec(slowness=36.5)), job_of()) == "w1"
    assert chosen(made(Spec(load=8000), Spec(slowness=36.5)), job_of()) == "w1"


def test_a_worker_that_becomes_slow_is_ranked_anew() -> None:
    workers = made(Spec(load=100), Spec())
    placement = Placement()
    for worker in workers.values():
        worker._on_change = placement.changed
        placement.changed(worker)
    job = job_of()
    assert placement.choose(job) is workers["w1"]
    workers["w1"].set_slowness(MODEL, 2.0)
    assert placement.choose(job) is workers["w0"]
    assert placement.open_to(job) == {next(iter(placement.sizes(MODEL)))}
    assert placement.choose(job, placement.open_to(job)) is None
    workers["w1"].set_slowness(MODEL, 1.0)
    assert placement.choose(job) is workers["w1"]


def test_a_prefix_draws_a_request_to_a_slow_worker_as_far_as_it_saves_time() -> None:
    job = job_of(prompt=300, max_tokens=10)
    job.cached_on = {"w1": 280}
    assert chosen(made(Spec(), Spec(slowness=3.0)), job) == "w1"
    job.cached_on = {"w1": 100}
    assert chosen(made(Spec(), Spec(slowness=3.0)), job) == "w0"
    job = job_of(prompt=300, max_tokens=500)  # what is generated takes longer there than the prompt would
    job.cached_on = {"w1": 280}
    assert chosen(made(Spec(), Spec(slowness=9.25)), job) == "w0"


def test_a_prefix_on_the_fast_worker_is_worth_what_the_slow_one_would_take() -> None:
    job = job_of(prompt=300)
    job.cached_on = {"w0": 100}
    saved = 100 * SAVED_WORTH * 4
    alone = reserved_cells(300, 0, 100)
    even = alone * 4 + saved - alone
    for load, worker_id in ((even - 1, "w0"), (even + 1, "w1")):
        assert chosen(made(Spec(load=load, kv_cells=1 << 20), Spec(slowness=4.0)), job) == worker_id
        placement, workers = Placement(), made(Spec(load=load, kv_cells=1 << 20, slots=1), Spec(slowness=4.0))
        for worker in workers.values():
            placement.changed(worker)
        better = placement.better_full(job, workers["w1"])
        assert better is (workers["w0"] if worker_id == "w0" else None)


# From heartbeats to places


def test_the_scheduler_learns_from_heartbeats_which_worker_is_slow_and_forgets_it_with_the_worker() -> None:
    core = SchedulerCore(Limits(settle_s=0.0), now=1000.0)
    core.on_tick(1000.0)
    rates = {"fast": (1000.0, 100.0), "slow": (100.0, 10.0)}

    def beat(now: float) -> None:
        for worker_id, (prefill, decode) in rates.items():
            core.on_heartbeat(heartbeat(worker_id, prefill, decode), now)

    for second in range(16):
        beat(1000.0 + second)
    assert {w: view.slowness.get(MODEL, 1.0) for w, view in core.table.workers.items()} == {
        "fast": 1.0,
        "slow": 9.25,
    }
    for number in range(11):
        request = make_request(f"r{number}", prompt=100, max_tokens=10)
        core.on_job(request, number, number + 1, 1016.0)
    sent = [action for action in core.plan(1016.0) if isinstance(action, actions.Dispatch)]
    assert {action.worker_id: len(action.batch.items) for action in sent} == {"fast": 10, "slow": 1}
    died = scheduler_pb2.WorkerEvent(worker_id="slow", incarnation="i")
    died.worker_died.SetInParent()
    core.on_event(died, 1016.0)
    again = heartbeat("slow", 100.0, 10.0)
    again.incarnation = "i2"
    core.on_heartbeat(again, 1030.0)
    assert core.table.workers["slow"].slowness == {}
