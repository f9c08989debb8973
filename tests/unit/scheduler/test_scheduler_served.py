"""Shares of tenants over several partitions, each with a leader and counters of its own."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.errors import InvalidArgument
from inferflux.scheduler.core.lifecycle.checks import check_service
from inferflux.scheduler.core.order.shares import TenantShares
from inferflux.scheduler.core.order.tenant_service import ServedElsewhere, TenantService
from inferflux.v1 import scheduler_pb2

TENANTS = ("a", "b", "c")


def test_the_first_that_is_received_counts_nothing_and_then_what_was_added() -> None:
    elsewhere = ServedElsewhere()
    assert elsewhere.take("0-of-2", 5, {"a": 100.0}) == {}
    assert elsewhere.take("0-of-2", 5, {"a": 130.0, "b": 7.0}) == {"a": 30.0, "b": 7.0}
    assert elsewhere.take("0-of-2", 5, {"a": 130.0, "b": 7.0}) == {}


def test_a_later_leader_counts_from_zero_and_an_earlier_one_no_more() -> None:
    elsewhere = ServedElsewhere()
    elsewhere.take("0-of-2", 5, {"a": 100.0})
    assert elsewhere.take("0-of-2", 6, {"a": 40.0}) == {"a": 40.0}
    assert elsewhere.take("0-of-2", 5, {"a": 900.0}) == {}
    assert elsewhere.take("0-of-2", 6, {"a": 41.0}) == {"a": 1.0}


def test_a_tenant_that_was_left_out_of_a_message_is_not_counted_twice() -> None:
    elsewhere = ServedElsewhere()
    elsewhere.take("0-of-2", 5, {})
    assert elsewhere.take("0-of-2", 5, {"a": 10.0}) == {"a": 10.0}
    assert elsewhere.take("0-of-2", 5, {"b": 20.0}) == {"b": 20.0}
    assert elsewhere.take("0-of-2", 5, {"a": 12.0, "b": 20.0}) == {"a": 2.0}


Step = tuple[str, str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["serve", "publish", "succeed"]), st.sampled_from(TENANTS), st.integers(1, 50)),
    max_size=80,
)


@given(STEPS)
def test_whatever_is_lost_all_service_is_counted_once_in_the_end(steps: list[Step]) -> None:
    """One leader serves and publishes, others succeed it, and a leader elsewhere counts.

    What was not published when another one succeeded is not counted."""
    elsewhere, service, term = ServedElsewhere(), TenantService(), 1
    elsewhere.take("0-of-2", term, {})
    counted: Counter[str] = Counter()
    published: Counter[str] = Counter()
    unpublished: Counter[str] = Counter()

    def publish() -> None:
        for tenant, cost in elsewhere.take("0-of-2", term, service.most_served()).items():
            counted[tenant] += round(cost)
        published.update(unpublished)
        unpublished.clear()

    for what, tenant, tokens in steps:
        if what == "serve":
            service.charge(tenant, service.counters.get(tenant, 0.0), tokens)
            unpublished[tenant] += tokens
        elif what == "publish":
            publish()
        elif what == "succeed":
            service, term = TenantService(), term + 1
            unpublished.clear()
    publish()
    assert counted == published


def rounds(*, is_shared: bool) -> Counter[str]:
    """Two partitions serve a token at a time: `both` has requests waiting in each, `a` and `b` in one."""
    served: Counter[str] = Counter()
    sides = []
    for name, tenants in (("0-of-2", ("both", "a")), ("1-of-2", ("both", "b"))):
        service = TenantService()
        shares = TenantShares(service=service)
        for tenant in tenants:
            shares.enter(tenant)
        sides.append((name, service, shares, ServedElsewhere()))
    for step in range(3000):
        for _, _, shares, _ in sides:
            first = shares.first()
            assert first is not None
            served[first] += 1
            shares.charge(first, 1, 0)
        if is_shared and step % 10 == 0:
            for name, service, _, _ in sides:
                for other, counting, _, elsewhere in sides:
                    if other != name:
                        counting.charge_elsewhere(elsewhere.take(name, 1, service.most_served()))
    return served


def test_a_tenant_of_two_partitions_gets_as_much_as_others_and_twice_as_much_without_the_exchange() -> None:
    alone, shared = rounds(is_shared=False), rounds(is_shared=True)
    assert alone["both"] == pytest.approx(2 * alone["a"], rel=0.02)
    assert shared["both"] == pytest.approx(shared["a"], rel=0.02)
    assert shared["both"] == pytest.approx(shared["b"], rel=0.02)


def test_a_tenant_that_was_served_elsewhere_owes_it_when_it_comes() -> None:
    service = TenantService()
    shares = TenantShares(service=service)
    shares.enter("here")
    shares.charge("here", 10, 0)
    service.charge_elsewhere({"there": 25.0})
    shares.enter("there")
    assert shares.counter("there") == 35.0
    assert shares.first() == "here"


class EagerShares(TenantShares):
    """Sorts a tenant in with every change of its counter, whether the queue is looked at or not."""

    def sort(self, tenant: str) -> None:
        super().sort(tenant)
        self._sort_changed()


class WalkingService(TenantService):
    """Asks every queue for every tenant, whether it waits there or not."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: list[TenantShares] = []
        self.inside: dict[TenantShares, set[str]] = {}

    def enter(self, tenant: str, queue: TenantShares) -> None:
        self.inside.setdefault(queue, set()).add(tenant)

    def leave(self, tenant: str, queue: TenantShares) -> None:
        self.inside[queue].remove(tenant)

    def set(self, tenant: str, counter: float) -> None:
        self.counters[tenant] = counter
        for queue in self.queues:
            queue.sort(tenant)

    def is_active(self, tenant: str) -> bool:
        return any(tenant in tenants for tenants in self.inside.values())

    def _floor(self) -> float:
        active = [counter for tenant, counter in self.counters.items() if self.is_active(tenant)]
        return min(active or self.counters.values(), default=0.0)


