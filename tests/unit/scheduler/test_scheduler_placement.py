"""What fits a worker finds it, once it is idle."""

from __future__ import annotations

from harness.scheduler_world import MODEL, make_request
from hypothesis import given
from hypothesis import strategies as st

from inferflux.scheduler.core.jobs import Job, RequestKey
from inferflux.scheduler.core.placement import Placement
from inferflux.scheduler.core.slots import WorkerSlots
from inferflux.v1 import scheduler_pb2


def job_of(prompt: int, max_tokens: int, generated: int, seen: int) -> Job:
    request = make_request("r", prompt=prompt, max_tokens=max_tokens)
    if not max_tokens:
        request.params.ClearField("max_tokens")
    request.generated_token_ids.extend([1] * generated)
    key = RequestKey(request.tenant, request.request_id)
    job = Job(key, request, None, 1, 1, enqueued_s=0.0, deadline_s=None, epoch=1)
    job.seen_tokens = seen
    return job


def worker_of(context_length: int, kv_cells: int) -> WorkerSlots:
    status = scheduler_pb2.WorkerStatus(
        worker_id="w1",
        incarnation="i1",
        state=scheduler_pb2.WORKER_STATE_READY,
        slots=2,
        kv_cells=kv_cells,
    )
    status.models.add(name=MODEL, context_length=context_length)
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
