"""A file is read once for all fetches of it. A read without a fetch is cancelled, or its state is kept."""

from __future__ import annotations

from concurrent.futures import Future

from harness.kv_states import state_of

from inferflux.worker.engine.tiers.disk import Read
from inferflux.worker.engine.tiers.kept import Kept, Moves
from inferflux.worker.engine.tiers.rates import Tier
from inferflux.worker.engine.tiers.reads import Fetch, Match, Reads
from inferflux.worker.engine.tiers.space import Order


class Waiting:
    """A preempted sequence; none of these tests has one."""

    @property
    def order(self) -> Order:
        return 0.0, 0


class Reader:
    """Reads when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Future[Read]]] = []

    def read(self, name: str, n_bytes: int) -> Future[Read]:  # noqa: ARG002
        self.asked.append((name, Future()))
        return self.asked[-1][1]


READ = Read(state_of(range(64)), 0.5)


def kept(name: str) -> Kept[Waiting]:
    return Kept(state_of(range(64)).header, name=name)


def begun(reads: Reads[Waiting], reader: Reader, of: Kept[Waiting]) -> Fetch[Waiting]:
    fetch = Fetch(Match(of, 64, 1.0), Tier.DISK, 64)
    reads.begin(fetch, reader)
    return fetch


def test_one_read_serves_all_fetches_of_a_state() -> None:
    reads, reader, state = Reads[Waiting](), Reader(), kept("a")
    first, second = begun(reads, reader, state), begun(reads, reader, state)
    other = begun(reads, reader, kept("b"))
    assert [name for name, _ in reader.asked] == ["a", "b"]
    reader.asked[0][1].set_result(READ)
    assert (first.is_done, second.is_done, other.is_done) == (True, True, False)
    assert reads.finish(first) is READ
    assert state in reads
    assert reads.finish(second) is READ
    assert state not in reads


def test_what_is_in_host_memory_is_not_read() -> None:
    reads = Reads[Waiting]()
    fetch = Fetch(Match(kept("a"), 64, 1.0), Tier.HOST, 64)
    assert fetch.is_done
    assert reads.finish(fetch) is None
    reads.abandon(fetch, is_late=True)
    assert not reads.is_stalled


def test_a_read_without_a_fetch_is_cancelled_before_it_begins_and_taken_after() -> None:
    reads, reader = Reads[Waiting](), Reader()
    waits, runs = begun(reads, reader, kept("a")), begun(reads, reader, kept("b"))
    reader.asked[1][1].set_running_or_notify_cancel()
    for fetch in (waits, runs):
        reads.abandon(fetch)
    assert reader.asked[0][1].cancelled()
    assert reads.take_abandoned() == []
    reader.asked[1][1].set_result(READ)
    assert reads.take_abandoned() == [(runs.match.kept, READ)]
    assert reads.take_abandoned() == []


def test_reads_are_stalled_until_a_late_one_is_over() -> None:
    reads, reader, state = Reads[Waiting](), Reader(), kept("a")
    late, patient = begun(reads, reader, state), begun(reads, reader, state)
    reads.abandon(late, is_late=True)
    assert reads.is_stalled
    assert state in reads
    reader.asked[0][1].set_result(READ)
    assert reads.finish(patient) is READ
    assert reads.take_abandoned() == [(state, READ)]
    assert not reads.is_stalled


def test_a_late_read_that_the_last_one_cancels_brings_nothing() -> None:
    reads, reader, state = Reads[Waiting](), Reader(), kept("a")
    for fetch in [begun(reads, reader, state), begun(reads, reader, state)]:
        reads.abandon(fetch, is_late=True)
    assert reader.asked[0][1].cancelled()
    assert reads.take_abandoned() == []
    assert not reads.is_stalled


def test_all_that_went_is_told_though_more_has_moved_than_is_told_at_once() -> None:
    moves = Moves[Waiting]()
    states = [kept(name) for name in "abcd"]
    for state in states:
        moves.came(state)
    assert [state.number for state in states] == [1, 2, 3, 4]
    moves.went(states[1])
    assert moves.take(2) == [states[1], states[0], states[2]]
    assert moves.are_any
    moves.moved(states[0])
    assert moves.take(9) == [states[3], states[0]]
    assert not moves.are_any
    moves.all_moved(states[:2])
    assert moves.take(9) == states[:2]
