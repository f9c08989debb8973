"""Who leads: one at most, whatever is delayed or lost, and one in the end."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field

import pytest
from harness.profiles import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.common.contract import terms
from inferflux.scheduler.core.lease.lease import Lease, LeaseRecord, LeaseTimes, Read, Role, Write

TIMES = LeaseTimes(1.5)
UNIX_MS = 1_700_000_000_000


@dataclass
class Store:
    """A key that is written only over the revision that was seen."""

    value: bytes | None = None
    revision: int = 0
    revisions: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def write(self, todo: Write) -> int | None:
        if todo.revision != self.revision:
            return None
        self.value, self.revision = todo.record.encode(), next(self.revisions)
        return self.revision

    def lose(self) -> None:
        self.value, self.revision = None, 0

    @property
    def record(self) -> LeaseRecord:
        assert self.value is not None
        return LeaseRecord.decode(self.value)


@dataclass
class World:
    """Schedulers, a store that answers at once, and a clock."""

    now: float = 100.0
    unix_ms: int = UNIX_MS
    store: Store = field(default_factory=Store)

    def step(self, lease: Lease) -> None:
        """Do whatever is due now."""
        while (todo := lease.next(self.now, self.unix_ms)) is not None:
            if isinstance(todo, Read):
                lease.on_read(self.store.value, self.store.revision, self.now)
            else:
                lease.on_written(self.store.write(todo), self.now)

    def run(self, *leases: Lease, for_s: float) -> None:
        """Let all of them do what is due, as it falls due."""
        end_s = self.now + for_s
        while True:
            for lease in leases:
                self.step(lease)
            due_s = min(lease.due_s for lease in leases)
            if due_s > end_s:
                self.now = end_s
                return
            self.now = max(self.now, due_s)


def made(name: str, incarnation: str = "") -> Lease:
    return Lease(name, incarnation or name, TIMES)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def leader(world: World) -> Lease:
    lease = made("a")
    world.step(lease)
    return lease


def test_a_lone_scheduler_leads_at_once(world: World, leader: Lease) -> None:
    assert leader.role is Role.LEADER
    assert leader.is_held(world.now)
    assert (leader.term, leader.holder) == (UNIX_MS, "a")


def test_a_leader_keeps_its_term_for_as_long_as_it_renews(world: World, leader: Lease) -> None:
    other = made("b")
    world.run(leader, other, for_s=60)
    assert leader.is_held(world.now)
    assert leader.term == UNIX_MS
    assert other.role is Role.STANDBY
    assert other.has_seen_leader
    assert other.holder == "a"


def test_a_standby_leads_once_the_lease_has_stood_unchanged_and_not_before(
    world: World, leader: Lease
) -> None:
    other = made("b")
    world.run(leader, other, for_s=5)
    world.run(other, for_s=TIMES.duration_s - TIMES.renew_s - 0.01)
    assert not other.is_leader
    world.run(other, for_s=TIMES.renew_s + TIMES.poll_s + 0.01)
    assert other.is_held(world.now)
    assert other.term > leader.term
    assert not leader.is_held(world.now)


def test_a_released_lease_is_taken_at_the_next_look(world: World, leader: Lease) -> None:
    other = made("b")
    world.run(leader, other, for_s=5)
    leader.leave(world.now, claim_from_s=float("inf"))
    assert not leader.is_held(world.now)
    world.run(leader, other, for_s=TIMES.poll_s)
    assert other.is_held(world.now)
    assert leader.role is Role.STANDBY


def test_a_lapsed_leader_goes_on_in_its_term_when_no_other_took_over(world: World, leader: Lease) -> None:
    world.now += 60
    assert leader.is_leader
    assert not leader.is_held(world.now)
    world.step(leader)
    assert leader.is_held(world.now)
    assert leader.term == UNIX_MS


def test_a_lapsed_leader_stands_by_when_another_took_over(world: World, leader: Lease) -> None:
    other = made("b")
    world.run(other, for_s=5)
    assert other.is_held(world.now)
    world.step(leader)
    assert leader.role is Role.STANDBY
    assert leader.holder == "b"
    world.run(leader, other, for_s=30)
    assert other.is_held(world.now)


def test_a_restarted_scheduler_of_the_same_name_leads_at_once(world: World, leader: Lease) -> None:
    again = made("a", "another incarnation")
    world.step(again)
    assert again.is_held(world.now)
    assert again.term > leader.term


def test_one_that_is_restarted_leads_at_once_although_it_is_not_known_yet_who_is_to_lead(
    world: World, leader: Lease
) -> None:
    restarted = made("a", "a2")
    restarted.want(False)
    world.step(restarted)
    assert restarted.is_held(world.now)
    assert restarted.term > leader.term


def test_a_name_used_twice_does_not_go_back_and_forth(world: World, leader: Lease) -> None:
    again = made("a", "another incarnation")
    world.run(leader, again, for_s=30)
    assert again.is_held(world.now)
    assert again.term == UNIX_MS + 1


def test_a_restarted_scheduler_of_a_new_name_waits_the_lease_out(world: World, leader: Lease) -> None:
    again = made("c")
    world.run(again, for_s=TIMES.duration_s - 0.01)
    assert not again.is_leader
    assert not again.has_seen_leader
    world.run(again, for_s=TIMES.poll_s)
    assert again.is_held(world.now)


def test_the_term_rises_although_the_clock_went_back(world: World, leader: Lease) -> None:
    world.unix_ms -= 3_600_000
    leader.leave(world.now, claim_from_s=float("inf"))
    other = made("b")
    world.run(leader, other, for_s=1)
    assert other.term == leader.term + 1


def test_the_term_rises_although_the_store_was_lost(world: World, leader: Lease) -> None:
    world.store.lose()
    world.unix_ms += 5_000
    other = made("b")
    world.step(other)
    assert other.term == leader.term + 5_000


def test_a_leader_writes_a_lost_lease_again(world: World, leader: Lease) -> None:
    other = made("b")
    world.run(leader, other, for_s=5)
    world.store.lose()
    world.run(leader, other, for_s=30)
    assert leader.is_held(world.now)
    assert world.store.record.term == leader.term == UNIX_MS


def test_a_leader_that_workers_have_outrun_leads_again_in_a_higher_term(world: World, leader: Lease) -> None:
    leader.on_term(UNIX_MS + 77, world.now)
    assert not leader.is_held(world.now)
    world.step(leader)
    assert leader.is_held(world.now)
    assert leader.term == UNIX_MS + 78


@pytest.mark.parametrize("term", [0, UNIX_MS - 1, UNIX_MS, 2**64 - 1])
def test_a_leader_stays_when_workers_know_its_term_an_older_one_or_nonsense(
    world: World, leader: Lease, term: int
) -> None:
    leader.on_term(term, world.now)
    assert leader.is_held(world.now)


@pytest.mark.parametrize(
    "value",
    [
        b"[" * 200_000,
        b'{"holder": ' + b"[" * 480,
        b'{"holder": "x", "incarnation": "y", "term": 1, "beat": ' + b"9" * 400 + b"}",
        json.dumps({"holder": "x" * 600, "incarnation": "y", "term": 1, "beat": 1}).encode(),
        json.dumps({"holder": "x", "incarnation": "y", "term": -1, "beat": 1}).encode(),
        json.dumps({"holder": "x", "incarnation": "y", "term": 1, "beat": 2**63}).encode(),
        b"\xff",
        b"",
    ],
)
def test_what_is_no_record_has_an_unknown_holder(value: bytes) -> None:
    assert LeaseRecord.decode(value) == LeaseRecord(holder="unknown")


def test_a_term_far_beyond_the_present_is_not_believed_in_the_store_either(
    world: World, leader: Lease
) -> None:
    """Its successor would have a term that no worker believes."""
    forged = LeaseRecord("forger", "f", 2**63 - 1, 1)
    world.store.write(Write(forged, world.store.revision))
    world.run(leader, for_s=2 * TIMES.duration_s)
    assert leader.is_held(world.now)
    assert leader.term < terms.latest(world.unix_ms)


def test_a_term_of_a_clock_that_is_hours_ahead_is_believed(world: World, leader: Lease) -> None:
    ahead = world.unix_ms + 6 * 3_600_000
    leader.on_term(ahead, world.now)
    world.run(leader, for_s=1)
    assert leader.term == ahead + 1


def test_who_is_asked_to_pause_claims_nothing_until_then(world: World, leader: Lease) -> None:
    leader.leave(world.now, claim_from_s=world.now + 10)
    world.run(leader, for_s=9.9)
    assert not leader.is_leader
    world.run(leader, for_s=0.5)
    assert leader.is_leader


def test_leaving_while_the_claim_is_under_way_gives_the_lease_back(world: World) -> None:
    lease = made("a")
    assert lease.next(world.now, UNIX_MS) == Read()
    lease.on_read(None, 0, world.now)
    claim = lease.next(world.now, UNIX_MS)
    assert isinstance(claim, Write)
    lease.leave(world.now, claim_from_s=float("inf"))
    lease.on_written(world.store.write(claim), world.now)
    assert not lease.is_held(world.now)
    world.step(lease)
    assert lease.role is Role.STANDBY
    assert world.store.record.holder == ""


def test_leaving_while_a_renewal_is_under_way_gives_the_lease_back(world: World, leader: Lease) -> None:
    world.now += TIMES.renew_s
    renewal = leader.next(world.now, UNIX_MS)
    assert isinstance(renewal, Write)
    leader.leave(world.now, claim_from_s=float("inf"))
    leader.on_written(world.store.write(renewal), world.now)
    world.step(leader)
    assert leader.role is Role.STANDBY
    assert world.store.record.holder == ""


def test_a_renewal_counts_from_when_it_was_sent_and_not_from_its_answer(world: World, leader: Lease) -> None:
    world.now += TIMES.renew_s
    renewal = leader.next(world.now, UNIX_MS)
    assert isinstance(renewal, Write)
    leader.on_written(world.store.write(renewal), world.now + TIMES.answer_s)
    assert leader.is_held(world.now + TIMES.lapse_s - 0.01)
    assert not leader.is_held(world.now + TIMES.lapse_s)


def test_a_renewal_whose_answer_was_lost_counts_from_when_it_was_sent(world: World, leader: Lease) -> None:
    world.now += TIMES.renew_s
    sent_s = world.now
    renewal = leader.next(world.now, UNIX_MS)
    assert isinstance(renewal, Write)
    world.store.write(renewal)
    world.now += TIMES.answer_s
    leader.on_unanswered(world.now)
    world.now = leader.due_s
    assert leader.next(world.now, UNIX_MS) == Read()
    leader.on_read(world.store.value, world.store.revision, world.now)
    assert leader.is_held(sent_s + TIMES.lapse_s - 0.01)
    assert not leader.is_held(sent_s + TIMES.lapse_s)


@pytest.mark.parametrize(
    "value",
    [b"", b"\xff", b"{}", b"[]", b"7", b'{"holder": 1}']
    + [
        b'{"holder":"x","incarnation":"y","beat":1,"term":%s}' % t
        for t in (b"-1", b"1e400", b'"z"', b"1" * 40)
    ],
)
def test_a_foreign_value_is_waited_out_like_a_lease(world: World, value: bytes) -> None:
    world.store.value, world.store.revision = value, next(world.store.revisions)
    lease = made("a")
    world.run(lease, for_s=TIMES.duration_s - 0.01)
    assert not lease.is_leader
    world.run(lease, for_s=TIMES.poll_s + 0.01)
    assert lease.is_held(world.now)
    assert lease.term == UNIX_MS


def test_a_record_reads_as_it_was_written() -> None:
    record = LeaseRecord("a", "b", 7, 8)
    assert LeaseRecord.decode(record.encode()) == record


# Whatever happens

TICK_S = 0.05
ENDLESS_S = 1000.0


@dataclass
class Message:
    """On its way to the store, and its answer on the way back."""

    todo: Read | Write
    arrives_s: float
    answered_s: float
    answer: tuple[bytes | None, int] | int | None = None
    is_done: bool = False


@dataclass
class Candidate:
    """A scheduler; `asked` is what it waits for, since when."""

    name: str
    lease: Lease
    asked: Message | None = None
    asked_s: float = 0.0


@dataclass(frozen=True)
class Fault:
    """From `start_s` on for `length_s`, a process stands still, or what it sends is held up.

    A process that crashes starts again at the end, under its name or a new one. What is sent while a process
    is cut off arrives when that ends, or never.
    """

    kind: str
    candidate: int
    start_s: float
    length_s: float

    def covers(self, now: float) -> bool:
        return self.start_s <= now < self.start_s + self.length_s


class Simulation:
    """Schedulers, a store and a network, tick by tick."""

    def __init__(self, names: int, delays_s: list[float], faults: list[Fault]) -> None:
        self.now = 0.0
        self.store = Store()
        self.incarnations = itertools.count()
        self.delays_s = itertools.cycle(delays_s)
        self.faults = faults
        self.candidates = [self.start(f"s{i}") for i in range(names)]
        self.network: list[Message] = []
        self.terms: list[int] = []

    def start(self, name: str) -> Candidate:
        return Candidate(name, Lease(name, f"{name}.{next(self.incarnations)}", TIMES))

    def run(self, until_s: float) -> None:
        while self.now < until_s:
            self.carry()
            for index in range(len(self.candidates)):
                self.turn(index)
            self.check()
            self.now += TICK_S

    def carry(self) -> None:
        """What is due at the store, in the order of arrival."""
        for message in sorted(self.network, key=lambda m: m.arrives_s):
            if message.arrives_s > self.now or message.is_done:
                continue
            message.is_done = True
            if isinstance(message.todo, Read):
                message.answer = self.store.value, self.store.revision
            else:
                message.answer = self.store.write(message.todo)
        self.network = [m for m in self.network if not m.is_done]

    def turn(self, index: int) -> None:
        candidate = self.candidates[index]
        kinds = {f.kind for f in self.faults if f.candidate == index and f.covers(self.now)}
        if kinds & {"crash", "crash and new name"}:
            again = candidate.name if "crash" in kinds else f"s{index}-{next(self.incarnations)}"
            self.candidates[index] = self.start(again)
            return
        if "pause" in kinds:
            return
        if "leave" in kinds and candidate.lease.is_leader:
            candidate.lease.leave(self.now)
        if (asked := candidate.asked) is None:
            self.ask(candidate, index)
        elif asked.is_done and asked.answered_s <= self.now:
            candidate.asked = None
            if isinstance(asked.answer, tuple):
                candidate.lease.on_read(*asked.answer, self.now)
            else:
                candidate.lease.on_written(asked.answer, self.now)
        elif self.now - candidate.asked_s > TIMES.answer_s:
            candidate.asked = None
            candidate.lease.on_unanswered(self.now)

    def ask(self, candidate: Candidate, index: int) -> None:
        todo = candidate.lease.next(self.now, 0)
        if todo is None:
            return
        arrives_s = self.now + next(self.delays_s)
        for fault in self.faults:
            if fault.candidate == index and fault.covers(self.now):
                if fault.kind == "late":
                    arrives_s += fault.start_s + fault.length_s - self.now
                elif fault.kind == "lost":
                    arrives_s = ENDLESS_S
        candidate.asked = Message(todo, arrives_s, arrives_s + next(self.delays_s))
        candidate.asked_s = self.now
        self.network.append(candidate.asked)

    def check(self) -> None:
        holders = [c.lease for c in self.candidates if c.lease.is_held(self.now)]
        assert len(holders) <= 1
        for holder in holders:
            if not self.terms or self.terms[-1] != holder.term:
                assert not self.terms or holder.term > self.terms[-1]
                self.terms.append(holder.term)


FAULTS = st.builds(
    Fault,
    kind=st.sampled_from(["pause", "late", "lost", "crash", "crash and new name", "leave"]),
    candidate=st.integers(0, 2),
    start_s=st.integers(0, 300).map(lambda n: n * TICK_S),
    length_s=st.sampled_from([0.1, 0.5, 1.0, 1.5, 2.0, 4.0]),
)
DELAYS_S = st.lists(st.sampled_from([0.0, 0.0, 0.05, 0.1, 0.25, 1.0]), min_size=1, max_size=40)


@settings(max_examples=examples(500))
@given(names=st.integers(1, 3), delays_s=DELAYS_S, faults=st.lists(FAULTS, max_size=8))
def test_no_two_ever_hold_the_lease_and_one_does_in_the_end(
    names: int, delays_s: list[float], faults: list[Fault]
) -> None:
    simulation = Simulation(names, delays_s, faults)
    simulation.run(until_s=20)
    simulation.delays_s = itertools.cycle([0.0])
    simulation.run(until_s=26)
    assert sum(c.lease.is_held(simulation.now) for c in simulation.candidates) == 1
