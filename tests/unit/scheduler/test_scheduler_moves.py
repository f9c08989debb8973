"""Requests that go on with another worker, their state ahead of them."""

from __future__ import annotations

import numpy as np
import pytest
from harness.scheduler_requests import PREEMPTING, epochs, finish, make_world, state_of, submit
from harness.scheduler_world import make_request

from inferflux.common.contract.callers.cache_scope import cache_scope_of
from inferflux.common.contract.errors import FailedPrecondition, InferFluxError, InvalidArgument, NotFound
from inferflux.scheduler.core.types.actions import CountRetry, Follows, MoveEnded
from inferflux.scheduler.core.types.jobs import JobState, RequestKey
from inferflux.scheduler.core.types.moves import Move
from inferflux.scheduler.core.workers.move_table import MOST_OF_A_WORKER
from inferflux.scheduler.operator.status import describe
from inferflux.v1 import scheduler_pb2


class Pair:
    """Two workers that fetch state from each other, and a request that runs on the first."""

    def __init__(self, *, slots: int = 2, more: int = 0, **limits: float) -> None:
        self.world = make_world(PREEMPTING, **limits)
        self.old = self.world.add_worker("w1", slots=slots, kv_cells=400, is_source=True)
        self.world.settle()
        self.key = submit(self.world, "r1")
        for i in range(more):
            submit(self.world, f"more{i}")
        self.new = self.world.add_worker("w2", slots=slots, kv_cells=400, is_source=True)
        self.world.settle()
        self.old.step()
        self.world.settle()

    def move(self, request_id: str = "r1", tenant: str = "", to: str = "w2") -> Move:
        world = self.world
        todo, _, move = world.core.commands.move(RequestKey(tenant, request_id), to, now=world.now)
        world.do(todo)
        world.settle()
        world.check()
        return move

    def drain(self) -> None:
        """Have the first worker hand over what it has."""
        self.world.do(self.world.core.commands.drain("w1", now=self.world.now, hand_over_after_s=0.0))
        self.world.pass_time(0.1)
        self.world.settle()
        self.world.check()

    def ends_in(self, ms: int) -> None:
        """Have the first worker say that it ends."""
        self.old.state, self.old.leaves_in_ms = scheduler_pb2.WORKER_STATE_DRAINING, ms
        self.old.beat()
        self.world.settle()
        self.world.pass_time(0.05)
        self.world.settle()
        self.world.check()

    def taken(self, key: RequestKey, tokens: int = 0, error: str = "") -> None:
        self.new.taken(key, tokens, error)
        self.world.settle()
        self.world.check()


def test_a_request_runs_on_while_its_state_is_fetched_and_then_goes_on_elsewhere() -> None:
    pair = Pair()
    move = pair.move()
    asked = pair.new.taking[pair.key]
    assert (asked.origin.source.worker_id, asked.origin.epoch, asked.limit_ms) == ("w1", 1, 10_000)
    assert describe(pair.world.core, pair.world.now).moving == 1
    pair.old.step()
    assert pair.old.residents[pair.key].generated == 2
    pair.taken(pair.key, tokens=5)
    dropped = [c.drop for _, c in pair.world.commands if c.HasField("drop")]
    assert [(d.request_id, d.epoch, d.leaves_state) for d in dropped] == [("r1", 1, True)]
    item = pair.new.batches[-1].items[-1]
    assert (item.state_from.source.ticket, item.state_from.epoch) == ("ticket of w1", 1)
    assert not item.seeks_state
    assert list(item.request.generated_token_ids) == [0, 1]
    assert (move.outcome, move.tokens) == ("done", 5)
    assert pair.key not in pair.old.residents
    assert describe(pair.world.core, pair.world.now).moving == 0
    finish(pair.world)
    assert epochs(pair.world, pair.key) == {1, 2}


def test_a_worker_is_told_which_tokens_it_should_have_cached() -> None:
    pair = Pair()
    job = pair.world.core._state.jobs[pair.key]
    job.cached_on = {"w1": 4, "w2": 3}
    pair.move()
    asked = pair.new.taking[pair.key]
    assert asked.token_ids == np.array(job.request.prompt_token_ids[:3], "<i4").tobytes()
    assert asked.cache_scope == cache_scope_of(job.request)


def test_only_what_has_left_its_worker_is_looked_for_with_each_plan() -> None:
    pair = Pair(more=1)
    following = pair.world.core._state.moves
    pair.move()
    assert not following.following
    pair.taken(pair.key, tokens=5)
    assert not following.following
    assert pair.key in pair.new.residents
    finish(pair.world)


