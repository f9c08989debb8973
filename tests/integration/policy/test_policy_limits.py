"""Limits over gRPC: set, used up, given back; and what a caller is told."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from harness.policy import PolicyProcess, bearer, refusal, until
from harness.servers import ServerProcess
from harness.starting import patched

from inferflux.common.contract.errors import InvalidArgument, from_rpc
from inferflux.policy.decide import keys
from inferflux.v1 import generation_pb2, policy_pb2

from .conftest import Running, StartPolicy


class Tenant:
    """A tenant of a test's own, with one key."""

    def __init__(self, policy: PolicyProcess, made: policy_pb2.CreateApiKeyResponse) -> None:
        self.policy, self.secret = policy, made.secret
        self.name, self.key_id = made.api_key.tenant, made.api_key.key_id

    async def admit(self) -> list[policy_pb2.RateLimitState]:
        request = policy_pb2.AdmitRequest(
            credential=self.secret, scope="inference", request_id="r", is_counted=True
        )
        return list((await self.policy.stub.Admit(request, timeout=10)).limits)

    async def reserve(
        self, request_id: str, *, prompt: int = 1, most: int = 9, model: str = "demo"
    ) -> policy_pb2.ReserveResponse:
        ids: dict[str, Any] = self._ids(request_id)
        request = policy_pb2.ReserveRequest(**ids, model=model, prompt_tokens=prompt, max_tokens=most)
        return await self.policy.stub.Reserve(request, timeout=10)  # type: ignore[no-any-return]

    async def settle(self, request_id: str, *, prompt: int = 1, completion: int = 0, **more: Any) -> None:
        usage = generation_pb2.Usage(prompt_tokens=prompt, completion_tokens=completion)
        ids: dict[str, Any] = {"model": "demo", **self._ids(request_id)}
        await self.policy.stub.Settle(policy_pb2.SettleRequest(**ids, usage=usage, outcome="stop", **more))

    async def renew(self, *request_ids: str) -> None:
        names = ("tenant", "request_id", "attempt_id")
        requests = [
            policy_pb2.ReservedRequest(**{name: self._ids(i)[name] for name in names}) for i in request_ids
        ]
        await self.policy.stub.Renew(policy_pb2.RenewRequest(requests=requests), timeout=10)

    def _ids(self, request_id: str) -> dict[str, str]:
        return {"request_id": request_id, "attempt_id": "a1", "tenant": self.name, "key_id": self.key_id}


async def tenant_of(running: Running, name: str) -> Tenant:
    return Tenant(running.policy, await running.policy.create_key(running.admin, tenant=name))


async def test_requests_of_a_minute_are_counted_per_key_and_tenant(running: Running) -> None:
    one = await tenant_of(running, "counts")
    other = await tenant_of(running, "counts")
    await running.policy.limit(running.admin, f"key:{one.key_id}", requests_per_minute=2)
    await running.policy.limit(running.admin, "tenant:counts", requests_per_minute=3)
    assert [(s.name, s.limit, s.remaining) for s in await one.admit()] == [("requests", 2, 1)]
    await one.admit()
    error = await refusal(one.admit())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    raised = from_rpc(error)
    assert raised.reason == "RATE_LIMITED"
    assert one.key_id in raised.message
    assert 0 < (raised.retry_delay_s or 0) <= 61
    assert raised.headers["x-ratelimit-remaining-requests"] == "0"
    assert [(s.limit, s.remaining) for s in await other.admit()] == [(3, 0)]
    assert "tenant counts" in from_rpc(await refusal(other.admit())).message
    assert await running.policy.used(running.admin, "tenant:counts") == {"requests_per_minute": 3}


async def test_a_call_that_is_not_counted_is_not_held_to_limits(running: Running) -> None:
    one = await tenant_of(running, "uncounted")
    await running.policy.limit(running.admin, "tenant:uncounted", requests_per_minute=1)
    await one.admit()
    for _ in range(3):
        assert not (await running.policy.admit(one.secret)).limits


async def test_tokens_are_reserved_settled_and_given_back(running: Running) -> None:
    one = await tenant_of(running, "tokens")
    await running.policy.limit(running.admin, "tenant:tokens", tokens_per_minute=100, tokens_per_day=1000)
    reserved = await one.reserve("r1", prompt=10, most=50)
    assert reserved.lease_ms > 0
    assert [(s.name, s.limit, s.remaining) for s in reserved.limits] == [("tokens", 100, 40)]
    raised = from_rpc(await refusal(one.reserve("r2", prompt=10, most=31)))
    assert raised.reason == "RATE_LIMITED"
    assert "asks for 41" in raised.message
    await one.settle("r1", prompt=10, completion=5)
    used = await running.policy.used(running.admin, "tenant:tokens")
    assert used == {"tokens_per_minute": 15, "tokens_per_day": 15}
    await one.reserve("r2", prompt=10, most=31)


