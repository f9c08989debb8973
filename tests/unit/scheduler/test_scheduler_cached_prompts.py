"""What workers have cached of a prompt is neither computed nor charged."""

from __future__ import annotations

import pytest
from harness.scheduler_world import MODEL, make_request

from inferflux.scheduler.core.lifecycle.batches import prefill_tokens
from inferflux.scheduler.core.order.queue_policies import PolicyName, work
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.jobs import Job, RequestKey
from inferflux.scheduler.core.types.limits import Limits
from inferflux.scheduler.core.types.replayed import ReplayedTokens
from inferflux.scheduler.core.workers.rates import ModelRates
from inferflux.v1 import scheduler_pb2, worker_pb2

START_S = 1_000_000.0


def job_of(prompt: int, cached_on: dict[str, int]) -> Job:
    request = make_request("r", prompt=prompt, max_tokens=10)
    job = Job(RequestKey("acme", "r"), request, None, 1, 1, enqueued_s=0.0, deadline_s=None, epoch=1)
    job.cached_on = cached_on
    return job


def status(worker_id: str) -> scheduler_pb2.WorkerStatus:
    made = scheduler_pb2.WorkerStatus(
        worker_id=worker_id,
        incarnation="i",
        state=scheduler_pb2.WORKER_STATE_READY,
        slots=4,
        kv_cells=10_000,
        prefill_tokens_per_s=1000.0,
        exchange="here",
    )
    made.models.add(name=MODEL, context_length=4096)
    return made


def core_of(policy: PolicyName, *workers: str) -> SchedulerCore:
    core = SchedulerCore(Limits(settle_s=0.0), now=START_S, policy=policy)
    for worker_id in workers:
        core.on_heartbeat(status(worker_id), START_S)
    core.on_tick(START_S)
    return core


def dispatches(core: SchedulerCore) -> list[actions.Dispatch]:
    return [action for action in core.plan(START_S) if isinstance(action, actions.Dispatch)]


def test_shortest_first_counts_what_the_best_worker_computes() -> None:
    assert work(job_of(500, {})) == 60
    assert work(job_of(500, {"w1": 400, "w2": 100})) == 20


def test_the_time_to_a_first_token_is_that_of_what_is_computed() -> None:
    rates = ModelRates()
    rates.update(status("w1"))
    assert rates.prefill_s(job_of(500, {})) == 0.5
    assert rates.prefill_s(job_of(500, {"w1": 400})) == 0.1
    assert rates.prefill_s(job_of(500, {"w1": 500})) == 0.001  # one is always computed


def test_a_batch_is_filled_by_what_its_worker_computes() -> None:
    job = job_of(500, {"w1": 400})
    job.worker_id = "w1"
    assert prefill_tokens(job) == 100
    job.worker_id = "w2"
    assert prefill_tokens(job) == 500


def test_a_deadline_is_not_refused_for_what_is_cached() -> None:
    for cached_on, is_refused in (({}, True), ({"w1": 3900}, False)):
        core = core_of("priority", "w1")
        request = make_request("r", prompt=4000, max_tokens=10)
        request.deadline_unix_ms = round((START_S + 1) * 1000)
        out = core.on_job(request, "handle", 1, START_S, cached_on)
        assert any(isinstance(action, actions.Ack) for action in out) == is_refused


def test_a_request_is_dispatched_to_the_worker_that_has_its_prefix() -> None:
    for holder in ("w1", "w2"):
        core = core_of("priority", "w1", "w2")
        core.on_job(make_request("r", prompt=500, max_tokens=10), "handle", 1, START_S, {holder: 480})
        assert [(each.worker_id, each.batch.prefill_tokens) for each in dispatches(core)] == [(holder, 20)]


@pytest.mark.parametrize(("had", "owed"), [(400, 0), (480, 0), (100, 300), (0, 400)])
def test_what_was_evicted_meanwhile_is_charged_at_the_end(had: int, owed: int) -> None:
    core = core_of("fair", "w1")
    core.on_job(make_request("r", prompt=500, max_tokens=10), "handle", 1, START_S, {"w1": 400})
    (dispatch,) = dispatches(core)
    answer = worker_pb2.BatchAccepted(batch_id=dispatch.batch.batch_id, accepted_request_ids=["r"])
    core.on_batch_answer(answer, START_S)
    before = core.tenant_service.counters["acme"]
    event = scheduler_pb2.WorkerEvent(worker_id="w1", incarnation="i")
    finished = event.request_finished
    finished.tenant, finished.request_id, finished.epoch, finished.outcome = "acme", "r", 1, "stop"
    finished.usage.prompt_tokens, finished.usage.cached_prompt_tokens = 500, had
    core.on_event(event, START_S)
    assert core.tenant_service.counters["acme"] - before == owed


