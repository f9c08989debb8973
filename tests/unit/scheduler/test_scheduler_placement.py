"""What fits a worker finds it, once it is idle."""

from __future__ import annotations

import pytest
from harness.scheduler_world import MODEL, make_request
from hypothesis import given
from hypothesis import strategies as st

from inferflux.scheduler.core.types.facets import Retries
from inferflux.scheduler.core.types.jobs import Job, RequestKey
from inferflux.scheduler.core.workers.placement import SAVED_WORTH, Placement
from inferflux.scheduler.core.workers.slots import WorkerSlots
from inferflux.v1 import device_pb2, scheduler_pb2


def job_of(prompt: int, max_tokens: int, generated: int, seen: int) -> Job:
    request = make_request("r", prompt=prompt, max_tokens=max_tokens)
    if not max_tokens:
        request.params.ClearField("max_tokens")
    request.generated_token_ids.extend([1] * generated)
    key = RequestKey(request.tenant, request.request_id)
    job = Job(key, request, None, 1, 1, enqueued_s=0.0, deadline_s=None, epoch=1)
    job.stay.report_tokens(seen)
    return job


def worker_of(
    context_length: int, kv_cells: int, worker_id: str = "w1", *, can_constrain: bool = False
) -> WorkerSlots:
    status = scheduler_pb2.WorkerStatus(
        worker_id=worker_id,
        incarnation="i1",
        state=scheduler_pb2.WORKER_STATE_READY,
        slots=2,
        kv_cells=kv_cells,
    )
    status.models.add(name=MODEL, context_length=context_length, can_constrain=can_constrain)
    return WorkerSlots(status, 0.0)


COUNT = st.integers(0, 400)


@given(
    prompt=st.integers(1, 400),
    max_tokens=st.sampled_from([0, 0, 1, 50, 2**31 - 1]) | COUNT,
    generated=COUNT,
    seen=COUNT | st.just(2**31 - 1),
    context_length=COUNT,
    kv_cells=COUNT,
)
def test_an_idle_worker_takes_a_job_or_it_is_said_why_it_never_will(
    prompt: int, max_tokens: int, generated: int, seen: int, context_length: int, kv_cells: int
) -> None:
    worker = worker_of(context_length, kv_cells)
    placement = Placement()
    placement.changed(worker)
    job = job_of(prompt, max_tokens, generated, seen)
    takes_it = placement.choose(job) is worker
    assert takes_it == (not placement.why_never(job))
    if takes_it and context_length and not max_tokens:
        assert prompt + generated < context_length


class Workers:
    """Idle or loaded workers of one size."""

    def __init__(self, **loads: int) -> None:
        self.placement = Placement()
        self.table = {name: self._worker(name, load) for name, load in loads.items()}

    def _worker(self, name: str, load: int) -> WorkerSlots:
        worker = worker_of(4096, 8192, name)
        if load:
            worker.assign(RequestKey("other", name), 1, load)
        self.placement.changed(worker)
        return worker

    def choose(self, cached_on: dict[str, int], avoids: str | None = None) -> str | None:
        job = job_of(1000, 10, 0, 0)
        job.cached_on, job.retries = cached_on, Retries(avoids=avoids)
        worker = self.placement.choose(job)
        return worker.worker_id if worker is not None else None


def test_a_request_goes_where_its_prefix_is_until_that_worker_holds_more_than_is_saved() -> None:
    assert Workers(w1=0, w2=0).choose({"w2": 16}) == "w2"
    saved = 40 * SAVED_WORTH
    assert Workers(w1=0, w2=saved - 1).choose({"w2": 40}) == "w2"
    assert Workers(w1=0, w2=saved + 1).choose({"w2": 40}) == "w1"
    assert Workers(w1=0, w2=saved - 1, w3=saved - 1).choose({"w2": 40, "w3": 41}) == "w3"
    assert Workers(w1=0, w2=saved - 1).choose({"w1": 1, "w2": 40}) == "w1"


def test_what_does_not_take_the_request_does_not_count() -> None:
    workers = Workers(w1=0, w2=0)
    assert workers.choose({"gone": 900}) == "w1"
    assert workers.choose({"w2": 900}, avoids="w2") == "w1"
    assert Workers(w1=0, w2=7500).choose({"w2": 10_000}) == "w1"  # it lacks the cells
    full = workers.table["w2"]
    for number in range(full.free_slots):
        full.assign(RequestKey("other", str(number)), 1, 1)
    workers.placement.changed(full)
    assert workers.choose({"w2": 900}) == "w1"