QUEUES = 3
Move = tuple[str, int, str, int]
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["enter", "leave", "charge", "elsewhere", "take over"]),
        st.integers(0, QUEUES - 1),
        st.sampled_from(["a", "b", "c", "d"]),
        st.integers(1, 20),
    ),
    max_size=60,
)


class Side:
    """Queues of one leader after the other, which share a service of one kind."""

    def __init__(self, kind: type[TenantService]) -> None:
        self._kind = kind
        self.begin()

    def begin(self, written: bytes = b"{}") -> None:
        self.service = self._kind()
        shares = EagerShares if self._kind is WalkingService else TenantShares
        self.queues = [shares({"b": 2.0}, self.service) for _ in range(QUEUES)]
        if isinstance(self.service, WalkingService):
            self.service.queues = self.queues
        self.service.restore(written)
        self.waiting: set[tuple[int, str]] = set()

    def move(self, what: str, queue: int, tenant: str, tokens: int) -> None:
        is_waiting = (queue, tenant) in self.waiting
        if what == "enter" and not is_waiting:
            self.queues[queue].enter(tenant, is_lifted=tokens > 5)
            self.waiting.add((queue, tenant))
        elif what == "leave" and is_waiting:
            self.queues[queue].leave(tenant)
            self.waiting.remove((queue, tenant))
        elif what == "charge":
            self.queues[queue].charge(tenant, tokens, 1)
        elif what == "elsewhere":
            self.service.charge_elsewhere({tenant: float(tokens)})
        elif what == "take over":
            self.begin(self.service.encode())

    def order(self, queue: int) -> tuple[object, ...]:
        shares = self.queues[queue]
        return (
            shares.first(),
            [shares.position(tenant) for tenant in "abcd"],
            shares.floor,
            self.service.counters,
        )


@given(MOVES)
def test_tenants_stand_in_the_same_order_however_few_queues_are_sorted_and_however_late(
    moves: list[Move],
) -> None:
    one, other = Side(TenantService), Side(WalkingService)
    for move in moves:
        one.move(*move)
        other.move(*move)
        if move[3] % 3 == 0:  # now and then a queue is looked at, and so sorted
            assert one.order(move[1]) == other.order(move[1])
    assert [one.order(queue) for queue in range(QUEUES)] == [other.order(queue) for queue in range(QUEUES)]
    assert one.service.encode() == other.service.encode()


@pytest.mark.parametrize(
    ("tenant", "served", "field"),
    [
        ("a b", 1.0, "tenants[0].tenant"),
        ("a", -1.0, "tenants[0].served"),
        ("a", float("nan"), "tenants[0].served"),
        ("a", float("inf"), "tenants[0].served"),
    ],
)
def test_what_cannot_be_counted_is_refused(tenant: str, served: float, field: str) -> None:
    service = scheduler_pb2.PartitionService(
        partition="0-of-2", tenants=[scheduler_pb2.TenantService(tenant=tenant, served=served)]
    )
    with pytest.raises(InvalidArgument) as caught:
        check_service(service)
    assert caught.value.field == field