def test_a_tenant_is_not_charged_for_what_is_cached() -> None:
    core = core_of("fair", "w1")
    for tenant, cached_on in (("acme", {"w1": 400}), ("globex", {})):
        request = make_request("r", prompt=500, max_tokens=10, tenant=tenant)
        core.on_job(request, tenant, len(core.jobs) + 1, START_S, cached_on)
    dispatches(core)
    charged = {tenant: core.tenant_service.counters[tenant] for tenant in ("acme", "globex")}
    assert charged["globex"] - charged["acme"] == 400


def lost_with_its_worker(core: SchedulerCore, how: str = "worker_died") -> actions.ReadReplay:
    """A request ran on w1, which has died or left. It is to be read before it goes on elsewhere."""
    core.on_job(make_request("r", prompt=500, max_tokens=10), "handle", 1, START_S, {"w1": 480})
    (dispatch,) = dispatches(core)
    assert dispatch.worker_id == "w1"
    assert not dispatch.batch.items[0].seeks_state
    answer = worker_pb2.BatchAccepted(batch_id=dispatch.batch.batch_id, accepted_request_ids=["r"])
    core.on_batch_answer(answer, START_S)
    event = scheduler_pb2.WorkerEvent(worker_id="w1", incarnation="i")
    getattr(event, how).SetInParent()
    core.on_event(event, START_S)
    (reading,) = [a for a in core.plan(START_S) if isinstance(a, actions.ReadReplay)]
    return reading


@pytest.mark.parametrize("holder", ["w2", "w3"])
def test_a_lost_request_goes_where_its_prefix_is_now(holder: str) -> None:
    core = core_of("priority", "w1", "w2", "w3")
    reading = lost_with_its_worker(core)
    assert reading.request is not None
    replayed = ReplayedTokens(token_ids=[7, 8, 9], epoch=1)
    out = core.on_replay(reading.key, reading.read_id, replayed, START_S, {holder: 496})
    (dispatch,) = [a for a in [*out, *core.plan(START_S)] if isinstance(a, actions.Dispatch)]
    assert dispatch.worker_id == holder
    (item,) = dispatch.batch.items
    assert list(item.request.generated_token_ids) == [7, 8, 9]
    assert item.request.epoch == 2
    assert item.seeks_state
    assert dispatch.batch.prefill_tokens == 500 + 3 - 496


def test_a_lost_request_that_no_worker_knows_goes_on_where_it_was_placed() -> None:
    core = core_of("priority", "w1", "w2", "w3")
    reading = lost_with_its_worker(core)
    out = core.on_replay(reading.key, reading.read_id, ReplayedTokens([], epoch=1), START_S, {})
    assert [type(action) for action in out] == [actions.Dispatch]


def test_a_full_worker_is_not_waited_for_because_of_what_it_has_cached() -> None:
    core = core_of("priority", "w1", "w2", "w3")
    reading = lost_with_its_worker(core)
    for i in range(4):  # w3 holds far more than the prefix saves
        request = make_request(f"other-{i}", prompt=2000, max_tokens=10)
        core.on_job(request, f"other-{i}", 10 + i, START_S, {"w3": 1999})
        dispatches(core)
    out = core.on_replay(reading.key, reading.read_id, ReplayedTokens([], epoch=1), START_S, {"w3": 496})
    (dispatch,) = [a for a in [*out, *core.plan(START_S)] if isinstance(a, actions.Dispatch)]
    assert dispatch.worker_id == "w2"


def with_first_choice(sharing: scheduler_pb2.PrefixSharing.ValueType) -> tuple[SchedulerCore, str]:
    """Two workers, and a request on one of them; returns that one's id."""
    core = core_of("priority", "w1", "w2")
    for worker_id in ("w1", "w2"):
        heartbeat = status(worker_id)
        heartbeat.prefix_sharing = sharing
        core.on_heartbeat(heartbeat, START_S)
    core.on_job(make_request("first", prompt=300, max_tokens=10), "handle", 1, START_S, {})
    (dispatch,) = dispatches(core)
    return core, dispatch.worker_id