@given(
    loads=st.lists(st.integers(0, 3000), min_size=2, max_size=6),
    cached=st.lists(st.integers(0, 400), min_size=6, max_size=6),
)
def test_no_prefix_puts_a_worker_further_ahead_than_what_it_saves_is_worth(
    loads: list[int], cached: list[int]
) -> None:
    workers = Workers(**{f"w{number}": load for number, load in enumerate(loads)})
    hints = {f"w{number}": tokens for number, tokens in enumerate(cached[: len(loads)])}
    chosen = workers.choose(hints)
    assert chosen is not None
    least = min(each.load - SAVED_WORTH * hints[name] for name, each in workers.table.items())
    assert workers.table[chosen].load - SAVED_WORTH * hints[chosen] == least
    assert workers.table[chosen].load - min(loads) <= SAVED_WORTH * hints[chosen]


NEAR = device_pb2.ExpertPlacement(device="CUDA0", kind=device_pb2.DEVICE_KIND_GPU)
IN_MAIN_MEMORY = device_pb2.ExpertPlacement(device="CPU", kind=device_pb2.DEVICE_KIND_CPU)
REMOTE = device_pb2.ExpertPlacement(device="RPC0", kind=device_pb2.DEVICE_KIND_GPU, endpoint="10.0.0.2:50061")


def with_experts(worker_id: str, *ranks: device_pb2.ExpertPlacement, load: int = 0) -> WorkerSlots:
    worker = worker_of(4096, 8192, worker_id)
    status = worker.status
    status.models[0].expert_ranks.extend(ranks)
    worker = WorkerSlots(status, 0.0)
    if load:
        worker.assign(RequestKey("other", worker_id), 1, load)
    return worker


@pytest.mark.parametrize("far", [[IN_MAIN_MEMORY], [REMOTE], [NEAR, REMOTE], [IN_MAIN_MEMORY, NEAR]])
def test_of_workers_that_are_as_busy_one_with_its_experts_on_gpus_is_chosen(
    far: list[device_pb2.ExpertPlacement],
) -> None:
    """One at a time would else go to one worker for ever, and no speed of the other would be known."""
    job = job_of(100, 10, 0, 0)
    for loads, chosen in (((0, 0), "near"), ((10, 10), "near"), ((10, 11), "far")):
        placement = Placement()
        placement.changed(with_experts("far", *far, load=loads[0]))
        placement.changed(with_experts("near", NEAR, NEAR, load=loads[1]))
        worker = placement.choose(job)
        assert worker is not None
        assert worker.worker_id == chosen


def test_where_all_have_their_experts_alike_the_first_worker_is_chosen() -> None:
    for ranks in ([IN_MAIN_MEMORY], [NEAR], []):
        placement = Placement()
        for name in ("w2", "w1"):
            placement.changed(with_experts(name, *ranks))
        worker = placement.choose(job_of(100, 10, 0, 0))
        assert worker is not None
        assert worker.worker_id == "w1"


def constrained() -> Job:
    job = job_of(10, 10, 0, 0)
    job.request.params.constraint.json_object = True
    return job


def test_a_constrained_request_goes_where_answers_are_constrained() -> None:
    placement = Placement()
    able = worker_of(400, 400, "able", can_constrain=True)
    able.assign(RequestKey("other", "r"), 1, 100)
    for worker in (worker_of(400, 400, "unable"), able):
        placement.changed(worker)
    assert placement.choose(constrained()) is able
    assert placement.why_never(constrained()) is None


def test_a_constrained_request_that_no_worker_can_take_is_refused_by_its_field() -> None:
    placement = Placement()
    placement.changed(worker_of(400, 400))
    assert placement.choose(constrained()) is None
    why = placement.why_never(constrained())
    assert why is not None
    assert (why.field, why.reason) == ("params.constraint", "CONSTRAINT_UNSUPPORTED")


def test_a_constrained_request_waits_for_a_worker_that_has_not_said_what_it_can() -> None:
    placement = Placement()
    loading = worker_of(0, 0)
    loading.set_state(scheduler_pb2.WORKER_STATE_LOADING)
    for worker in (worker_of(400, 400, "unable"), loading):
        placement.changed(worker)
    assert placement.why_never(constrained()) is None