async def test_reserving_and_settling_again_changes_nothing(running: Running) -> None:
    one = await tenant_of(running, "again")
    await running.policy.limit(running.admin, "tenant:again", tokens_per_minute=100, concurrent_requests=1)
    await asyncio.gather(*(one.reserve("r1") for _ in range(20)))
    assert await running.policy.used(running.admin, "tenant:again") == {
        "tokens_per_minute": 10,
        "concurrent_requests": 1,
    }
    await asyncio.gather(*(one.settle("r1", completion=3) for _ in range(20)))
    assert await running.policy.used(running.admin, "tenant:again") == {
        "tokens_per_minute": 4,
        "concurrent_requests": 0,
    }
    await one.settle("r1", completion=5)  # by another gateway, which has seen more
    assert (await running.policy.used(running.admin, "tenant:again"))["tokens_per_minute"] == 6


async def test_what_no_job_came_of_is_given_back_whole_and_counts_nowhere(running: Running) -> None:
    one = await tenant_of(running, "void")
    for subject in ("tenant:void", "model:void-model"):
        await running.policy.limit(
            running.admin, subject, tokens_per_minute=100, requests_per_minute=9, concurrent_requests=1
        )
    await one.reserve("r1", model="void-model")
    await one.settle("r1", is_void=True)
    for subject in ("tenant:void", "model:void-model"):
        assert set((await running.policy.used(running.admin, subject)).values()) == {0}


async def test_a_models_limits_are_of_all_tenants_and_of_no_other_model(running: Running) -> None:
    one, other = await tenant_of(running, "model-a"), await tenant_of(running, "model-b")
    await running.policy.limit(running.admin, "model:shared", requests_per_minute=2, concurrent_requests=2)
    await one.reserve("r1", model="shared")
    await other.reserve("r1", model="shared")
    assert "model shared" in from_rpc(await refusal(one.reserve("r2", model="shared"))).message
    assert (await one.reserve("r3", model="not-shared")).lease_ms == 0


async def test_requests_that_run_are_bounded_and_refused_before_any_work(running: Running) -> None:
    one = await tenant_of(running, "runs")
    await running.policy.limit(running.admin, "tenant:runs", concurrent_requests=2)
    await one.reserve("r1")
    await one.reserve("r2")
    for call in (one.admit(), one.reserve("r3")):
        raised = from_rpc(await refusal(call))
        assert raised.reason == "RATE_LIMITED"
        assert "2 requests at a time" in raised.message
    await one.settle("r1")
    await one.admit()
    await one.reserve("r3")


async def test_limits_of_each_hold_for_those_without_their_own(running: Running) -> None:
    one, other = await tenant_of(running, "each-a"), await tenant_of(running, "each-b")
    await running.policy.limit(running.admin, "tenant:*", concurrent_requests=1)
    try:
        await running.policy.limit(running.admin, "tenant:each-b")
        await one.reserve("r1")
        assert "tenant each-a" in from_rpc(await refusal(one.reserve("r2"))).message
        for i in range(3):
            await other.reserve(f"r{i}")
        await one.settle("r1")
    finally:
        await delete(running, "tenant:*")
    await one.reserve("r3")
    await one.reserve("r4")


async def delete(running: Running, subject: str) -> None:
    request = policy_pb2.DeleteRateLimitRequest(subject=subject)
    metadata = bearer(running.admin)
    await running.policy.stranger.DeleteRateLimit(request, metadata=metadata, timeout=10)


async def test_a_request_that_can_never_fit_is_told_so(running: Running) -> None:
    one = await tenant_of(running, "never")
    await running.policy.limit(running.admin, "tenant:never", tokens_per_minute=100)
    raised = from_rpc(await refusal(one.reserve("r1", prompt=1, most=100)))
    assert raised.reason == "REQUEST_BEYOND_LIMIT"
    assert raised.retry_delay_s is None


async def test_limits_are_listed_versioned_and_deleted(running: Running) -> None:
    first = await running.policy.limit(running.admin, "tenant:versions", tokens_per_day=5)
    assert first.version == 1
    second = await running.policy.limit(running.admin, "tenant:versions", tokens_per_day=6, version=1)
    assert second.version == 2
    error = await refusal(running.policy.limit(running.admin, "tenant:versions", tokens_per_day=7, version=1))
    assert error.code() is grpc.StatusCode.ABORTED
    request = policy_pb2.ListRateLimitsRequest()
    listed = await running.policy.stranger.ListRateLimits(request, metadata=bearer(running.admin))
    assert second in listed.rate_limits
    await delete(running, "tenant:versions")
    assert from_rpc(await refusal(delete(running, "tenant:versions"))).reason == "UNKNOWN_RATE_LIMIT"


