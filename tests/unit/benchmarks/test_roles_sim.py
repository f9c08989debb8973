"""The simulated workers with roles: what they fetch from each other, and when that is here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.sim.events import Events
from benchmarks.sim.roles import __main__ as command
from benchmarks.sim.roles.blocks import BlockCache, BlockIndex
from benchmarks.sim.roles.links import LEAST, MOST, Links, Network
from benchmarks.sim.roles.study import A800, Shape, Study
from benchmarks.sim.roles.worker import RoleWorker
from benchmarks.sim.roles.world import Met, RolesWorld
from benchmarks.sim.traffic import Arrival
from benchmarks.sim.worker import WorkerModel
from benchmarks.traces import mooncake
from benchmarks.traces.request import BLOCK_TOKENS, TraceRequest
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.v1 import scheduler_pb2, worker_pb2

PROMPT = 8 * BLOCK_TOKENS
KEY = RequestKey("t", "r")
# A step of 1,000 tokens takes a second, and a link as long for 4,000.
MODEL = WorkerModel(
    slots=4,
    sequences=8,
    kv_cells=100_000,
    context_length=50_000,
    step_s=0.001,
    sequence_s=0.0,
    prefill_tokens_per_s=1000.0,
    prefill_budget=512,
)
NETWORK = Network(bytes_per_s=4000.0, latency_s=0.01, bytes_per_token=1)
TIMESLICE = scheduler_pb2.YIELD_REASON_TIMESLICE


class Pair:
    """A prefill worker `p` and a decode worker `d`, and a network between them."""

    def __init__(self, network: Network | None = NETWORK, *, output: int = 20) -> None:
        self.output = output
        self.events = Events(0.0)
        self.workers: dict[str, RoleWorker] = {}
        self.tokens: dict[tuple[str, int], list[tuple[int, float]]] = {}
        self.told: list[tuple[float, scheduler_pb2.WorkerEvent]] = []
        self.computed = 0
        self._wake_s: dict[str, float] = {}
        index = BlockIndex()
        links = None if network is None else Links(self.events, network, self.workers.get, self.follow)
        for name in ("p", "d"):
            self.workers[name] = RoleWorker(
                name,
                MODEL,
                role=scheduler_pb2.WORKER_ROLE_PREFILL if name == "p" else scheduler_pb2.WORKER_ROLE_DECODE,
                blocks_of=lambda _key: tuple(range(8)),
                index=index,
                links=links,
                on_computed=self.on_computed,
                output_of=lambda _key: output,
                readers=self,
            )
        self.p, self.d = self.workers["p"], self.workers["d"]

    def on_computed(self, _key: RequestKey, tokens: int) -> None:
        self.computed += tokens

    def on_tokens(
        self, key: RequestKey, epoch: int, offset: int, tokens: int, now: float, every_s: float
    ) -> None:
        self.tokens.setdefault((key.request_id, epoch), []).append((offset, now - (tokens - 1) * every_s))

    def on_end(self, key: RequestKey, epoch: int, outcome: str) -> None: ...

    def follow(self, worker_id: str) -> None:
        worker = self.workers[worker_id]
        self.told += [(self.events.now, event) for event in worker.take_events()]
        due_s = worker.next_s
        if due_s is not None and self._wake_s.get(worker_id) != due_s:
            self._wake_s[worker_id] = due_s
            self.events.at(due_s, self._wake, worker_id, due_s)

    def _wake(self, worker_id: str, due_s: float) -> None:
        if self._wake_s.get(worker_id) == due_s:
            del self._wake_s[worker_id]
            self.workers[worker_id].look(self.events.now)
            self.follow(worker_id)

    def until(self, is_so: Callable[[], object], limit_s: float = 60.0) -> float:
        """Let it go on until something is so. Returns when that was."""
        while not is_so():
            assert self.events.step(), "nothing happens any more"
            assert self.events.now < limit_s, "it takes too long"
        return self.events.now

    def give(
        self,
        worker: RoleWorker,
        *,
        epoch: int = 1,
        generated: int = 0,
        budget: int = 0,
        source: int | None = None,
    ) -> None:
        batch = worker_pb2.RequestBatch(batch_id="b", incarnation=worker.incarnation)
        item = batch.items.add(token_budget=budget)
        item.request.tenant, item.request.request_id = KEY
        item.request.epoch = epoch
        item.request.params.max_tokens = self.output
        item.request.prompt_token_ids.extend([1] * PROMPT)
        item.request.generated_token_ids.extend([1] * generated)
        if source is not None:
            item.state_from.CopyFrom(self.origin(source))
        assert not worker.take_batch(batch, self.events.now).refused
        self.follow(worker.worker_id)

    def origin(self, epoch: int) -> worker_pb2.StateOrigin:
        return worker_pb2.StateOrigin(source=self.p.status().kv_source, epoch=epoch)

    def command(self, worker: RoleWorker, **command: worker_pb2.TakeState | worker_pb2.DropRequest) -> None:
        worker.take_command(worker_pb2.WorkerCommand(**command), self.events.now)  # type: ignore[arg-type]
        self.follow(worker.worker_id)

    def take(self, *, epoch: int = 1, limit_ms: int = 30_000) -> None:
        wanted = worker_pb2.TakeState(tenant="t", request_id="r", limit_ms=limit_ms)
        wanted.origin.CopyFrom(self.origin(epoch))
        self.command(self.d, take_state=wanted)

    def drop(self, *, leaves_state: bool = True) -> None:
        drop = worker_pb2.DropRequest(tenant="t", request_id="r", epoch=1, leaves_state=leaves_state)
        self.command(self.p, drop=drop)

    def taken(self) -> list[tuple[int, str]]:
        events = [event.state_taken for _, event in self.told if event.HasField("state_taken")]
        return [(event.tokens, event.error) for event in events]

    def yields(self) -> list[scheduler_pb2.RequestYielded]:
        return [event.request_yielded for _, event in self.told if event.HasField("request_yielded")]


def test_a_prompt_goes_over_while_it_is_computed() -> None:
    pair = Pair()
    pair.give(pair.p, budget=1)
    pair.take()
    computed_s = pair.until(pair.yields)
    assert computed_s == pytest.approx(PROMPT / 1000, rel=0.05)
    assert pair.yields()[0].reason == TIMESLICE
    # Half of it at least went over meanwhile: the link is four times as fast as the prompt is computed.
    assert pair.d.fetches[KEY].here >= PROMPT / 2
    caught_up_s = pair.until(pair.taken)
    assert pair.taken() == [(PROMPT, "")]
    assert caught_up_s - computed_s < MOST / 4000 + 0.05


def test_the_request_waits_for_the_rest_and_computes_nothing_again() -> None:
    pair = Pair()
    pair.give(pair.p, budget=1)
    pair.take()
    pair.until(pair.yields)
    pair.drop()
    pair.give(pair.d, epoch=2, generated=1, source=1)
    assert pair.d.must_wait(pair.d.residents[KEY])
    pair.until(lambda: ("r", 2) in pair.tokens)
    assert pair.tokens["r", 2][0][0] == 1
    assert pair.computed == PROMPT
    assert pair.taken() == [(PROMPT, "")]
    assert (pair.d.transfers.done, pair.d.transfers.failed, pair.d.transfers.bytes) == (1, 0, PROMPT)
    assert not pair.d.fetches
    # Both have the prompt for requests that begin alike.
    assert pair.p.cache.match(range(8)) == pair.d.cache.match(range(8)) == 8


def test_a_fetch_that_the_batch_asks_for_first_takes_as_long_as_its_bytes() -> None:
    pair = Pair()
    pair.give(pair.p, budget=1)
    begin_s = pair.until(pair.yields)
    pair.drop()
    pair.give(pair.d, epoch=2, generated=1, source=1)
    pair.until(lambda: ("r", 2) in pair.tokens)
    first_s = pair.tokens["r", 2][0][1]
    assert first_s - begin_s == pytest.approx(PROMPT / 4000 + 3 * NETWORK.latency_s, abs=0.05)
    assert pair.computed == PROMPT
    assert not pair.taken()


def test_transfers_share_a_link() -> None:
    pair = Pair()
    pair.give(pair.p, budget=1)
    pair.until(pair.yields)
    pair.drop()
    begin_s = pair.events.now
    links = pair.d._links
    assert links is not None
    for number in range(3):
        other = RequestKey("t", f"other{number}")
        pair.d._fetch(other, pair.origin(0), 60.0)
    assert all(pair.d.fetches[RequestKey("t", f"other{n}")].epoch == 0 for n in range(3))
    end_s = pair.until(lambda: all(fetch.is_over for fetch in pair.d.fetches.values()))
    assert end_s - begin_s == pytest.approx(3 * PROMPT / 4000, rel=0.1)


def test_a_prefix_is_fetched_and_only_what_is_behind_it_computed() -> None:
    pair = Pair()
    pair.p.cache.hold(range(6))
    pair.give(pair.d, source=0)
    assert pair.d.must_wait(pair.d.residents[KEY])
    pair.until(lambda: ("r", 1) in pair.tokens)
    assert pair.computed == 2 * BLOCK_TOKENS
    assert pair.d.transfers.bytes == 6 * BLOCK_TOKENS


def test_what_is_here_already_is_not_sent() -> None:
    pair = Pair()
    pair.d.cache.hold(range(3))
    pair.give(pair.p, budget=1)
    pair.take()
    pair.until(pair.taken)
    pair.drop()
    pair.until(lambda: pair.d.transfers.done)
    assert pair.d.transfers.bytes == 5 * BLOCK_TOKENS


def test_a_running_request_is_followed_until_it_is_dropped() -> None:
    pair = Pair(output=5000)
    pair.give(pair.p)
    pair.until(lambda: len(pair.tokens.get(("r", 1), ())) >= 1)
    pair.take()
    pair.until(pair.taken)
    generated = pair.p.residents[KEY].generated
    pair.drop()
    pair.give(pair.d, epoch=2, generated=generated, source=1)
    pair.until(lambda: ("r", 2) in pair.tokens)
    assert pair.computed == PROMPT


@pytest.mark.parametrize("leaves_state", [False, True])
def test_a_source_that_has_nothing_ends_the_fetch_and_the_prompt_is_computed(leaves_state: bool) -> None:
    pair = Pair()
    pair.take()
    pair.until(pair.taken)
    assert pair.taken() == [(0, "no state")]
    pair.drop(leaves_state=leaves_state)
    pair.give(pair.d, epoch=2, source=1)
    pair.until(lambda: ("r", 2) in pair.tokens)
    assert pair.computed == PROMPT


def test_a_request_that_is_dropped_without_its_state_leaves_what_went_over() -> None:
    pair = Pair()
    pair.give(pair.p, budget=1)
    pair.take()
    pair.until(lambda: pair.d.fetches[KEY].here >= 3 * LEAST)
    pair.drop(leaves_state=False)
    pair.until(pair.taken)
    here, error = pair.taken()[0]
    assert (here >= 3 * LEAST, error) == (True, "no state")
    before = pair.computed
    pair.give(pair.d, epoch=2)
    pair.until(lambda: ("r", 2) in pair.tokens)
    assert pair.computed - before == PROMPT - here


def test_a_source_that_is_gone_ends_the_fetch() -> None:
    pair = Pair()
    pair.give(pair.p, budget=1)
    pair.take()
    pair.until(lambda: pair.d.fetches[KEY].here)
    del pair.workers["p"]
    pair.until(pair.taken)
    assert pair.taken()[0][1] == "source gone"


def test_a_request_loses_patience_with_a_link_that_stands_still() -> None:
    pair = Pair(Network(bytes_per_s=1.0, latency_s=0.01, bytes_per_token=1))
    pair.give(pair.p, budget=1)
    pair.until(pair.yields)
    pair.drop()
    begin_s = pair.events.now
    pair.give(pair.d, epoch=2, generated=1, source=1)
    pair.until(lambda: ("r", 2) in pair.tokens)
    assert pair.tokens["r", 2][0][1] - begin_s == pytest.approx(2.0 + PROMPT / 1000, rel=0.1)
    assert pair.d.transfers.failed == 1


def test_a_state_that_takes_too_long_is_given_up() -> None:
    pair = Pair(Network(bytes_per_s=10.0, latency_s=0.01, bytes_per_token=1))
    pair.give(pair.p, budget=1)
    pair.take(limit_ms=500)
    assert pair.until(pair.taken) == pytest.approx(0.5, abs=0.01)
    assert pair.taken() == [(0, "timeout")]


def test_a_state_that_is_not_wanted_any_more_is_not_fetched_on() -> None:
    pair = Pair(output=5000)
    pair.give(pair.p)
    pair.take()
    pair.until(lambda: pair.d.fetches[KEY].here)
    fetch = pair.d.fetches[KEY]
    for epoch, is_over in (0, False), (1, True):
        drop = worker_pb2.DropRequest(tenant="t", request_id="r", epoch=epoch)
        pair.command(pair.d, drop=drop)
        assert fetch.is_over is is_over
    assert not pair.taken()
    pair.take()
    pair.until(lambda: pair.taken() and not pair.taken()[0][1])


def test_a_worker_without_network_says_so() -> None:
    pair = Pair(network=None)
    assert not pair.p.status().HasField("kv_source")
    pair.take()
    assert pair.taken() == [(0, "unsupported")]


def test_heartbeats_tell_role_source_and_transfers() -> None:
    pair = Pair()
    pair.give(pair.p, budget=1)
    pair.take()
    pair.until(pair.taken)
    status = pair.d.beat(pair.events.now)
    assert status.role == scheduler_pb2.WORKER_ROLE_DECODE
    assert status.kv_source.worker_id == "d"
    assert status.models[0].kv_bytes_per_token == 1
    assert status.kv_transfers.under_way == 1
    assert 0 < status.kv_transfers.bytes_per_s <= 4000


def test_a_request_waits_with_patience_for_pieces_that_come_slowly() -> None:
    pair = Pair(Network(bytes_per_s=1100.0, latency_s=0.01, bytes_per_token=1))
    pair.give(pair.p, budget=1)
    pair.until(pair.yields)
    pair.drop()
    pair.give(pair.d, epoch=2, generated=1, source=1)
    pair.until(lambda: ("r", 2) in pair.tokens)
    assert pair.computed == PROMPT
    assert pair.d.transfers.failed == 0


# Blocks


def test_the_longest_unused_blocks_go_first_and_none_before_those_behind_it() -> None:
    index = BlockIndex()
    cache = BlockCache(index, "w")
    for blocks in ((1, 2, 3), (1, 4)):
        cache.hold(blocks)
        cache.release(blocks)
    assert cache.cells == 4 * BLOCK_TOKENS
    cache.shrink(2 * BLOCK_TOKENS - 1)
    assert (cache.match((1, 2, 3)), cache.match((1, 4))) == (1, 2)
    cache.shrink(10 * BLOCK_TOKENS)
    assert (cache.cells, len(index)) == (0, 0)


def test_blocks_that_a_request_holds_stay() -> None:
    cache = BlockCache(BlockIndex(), "w")
    cache.hold((1, 2))
    cache.hold((1, 3))
    cache.release((1, 2))
    cache.shrink(10 * BLOCK_TOKENS)
    assert (cache.match((1, 2)), cache.match((1, 3)), cache.cells) == (1, 2, 0)


def test_the_index_names_those_that_have_most() -> None:
    index = BlockIndex(most=2)
    for worker_id, blocks in (("a", (1,)), ("b", (1, 2, 3)), ("c", (1, 2))):
        BlockCache(index, worker_id).hold(blocks)
    assert index.longest((1, 2, 3, 4)) == {"b": 3, "c": 2}
    assert index.longest((9,)) == {}


# Figures


def test_the_longest_tenth_of_gaps_is_what_is_limited() -> None:
    met = Met(TraceRequest(0.0, 1, 1), Arrival("r", "t", 0, 0.0, 1, 1, 1))
    assert met.slow_gap_s == 0.0
    met.add(1, 10.0, 0.1)
    met.add(18, 11.8, 0.1)
    met.add(2, 12.9, 0.1)  # a gap of a second, and one of 0.1
    assert sum(n for _, n in met.gaps) == 20
    assert met.slow_gap_s == pytest.approx((1.0 + 0.1) / 2)


def test_every_request_is_served_whatever_the_roles() -> None:
    requests = [
        TraceRequest(0.2 * n, 3000 + 100 * n, 30, tuple(range(10 * n, 10 * n - (-3000 - 100 * n) // 512 + 1)))
        for n in range(20)
    ]
    for shape in (Shape(), Shape(0.5, 12.5)):
        world = RolesWorld(shape.setup(4), requests).run_for(60.0)
        assert all(met.arrival.generated == 30 for met in world.met.values())
        assert not any(worker.residents or worker.fetches for worker in world.ends.values())


def test_a_fleet_that_is_asked_for_more_than_it_can_do_is_found_out() -> None:
    trace = [TraceRequest(0.1 * n, 5000, 50, tuple(range(100 * n, 100 * n + 10))) for n in range(400)]
    study = Study(trace, seconds=60.0, speed=1.0)
    alone = A800.service_s(5000, 50)
    assert study.run(Shape(), 4, 0.3 * 4 / alone).is_done
    assert not study.run(Shape(), 4, 3.0 * 4 / alone).is_done
    found = study.capacity(Shape(), 4, 4 / alone)
    assert found is not None
    assert 0.3 / alone < found.rate / 4 < 1.2 / alone


@pytest.mark.skipif(
    not mooncake.CONVERSATION.exists(), reason=f"{mooncake.CONVERSATION} is not there: see ../shared/data"
)
def test_a_quick_run_tells_capacity_and_hits(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--quick"]) == 0
    told = capsys.readouterr().out
    assert "unified" in told
    assert "% prefill" in told
    assert "hit ÷ ideal" in told


def test_a_trace_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--trace", "absent.jsonl"]) == 1
    assert "absent.jsonl" in capsys.readouterr().err
