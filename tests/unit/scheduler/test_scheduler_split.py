"""Requests whose prompt one worker computes, and another their answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.scheduler_requests import PREEMPTING, epochs, finish, make_world, state_of, submit
from harness.scheduler_world import SimWorker, World, make_request
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.requests.worker_roles import Role
from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.types.actions import Action, CountSplit
from inferflux.scheduler.core.types.jobs import JobState, RequestKey
from inferflux.scheduler.core.workers import pools
from inferflux.scheduler.core.workers.split import Decision, Side, decide
from inferflux.v1 import scheduler_pb2, worker_pb2

RATE = st.floats(10.0, 1e5)
COUNT = st.integers(0, 20_000)


@pytest.mark.parametrize(
    ("prefill", "decode", "transfer_s", "decision"),
    [
        # Speeds are not known: a long prompt, beside others.
        (Side(256), Side(256, delayed=1), 0.1, Decision.SPLIT),
        (Side(256), Side(256), 0.1, Decision.SLOW),
        (Side(255), Side(255, delayed=1), 0.1, Decision.SHORT),
        (Side(256, rate=100.0), Side(256, delayed=1), 0.1, Decision.SPLIT),
        # 10 s on either, and two answers that would be 10 s later.
        (Side(1000, rate=100.0), Side(1000, delayed=2, rate=100.0), 1.0, Decision.SPLIT),
        (Side(1000, rate=100.0), Side(1000, rate=100.0), 1.0, Decision.SLOW),
        # The prefill worker has four such prompts to compute before.
        (Side(1000, ahead=4000, rate=100.0), Side(1000, delayed=2, rate=100.0), 1.0, Decision.SLOW),
        # As have the decode worker's others.
        (Side(1000, rate=100.0), Side(1000, ahead=500, rate=100.0), 1.0, Decision.SPLIT),
        # The state takes 40 s, of which 10 s go by while it is computed.
        (Side(1000, rate=100.0), Side(1000, delayed=2, rate=100.0), 40.0, Decision.SLOW),
        # All but a little is cached where the answer is to be.
        (Side(1000, rate=100.0), Side(127, delayed=9, rate=100.0), 0.0, Decision.SHORT),
    ],
)
def test_a_request_is_split_where_that_takes_less_time_of_all(
    prefill: Side, decode: Side, transfer_s: float, decision: Decision
) -> None:
    assert decide(prefill, decode, transfer_s) is decision


@given(tokens=st.integers(1, 20_000), ahead=COUNT, rate=RATE, transfer_s=st.floats(0.001, 100.0))
def test_an_idle_worker_is_never_given_half_a_request(
    tokens: int, ahead: int, rate: float, transfer_s: float
) -> None:
    assert decide(Side(tokens, ahead, 0, rate), Side(tokens, 0, 0, rate), transfer_s) is not Decision.SPLIT


@given(
    tokens=st.integers(1, 20_000),
    ahead=COUNT,
    delayed=st.integers(0, 64),
    rates=st.tuples(RATE, RATE),
    transfer_s=st.floats(0.001, 100.0),
    faster=st.floats(0.0, 1.0),
)
def test_a_faster_link_and_a_shorter_queue_never_speak_against_a_split(
    tokens: int, ahead: int, delayed: int, rates: tuple[float, float], transfer_s: float, faster: float
) -> None:
    decode = Side(tokens, 0, delayed, rates[1])
    if decide(Side(tokens, ahead, 0, rates[0]), decode, transfer_s) is Decision.SPLIT:
        less = Side(tokens, int(ahead * faster), 0, rates[0])
        assert decide(less, decode, transfer_s * faster) is Decision.SPLIT


# Of the workers here; prompts are of 300.
CONTEXT = 4000


class Stage:
    """A prefill worker, and a decode worker on which a request runs."""

    def __init__(
        self, *, slots: int = 3, fairness: FairnessSettings = PREEMPTING, has_prefill: bool = True
    ) -> None:
        self.world = make_world(fairness)
        self.decode = self._worker("d", slots, pools.DECODE)
        self.world.settle()
        self.busy = submit(self.world, "busy", max_tokens=40)
        self.decode.step()
        self.decode.beat()
        if has_prefill:
            self.prefill = self._worker("p", 2, pools.PREFILL)
        self.world.settle()
        self.decisions: list[str] = []
        plan = self.world.core.plan
        self.world.core.plan = lambda now: self._noted(plan(now))  # type: ignore[method-assign]

    def _worker(self, worker_id: str, slots: int, role: Role) -> SimWorker:
        return self.world.add_worker(
            worker_id, slots=slots, kv_cells=CONTEXT, role=role, is_source=True, context=CONTEXT
        )

    def _noted(self, todo: list[Action]) -> list[Action]:
        self.decisions += [action.decision for action in todo if isinstance(action, CountSplit)]
        return todo

    def submit(self, request_id: str = "r", *, prompt: int = 300, max_tokens: int = 8) -> RequestKey:
        return submit(self.world, request_id, prompt=prompt, max_tokens=max_tokens)

    def compute_prompt(self) -> None:
        self.prefill.step()
        self.world.settle()
        self.world.check()


def test_a_prompt_is_computed_on_one_worker_and_the_answer_on_another() -> None:
    stage = Stage()
    key = stage.submit()
    since_s = stage.world.core.jobs[key].since_s
    (item,) = stage.prefill.batches[-1].items
    assert (item.token_budget, item.request.request_id) == (1, "r")
    assert stage.decode.taking[key].origin.source.worker_id == "p"
    assert stage.decode.taking[key].origin.epoch == item.request.epoch == 1
    stage.decode.taken(key, tokens=300)
    stage.world.settle()
    assert key in stage.prefill.residents  # until its first token is there
    stage.compute_prompt()
    assert key not in stage.prefill.residents
    (item,) = stage.decode.batches[-1].items
    assert (item.state_from.source.worker_id, item.state_from.epoch) == ("p", 1)
    assert (item.token_budget, item.request.epoch, list(item.request.generated_token_ids)) == (0, 2, [0])
    (dropped,) = [command.drop for _, command in stage.world.commands if command.HasField("drop")]
    assert (dropped.request_id, dropped.leaves_state) == ("r", True)
    job = stage.world.core.jobs[key]
    assert (job.since_s, job.retries.counted, job.charged.prompt) == (since_s, 0, 300)
    assert stage.decisions == ["split"]
    finish(stage.world)
    assert epochs(stage.world, key) == {1, 2}
    assert ("split", "done") in stage.world.moved


def test_a_place_is_kept_for_the_answer_while_its_prompt_is_computed() -> None:
    stage = Stage(slots=2)
    key = stage.submit()
    other = stage.submit("other", prompt=4)
    assert other in stage.prefill.residents  # the only free place
    assert stage.world.core.table.workers["d"].free_slots == 0
    stage.compute_prompt()
    assert key in stage.decode.residents
    finish(stage.world)


def test_what_was_cut_off_by_timeslices_is_not_set_back_by_a_split() -> None:
    stage = Stage(fairness=FairnessSettings(max_timeslice_tokens=5))
    key = stage.submit(max_tokens=20)
    stage.world.pass_time(1.0)
    since_s = stage.world.core.jobs[key].since_s
    stage.compute_prompt()
    assert stage.world.core.jobs[key].since_s == since_s
    assert stage.decode.batches[-1].items[-1].token_budget == 5
    finish(stage.world)


def _of(change: Callable[[scheduler_pb2.InferenceRequest], object]) -> scheduler_pb2.InferenceRequest:
    request = make_request("r", prompt=300, max_tokens=8)
    change(request)
    return request


@pytest.mark.parametrize(
    ("request_", "decision"),
    [
        (make_request("r", prompt=300, max_tokens=1), "unsuited"),
        (make_request("r", prompt=255, max_tokens=8), "short"),
        (_of(lambda r: setattr(r.params, "deterministic", True)), "unsuited"),
        (_of(lambda r: setattr(r.params, "prompt_logprobs", 1)), "unsuited"),
        (_of(lambda r: r.embedding.text_tokens.append(300)), "unsuited"),
        (_of(lambda r: r.images.add(id="a" * 64, tokens=4)), "unsuited"),
    ],
)
def test_a_request_that_cannot_go_on_elsewhere_is_not_split(
    request_: scheduler_pb2.InferenceRequest, decision: str
) -> None:
    stage = Stage()
    key = stage.world.submit(request_)
    stage.world.settle()
    assert key in stage.decode.residents
    assert stage.decisions == [decision]
    assert stage.decode.batches[-1].items[-1].token_budget == 0


def test_without_a_prefill_worker_that_has_room_one_worker_has_it_all() -> None:
    stage = Stage(slots=5)
    keys = [stage.submit(f"r{i}") for i in range(3)]
    assert stage.decisions == ["split", "split", "no_prefill"]
    assert keys[2] in stage.decode.residents
    lone = Stage(has_prefill=False)
    assert lone.submit() in lone.decode.residents
    assert lone.decisions == []
    finish(stage.world)


def test_a_worker_that_cannot_fetch_state_gets_whole_requests() -> None:
    stage = Stage()
    stage.decode.is_source = False
    stage.decode.beat()
    stage.world.settle()
    assert stage.submit() in stage.decode.residents
    assert stage.decisions == ["no_prefill"]


@pytest.mark.parametrize("which", ["p", "d"])
def test_a_split_request_outlives_either_worker(which: str) -> None:
    stage = Stage()
    key = stage.submit()
    stage.world.workers.pop(which).die()
    stage.world.settle()
    stage.world.check()
    other = stage.decode if which == "p" else stage.prefill
    other.step()
    stage.world.settle()
    assert other.residents[key].is_running
    finish(stage.world)


@pytest.mark.parametrize("error", ["no route", ""])
def test_a_split_request_goes_on_where_its_prompt_was_computed_if_its_state_cannot_leave(error: str) -> None:
    stage = Stage()
    key = stage.submit()
    if error:
        stage.decode.taken(key, error=error)
    else:  # the worker takes nothing new meanwhile
        stage.world.do(stage.world.core.commands.drain("d", now=stage.world.now))
    stage.world.settle()
    for _ in range(3):
        stage.compute_prompt()
    assert stage.prefill.residents[key].is_running
    assert stage.prefill.residents[key].generated == 3
    assert stage.world.core.table.workers["d"].awaited == {}
    finish(stage.world)
    assert epochs(stage.world, key) == {1}


def test_a_request_that_gives_way_before_its_prompt_is_computed_stays_there() -> None:
    stage = Stage(slots=4)
    key = stage.submit()
    for i in range(4):  # both workers are full then
        submit(stage.world, f"more{i}", prompt=4)
    submit(stage.world, "urgent", priority=9)
    while state_of(stage.world, key) is not JobState.PARKED:
        submit(stage.world, f"urgent{len(stage.world.clients)}", priority=9)
    assert stage.world.core.jobs[key].move is None
    assert stage.world.core.table.workers["d"].awaited == {}
    finish(stage.world)
    assert epochs(stage.world, key) == {1}


def test_a_request_that_ends_with_its_first_token_goes_nowhere() -> None:
    stage = Stage()
    stage.prefill.output_of = lambda request: 1  # type: ignore[method-assign] # noqa: ARG005
    key = stage.submit()
    stage.compute_prompt()
    assert key not in stage.world.core.jobs
    assert stage.world.core.table.workers["d"].awaited == {}
    stage.world.pass_time(0.1)
    assert ("split", "over") in stage.world.moved


def test_a_yield_that_was_lost_is_seen_in_a_heartbeat() -> None:
    stage = Stage()
    key = stage.submit()
    stage.prefill.step()
    stage.world.network.clear()
    stage.prefill.beat()
    stage.world.settle()
    assert key in stage.decode.residents
    finish(stage.world)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_new_leader_finds_a_split_request_where_it_is(steps: int) -> None:
    """Before its prompt is computed, and after, when neither the yield nor what followed has arrived."""
    stage = Stage()
    key = stage.submit()
    for _ in range(steps):
        stage.prefill.step()
    stage.world.network.clear()
    stage.world.restart_scheduler()
    for worker in (stage.prefill, stage.decode):
        worker.beat()
    stage.world.settle()
    stage.world.pass_time(0.1)
    stage.world.settle()
    assert key in stage.prefill.residents
    finish(stage.world)
    assert epochs(stage.world, key) == {1}


class Prefixes:
    """Two workers, of which the first has cached prompt tokens of a request that the second takes."""

    def __init__(self, rate: float) -> None:
        self.world: World = make_world()
        for worker_id, slots in (("a", 0), ("b", 2)):
            self.taker = self.world.add_worker(
                worker_id,
                slots=slots,
                kv_cells=CONTEXT,
                is_source=True,
                prefill_rate=rate,
                context=CONTEXT,
            )
        self.world.settle()

    def item(self, cached: int, *, own: int = 0, deterministic: bool = False) -> worker_pb2.BatchItem:
        request = make_request("r", prompt=1000, at=self.world.now)
        request.params.deterministic = deterministic
        self.world.jobs[1] = request
        key = RequestKey("acme", "r")
        self.world.clients[key], self.world.log[key] = [], []
        cached_on = {"a": cached, "b": own}
        self.world.do(self.world.core.on_job(request, 1, 1, self.world.now, cached_on=cached_on))
        self.world.settle()
        return self.taker.batches[-1].items[-1]


@pytest.mark.parametrize(
    ("rate", "cached", "deterministic", "is_fetched"),
    [
        (1000.0, 900, False, True),
        (1000.0, 255, False, False),  # too little
        (0.0, 900, False, False),  # how long computing takes is not known
        (1e6, 900, False, False),  # computing takes no longer
        (1000.0, 900, True, False),
    ],
)
def test_a_prefix_is_fetched_where_that_is_faster_than_computing_it(
    rate: float, cached: int, deterministic: bool, is_fetched: bool
) -> None:
    item = Prefixes(rate).item(cached, deterministic=deterministic)
    assert item.HasField("state_from") == is_fetched
    if is_fetched:
        assert item.state_from.source.worker_id == "a"
        assert item.state_from.epoch == 0


def test_only_the_tokens_that_it_has_not_are_expected_to_be_sent() -> None:
    # 300 tokens more are computed in 20.7 ms. Those take 20.3 ms to send, all 900 would take 20.9 ms.
    assert Prefixes(14_500.0).item(900, own=600).HasField("state_from")
    assert not Prefixes(14_500.0).item(900, own=620).HasField("state_from")