def other_choice(**fields: str) -> scheduler_pb2.InferenceRequest:
    request = make_request("other", prompt=300, max_tokens=10)
    request.same_prompt_as = "first"
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def test_another_choice_goes_where_the_first_one_has_computed_the_prompt() -> None:
    core, worker_id = with_first_choice(scheduler_pb2.PREFIX_SHARING_FULL)
    core.on_job(other_choice(), "handle", 2, START_S, {})
    (dispatch,) = dispatches(core)
    assert dispatch.worker_id == worker_id


@pytest.mark.parametrize(
    "sharing", [scheduler_pb2.PREFIX_SHARING_NONE, scheduler_pb2.PREFIX_SHARING_UNSPECIFIED]
)
def test_choices_are_spread_over_workers_that_share_nothing(
    sharing: scheduler_pb2.PrefixSharing.ValueType,
) -> None:
    core, worker_id = with_first_choice(sharing)
    core.on_job(other_choice(), "handle", 2, START_S, {})
    (dispatch,) = dispatches(core)
    assert dispatch.worker_id != worker_id


@pytest.mark.parametrize(
    "fields", [{"cache_scope": "own"}, {"tenant": "globex"}, {"same_prompt_as": "unknown"}], ids=str
)
def test_nothing_is_shared_with_other_tenants_and_scopes(fields: dict[str, str]) -> None:
    core, worker_id = with_first_choice(scheduler_pb2.PREFIX_SHARING_FULL)
    core.on_job(other_choice(**fields), "handle", 2, START_S, {})
    (dispatch,) = dispatches(core)
    assert dispatch.worker_id != worker_id


@pytest.mark.parametrize(("others", "is_left"), [("here", True), ("there", False), ("", False)])
def test_what_is_computed_of_a_moved_request_goes_along_where_workers_share_an_exchange(
    others: str, is_left: bool
) -> None:
    core = SchedulerCore(Limits(settle_s=0.0), now=START_S)
    for worker_id, exchange in (("w1", "here"), ("w2", others)):
        beat = status(worker_id)
        beat.exchange = exchange
        core.on_heartbeat(beat, START_S)
    core.on_tick(START_S)
    core.on_job(make_request("r", prompt=50, max_tokens=10), "handle", 1, START_S, {"w1": 48})
    (dispatch,) = [a for a in core.plan(START_S) if isinstance(a, actions.Dispatch)]
    assert dispatch.worker_id == "w1"
    answer = worker_pb2.BatchAccepted(batch_id=dispatch.batch.batch_id, accepted_request_ids=["r"])
    core.on_batch_answer(answer, START_S)
    core.commands.drain("w1", now=START_S, hand_over_after_s=0.0)
    out = [*core.on_tick(START_S + 1.0), *core.plan(START_S + 1.0)]
    commands = [a.command for a in out if isinstance(a, actions.SendCommand)]
    (drop,) = [command.drop for command in commands if command.HasField("drop")]
    assert drop.leaves_state == is_left
    (reading,) = [a for a in out if isinstance(a, actions.ReadReplay)]
    replayed = ReplayedTokens(token_ids=[7, 8], epoch=1)
    out = core.on_replay(reading.key, reading.read_id, replayed, START_S + 1.0, {})
    (dispatch,) = [a for a in [*out, *core.plan(START_S + 1.0)] if isinstance(a, actions.Dispatch)]
    assert dispatch.worker_id == "w2"
    assert dispatch.batch.items[0].seeks_state == is_left


@pytest.mark.parametrize("how", ["worker_died", "worker_left"])
@pytest.mark.parametrize("elsewhere", ["", "there"])
def test_what_a_worker_leaves_is_searched_for_in_its_own_exchange_alone(how: str, elsewhere: str) -> None:
    core = core_of("priority", "w1")
    for worker_id, exchange in (("w2", "here"), ("w3", elsewhere)):
        beat = status(worker_id)
        beat.exchange = exchange
        core.on_heartbeat(beat, START_S)
    reading = lost_with_its_worker(core, how)
    replayed = ReplayedTokens(token_ids=[7], epoch=1)
    out = core.on_replay(reading.key, reading.read_id, replayed, START_S, {"w2" if elsewhere else "w3": 496})
    (dispatch,) = [a for a in [*out, *core.plan(START_S)] if isinstance(a, actions.Dispatch)]
    assert dispatch.batch.items[0].seeks_state == (dispatch.worker_id == "w2")
    assert dispatch.worker_id == ("w2" if elsewhere else "w3")