def test_workers_that_have_its_prefix_are_not_looked_for_when_it_follows_its_state() -> None:
    pair = Pair()
    asked: list[str] = []

    def cached(request: scheduler_pb2.InferenceRequest) -> dict[str, int]:
        asked.append(request.request_id)
        return {}

    pair.world.cached_now = cached
    pair.move()
    pair.taken(pair.key, tokens=5)
    assert pair.key in pair.new.residents
    assert not asked
    pair.world.workers.pop("w2").die()
    pair.world.settle()
    assert asked == ["r1"]


def test_the_other_worker_keeps_a_place_for_what_is_on_its_way() -> None:
    pair = Pair(slots=1)
    pair.move()
    waiting = submit(pair.world, "waiting")
    assert state_of(pair.world, waiting) is JobState.QUEUED
    pair.taken(pair.key)
    assert pair.key in pair.new.residents
    assert waiting in pair.old.residents
    finish(pair.world)


def test_a_request_whose_state_does_not_come_stays_where_it_is() -> None:
    pair = Pair(slots=1)
    move = pair.move()
    pair.taken(pair.key, error="the wish was refused")
    assert (move.outcome, move.error) == ("error", "the wish was refused")
    assert state_of(pair.world, pair.key) is JobState.RUNNING
    late = pair.move()
    pair.world.pass_time(10.1)
    assert late.outcome == "late"
    assert submit(pair.world, "r2") in pair.new.residents  # its place is free again
    finish(pair.world)
    assert epochs(pair.world, pair.key) == {1}


def test_what_a_worker_says_of_another_move_does_not_count() -> None:
    pair = Pair()
    move = pair.move()
    for worker, epoch in ((pair.old, 1), (pair.new, 2)):
        event = worker.event()
        event.state_taken.tenant, event.state_taken.request_id = pair.key
        event.state_taken.epoch = epoch
        worker.tell(event)
    pair.world.settle()
    assert not move.outcome
    assert pair.key in pair.old.residents


@pytest.mark.parametrize("which", ["w1", "w2"])
def test_a_move_between_workers_of_which_one_dies_ends_and_the_request_goes_on(which: str) -> None:
    pair = Pair()
    move = pair.move()
    pair.world.workers.pop(which).die()
    pair.world.settle()
    pair.world.check()
    assert move.outcome == ("over" if which == "w1" else "gone")
    finish(pair.world)


def given_up(pair: Pair) -> list[tuple[str, str, int]]:
    """Requests whose state a worker is told to fetch no more: the worker, the request and its epoch."""
    pair.world.pass_time(0.1)
    pair.world.settle()
    sent = [(to, command.drop) for to, command in pair.world.commands if command.HasField("drop")]
    return [(to, drop.request_id, drop.epoch) for to, drop in sent]


def test_a_worker_is_told_to_fetch_no_more_of_a_request_that_does_not_come() -> None:
    pair = Pair()
    pair.move()
    assert not given_up(pair)
    pair.world.cancel(pair.key)
    pair.world.settle()
    assert given_up(pair) == [("w2", "r1", 1)]
    assert not pair.new.taking
    late = Pair()
    late.move()
    late.world.pass_time(10.1)
    assert given_up(late) == [("w2", "r1", 1)]
    assert late.key in late.old.residents
    late.move()
    late.taken(late.key, tokens=5)  # nothing of the first try is in its way
    assert late.key in late.new.residents
    finish(late.world)


def test_a_worker_that_is_gone_or_has_the_request_is_not_told_to_fetch_no_more() -> None:
    gone = Pair()
    gone.move()
    gone.world.workers.pop("w2").die()
    gone.world.settle()
    assert not given_up(gone)
    done = Pair()
    done.move()
    done.taken(done.key, tokens=5)
    assert given_up(done) == [("w1", "r1", 1)]  # the old one has to send the rest
    finish(done.world)


def test_what_moves_again_to_the_same_worker_is_fetched_on() -> None:
    pair = Pair()
    pair.move()
    pair.world.core._state.end_move(pair.world.core._state.jobs[pair.key], "over")
    pair.move()
    assert not given_up(pair)
    pair.taken(pair.key, tokens=5)
    assert pair.key in pair.new.residents
    finish(pair.world)


