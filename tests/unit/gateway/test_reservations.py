"""What a gateway has reserved is renewed while it is held, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from harness.gateway import until

from inferflux.common.contract.errors import Unavailable
from inferflux.gateway.policy.reservations import Reservations
from inferflux.v1 import policy_pb2


class Policy:
    """Notes what it is asked to renew, in calls."""

    def __init__(self) -> None:
        self.renewals: list[list[str]] = []
        self.lease_ms = 30
        self.is_away = False

    async def reserve(self, request: policy_pb2.ReserveRequest) -> policy_pb2.ReserveResponse:
        del request
        return policy_pb2.ReserveResponse(lease_ms=self.lease_ms)

    async def renew(self, requests: Sequence[policy_pb2.ReservedRequest]) -> policy_pb2.RenewResponse:
        self.renewals.append([request.request_id for request in requests])
        if self.is_away:
            raise Unavailable("away")
        return policy_pb2.RenewResponse(lease_ms=self.lease_ms)


@asynccontextmanager
async def running(policy: Policy) -> AsyncIterator[Reservations]:
    reservations = Reservations(policy)
    task = asyncio.create_task(reservations.run())
    yield reservations
    task.cancel()


async def reserve(reservations: Reservations, *request_ids: str) -> None:
    for request_id in request_ids:
        request = policy_pb2.ReserveRequest(tenant="acme", request_id=request_id, attempt_id="a")
        await reservations.reserve(request)


async def test_what_is_held_is_renewed_again_and_again_until_it_is_dropped() -> None:
    policy = Policy()
    async with running(policy) as reservations:
        await reserve(reservations, "r1", "r2")
        await until(lambda: policy.renewals.count(["r1", "r2"]) >= 2)
        reservations.drop("acme", "r1", "a")
        reservations.drop("acme", "r1", "a")
        await until(lambda: ["r2"] in policy.renewals)


async def test_what_was_not_reserved_is_not_renewed() -> None:
    policy = Policy()
    async with running(policy) as reservations:
        policy.lease_ms = 0
        await reserve(reservations, "unlimited")
        policy.lease_ms = 30
        await reserve(reservations, "limited")
        await until(lambda: bool(policy.renewals))
    assert policy.renewals[0] == ["limited"]


async def test_what_is_taken_over_is_renewed_at_once_and_alone() -> None:
    policy = Policy()
    policy.lease_ms = 3_600_000
    async with running(policy) as reservations:
        await reserve(reservations, "r1")
        reservations.take_over("acme", "r2", "a")
        await until(lambda: bool(policy.renewals))
        reservations.take_over("acme", "r3", "a")
        await until(lambda: len(policy.renewals) == 2)
    assert policy.renewals == [["r2"], ["r3"]]


async def test_a_gateway_that_reserved_nothing_yet_renews_what_it_takes_over() -> None:
    policy = Policy()
    async with running(policy) as reservations:
        reservations.take_over("acme", "r1", "a")
        await until(lambda: len(policy.renewals) >= 3)


async def test_what_two_hold_is_renewed_until_both_have_dropped_it() -> None:
    policy = Policy()
    async with running(policy) as reservations:
        await reserve(reservations, "r1", "r2")
        reservations.take_over("acme", "r1", "a")
        reservations.drop("acme", "r1", "a")
        await until(lambda: policy.renewals.count(["r1", "r2"]) >= 2)
        reservations.drop("acme", "r1", "a")
        await until(lambda: ["r2"] in policy.renewals)


async def test_a_policy_that_is_away_is_asked_again() -> None:
    policy = Policy()
    policy.is_away = True
    async with running(policy) as reservations:
        await reserve(reservations, "r1")
        await until(lambda: len(policy.renewals) >= 2)


async def test_many_are_renewed_in_parts() -> None:
    policy = Policy()
    async with running(policy) as reservations:
        names = [f"r{i}" for i in range(1100)]
        await reserve(reservations, *names)
        await until(lambda: len(policy.renewals) >= 3)
    assert [len(part) for part in policy.renewals[:3]] == [512, 512, 76]
    assert [name for part in policy.renewals[:3] for name in part] == names