@pytest.mark.parametrize(
    ("field", "subject", "limits"),
    [
        ("rate_limit.subject", "acme", {}),
        ("rate_limit.subject", "tenant:A", {}),
        ("rate_limit.tokens_per_day", "tenant:bad", {"tokens_per_day": 2**60}),
    ],
)
async def test_limits_that_cannot_be_are_refused_by_name(
    running: Running, field: str, subject: str, limits: dict[str, int]
) -> None:
    raised = from_rpc(await refusal(running.policy.limit(running.admin, subject, **limits)))
    assert isinstance(raised, InvalidArgument)
    assert raised.field == field


async def test_a_revoked_key_leaves_no_limits(running: Running) -> None:
    one = await tenant_of(running, "leaves-none")
    await running.policy.limit(running.admin, f"key:{one.key_id}", tokens_per_day=5)
    await running.policy.revoke(running.admin, one.key_id)
    assert from_rpc(await refusal(delete(running, f"key:{one.key_id}"))).reason == "UNKNOWN_RATE_LIMIT"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("tenant", {"tenant": "A"}),
        ("request_id", {"request_id": "a b"}),
        ("attempt_id", {"attempt_id": "a b"}),
        ("key_id", {"key_id": "mine"}),
        ("model", {"model": ""}),
        ("prompt_tokens", {"prompt_tokens": 2**31}),
        ("max_tokens", {"max_tokens": 2**31}),
    ],
)
async def test_reserve_names_the_field_that_is_wrong(
    running: Running, field: str, changes: dict[str, Any]
) -> None:
    fields = {
        "request_id": "r",
        "attempt_id": "a",
        "tenant": "acme",
        "key_id": "key_" + "0" * 16,
        "model": "m",
    }
    error = await refusal(running.policy.stub.Reserve(policy_pb2.ReserveRequest(**(fields | changes))))
    raised = from_rpc(error)
    assert isinstance(raised, InvalidArgument)
    assert raised.field == field


async def test_what_is_not_renewed_is_given_back_and_what_is_renewed_stays(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    admin = keys.generate()
    policy = await start_policy(
        private_valkey.url,
        INFERFLUX_POLICY_BOOTSTRAP_KEY=admin,
        **patched("inferflux.policy.app:_LEASE_S", 2.0),
    )
    one = Tenant(policy, await policy.create_key(admin))
    await policy.limit(admin, "tenant:acme", tokens_per_day=100, concurrent_requests=2)
    assert (await one.reserve("of-the-dead")).lease_ms == 2000
    await one.reserve("of-the-living")

    async def is_given_back() -> bool:
        await one.renew("of-the-living", "never-reserved")
        used = await policy.used(admin, "tenant:acme")
        return used == {"tokens_per_day": 10, "concurrent_requests": 1}

    await until(is_given_back)
    await one.settle("of-the-dead", completion=4)  # by a gateway where the client resumed it
    assert (await policy.used(admin, "tenant:acme"))["tokens_per_day"] == 15


async def test_time_without_policy_is_no_time_for_leases(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    """Gateways could not renew while it was away."""
    admin = keys.generate()

    async def start() -> PolicyProcess:
        return await start_policy(
            private_valkey.url,
            INFERFLUX_POLICY_BOOTSTRAP_KEY=admin,
            **patched("inferflux.policy.app:_LEASE_S", 2.0),
        )

    policy = await start()
    one = Tenant(policy, await policy.create_key(admin))
    await policy.limit(admin, "tenant:acme", concurrent_requests=2)
    await one.reserve("r1")
    assert policy.stop() == 0
    await asyncio.sleep(3)  # longer than the lease
    policy = one.policy = await start()
    await one.renew("r1")
    assert await policy.used(admin, "tenant:acme") == {"concurrent_requests": 1}


@pytest.mark.parametrize("call", ["admit", "reserve", "settle", "renew"])
async def test_without_redis_nothing_is_let_through(
    private_valkey: ServerProcess, start_policy: StartPolicy, call: str
) -> None:
    admin = keys.generate()
    policy = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin)
    one = Tenant(policy, await policy.create_key(admin))
    arguments = () if call == "admit" else ("r1",)
    private_valkey.kill()
    error = await refusal(getattr(one, call)(*arguments))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert from_rpc(error).reason in ("STORE_UNAVAILABLE", "STORE_TIMEOUT")
    private_valkey.start()
    private_valkey.wait_ready()
    await policy.wait_ready()
    await getattr(one, call)(*arguments)