def test_a_request_that_ends_or_is_cancelled_meanwhile_does_not_move() -> None:
    pair = Pair()
    move = pair.move()
    pair.world.cancel(pair.key)
    pair.world.settle()
    assert move.outcome == "over"
    finish(pair.world)


def test_a_request_that_the_other_worker_refuses_in_the_end_is_placed_as_any_other() -> None:
    pair = Pair()
    move = pair.move()
    pair.new.state = 3  # type: ignore[assignment] # draining, and has not said so
    pair.taken(pair.key)
    assert move.outcome == "over"
    pair.old.beat()
    pair.world.settle()
    finish(pair.world)


@pytest.mark.parametrize(
    ("tenant", "request_id", "to", "error", "said"),
    [
        ("", "r9", "w2", NotFound, "no request r9 waits or runs"),
        ("bolt", "r1", "w2", NotFound, "no request r1 waits or runs"),
        ("", "r1", "w9", NotFound, "no worker w9 is alive"),
        ("", "r1", "w1", FailedPrecondition, "w1 has it already"),
        ("", "r1", "other", FailedPrecondition, "other has not the model demo"),
        ("", "r1", "leaving", FailedPrecondition, "leaving is draining"),
        ("", "r1", "small", FailedPrecondition, "it does not fit small"),
        ("", "r1", "old", FailedPrecondition, "old cannot fetch KV state from w1"),
        ("", "both", "w2", InvalidArgument, "2 tenants have a request both: name one"),
        ("bolt", "both", "w2", FailedPrecondition, "it does not run yet"),
    ],
)
def test_a_move_that_cannot_be_made_says_why(
    tenant: str, request_id: str, to: str, error: type[InferFluxError], said: str
) -> None:
    pair = Pair()
    pair.world.add_worker("other", model="other", is_source=True)
    pair.world.add_worker("small", kv_cells=8, slots=0, is_source=True)
    pair.world.add_worker("old", kv_cells=400, slots=0)
    pair.world.add_worker("leaving", is_source=True).state = scheduler_pb2.WORKER_STATE_DRAINING
    pair.world.workers["leaving"].beat()
    pair.world.settle()
    for owner in ("acme", "bolt"):
        pair.world.submit(make_request("both", tenant=owner, prompt=4, max_tokens=20, at=pair.world.now))
    for _ in range(2):
        pair.world.deliver()  # the jobs; their batches are on the way
    with pytest.raises(error, match=said) as caught:
        pair.world.core.commands.move(RequestKey(tenant, request_id), to, now=pair.world.now)
    if isinstance(caught.value, InvalidArgument):
        assert caught.value.field == "tenant"


def test_a_request_moves_once_at_a_time_and_to_where_there_is_room() -> None:
    pair = Pair(slots=1)
    pair.move()
    with pytest.raises(FailedPrecondition, match="it is on its way to w2"):
        pair.move()
    second = Pair(slots=1)
    blocker = submit(second.world, "r2")
    assert blocker in second.new.residents
    with pytest.raises(FailedPrecondition, match="w2 has no room for it"):
        second.move()


def test_a_drained_worker_hands_its_requests_over_with_their_state_a_few_at_a_time() -> None:
    pair = Pair(slots=8, more=5)
    there = list(pair.old.residents)
    pair.drain()
    first = list(pair.new.taking)
    assert len(there) > len(first) == MOST_OF_A_WORKER
    pair.old.step()
    assert all(pair.old.residents[key].generated for key in there)  # none has stopped
    for key in first:
        pair.taken(key)
    assert all(key in pair.new.residents for key in first)
    pair.world.pass_time(0.1)
    pair.world.settle()
    assert pair.new.taking
    pair.world.pass_time(10.1)  # the others leave without
    pair.world.settle()
    pair.world.pass_time(10.1)
    pair.world.settle()
    assert not pair.old.residents
    finish(pair.world)


def test_a_drained_request_whose_state_does_not_come_leaves_all_the_same() -> None:
    pair = Pair()
    pair.drain()
    pair.taken(pair.key, error="broken")
    assert pair.key in pair.new.residents
    item = pair.new.batches[-1].items[-1]
    assert item.seeks_state  # in the exchange, as ever
    assert not item.HasField("state_from")
    finish(pair.world)


def test_a_worker_that_ends_has_its_requests_moved_before_it_does() -> None:
    pair = Pair(slots=8)
    pair.ends_in(30_000)
    assert not pair.new.taking  # they may end there
    pair.world.pass_time(20.1)
    pair.world.settle()
    assert pair.new.taking
    pair.taken(pair.key, tokens=5)
    assert pair.key in pair.new.residents
    finish(pair.world)


@pytest.mark.parametrize("why", ["no other worker", "no carrier"])
def test_a_worker_that_ends_keeps_what_cannot_move_with_its_state(why: str) -> None:
    pair = Pair()
    if why == "no carrier":
        pair.new.is_source = False
        pair.new.beat()
    else:
        pair.new.state = scheduler_pb2.WORKER_STATE_DRAINING
        pair.new.beat()
    pair.ends_in(1000)
    pair.world.pass_time(0.9)
    pair.world.settle()
    assert not pair.new.taking
    assert pair.key in pair.old.residents


def test_a_worker_that_ends_later_hands_over_when_it_was_told_to() -> None:
    pair = Pair()
    pair.drain()
    taking = dict(pair.new.taking)
    pair.ends_in(30_000)
    assert pair.new.taking == taking
    pair.taken(pair.key)
    assert pair.key in pair.new.residents
    finish(pair.world)


def test_a_worker_that_ends_sooner_than_it_was_to_hand_over_does_so_before() -> None:
    pair = Pair()
    drain = pair.world.core.commands.drain("w1", now=pair.world.now, hand_over_after_s=600.0)
    pair.world.do(drain)
    pair.ends_in(2000)
    pair.world.pass_time(1.1)
    pair.world.settle()
    assert pair.new.taking


def test_a_suspect_that_follows_its_state_runs_alone_and_its_move_is_over() -> None:
    pair = Pair()
    submit(pair.world, "beside")
    move = pair.move()
    pair.world.core._state.jobs[pair.key].is_suspect = True
    pair.taken(pair.key, tokens=5)
    finish(pair.world)
    assert move.outcome
    assert not len(pair.world.core._state.moves)
    assert not any(worker.awaited for worker in pair.world.core._state.table.workers.values())


def test_a_request_that_waits_to_resume_moves_with_its_state() -> None:
    pair = Pair(slots=1, move_after_s=2.0)
    pair.new.state = 3  # type: ignore[assignment]
    pair.new.beat()
    pair.world.settle()
    urgent = submit(pair.world, "urgent", priority=9)
    assert state_of(pair.world, pair.key) is JobState.PARKED
    pair.new.state = 2  # type: ignore[assignment]
    for _ in range(3):
        pair.world.pass_time(1.0)
        pair.old.beat()
        pair.new.beat()
        pair.world.settle()
    assert pair.key in pair.new.taking
    assert pair.key in pair.old.residents
    pair.taken(pair.key, tokens=4)
    assert pair.key in pair.new.residents
    assert pair.new.batches[-1].items[-1].state_from.epoch == 1
    assert urgent in pair.old.residents
    finish(pair.world)


def test_a_new_leader_finds_what_was_about_to_move_where_it_runs() -> None:
    pair = Pair()
    pair.move()
    pair.world.restart_scheduler()
    for worker in (pair.old, pair.new):
        worker.beat()
    pair.world.settle()
    pair.taken(pair.key)  # it knows of no move
    assert state_of(pair.world, pair.key) is JobState.RUNNING
    assert pair.key in pair.old.residents
    finish(pair.world)
    assert epochs(pair.world, pair.key) == {1}


def test_a_new_leader_goes_on_with_what_was_between_two_workers() -> None:
    pair = Pair()
    pair.move()
    pair.new.taken(pair.key)
    while not any(command.HasField("drop") for _, command in pair.world.commands):
        pair.world.deliver()
    pair.world.network.clear()  # neither the drop nor the batch arrives
    pair.world.restart_scheduler()
    for worker in (pair.old, pair.new):
        worker.beat()
    pair.world.settle()
    finish(pair.world)


def test_a_move_is_told_from_a_loss() -> None:
    pair = Pair()
    pair.move()
    core, now = pair.world.core, pair.world.now
    event = pair.new.event()
    told = event.state_taken
    told.tenant, told.request_id = pair.key
    told.epoch = 1
    todo = core.on_event(event, now)
    assert [type(action) for action in todo if isinstance(action, Follows | CountRetry)] == [Follows]
    pair.world.do(todo)
    pair.world.settle()
    (ended,) = [action for action in core.on_tick(now) if isinstance(action, MoveEnded)]
    assert (ended.move.why.value, ended.move.outcome) == ("admin", "done")
