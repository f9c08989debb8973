"""Limits and keys end to end: over gRPC and HTTP, through a gateway, policy and Redis."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
import redis.asyncio
from harness.gateway import (
    Backend,
    Client,
    GatewayProcess,
    StartGateway,
    Stream,
    finished,
    tokens,
    until,
)
from harness.http_client import HttpClient
from harness.policy import PolicyProcess
from harness.servers import ServerProcess
from harness.starting import patched
from harness.websocket_client import WebSocket

from inferflux.common.contract.errors import (
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from inferflux.policy.storage.usage_store import UsageStore
from inferflux.v1 import generation_pb2, policy_pb2_grpc, scheduler_pb2


@dataclass(frozen=True)
class Tenant:
    """A tenant of a test's own, and its key."""

    name: str
    secret: str
    key_id: str
    policy: PolicyProcess
    admin: str
    gateway: GatewayProcess

    @property
    def client(self) -> Client:
        return Client(self.gateway, self.secret)

    @property
    def http(self) -> HttpClient:
        return HttpClient(self.gateway.http_port, self.secret)

    async def limit(self, **limits: int) -> None:
        await self.policy.limit(self.admin, f"tenant:{self.name}", **limits)

    async def used(self) -> dict[str, int]:
        return await self.policy.used(self.admin, f"tenant:{self.name}")

    async def until_used(self, **wanted: int) -> None:
        """Return once so much of these limits is used: usage is settled beside the answers."""

        async def is_so() -> bool:
            return (await self.used()).items() >= wanted.items()

        await until(is_so)


async def tenant_of(policy: PolicyProcess, admin: str, gateway: GatewayProcess, **more: object) -> Tenant:
    name = f"t-{uuid.uuid4().hex[:12]}"
    made = await policy.create_key(admin, tenant=name, scopes=("inference", "models"), **more)  # type: ignore[arg-type]
    return Tenant(name, made.secret, made.api_key.key_id, policy, admin, gateway)


@pytest.fixture
async def tenant(policy: PolicyProcess, admin_key: str, gateway: GatewayProcess, backend: Backend) -> Tenant:
    return await tenant_of(policy, admin_key, gateway)


async def finish(backend: Backend, stream: Stream, request_id: str, *, n: int = 3) -> None:
    await backend.finish(await backend.job(request_id), n=n)
    await stream.rest()


async def confirm_cancel(backend: Backend, request_id: str) -> None:
    """Once it is cancelled, say so in its last chunk, as a worker does."""
    await until(lambda: request_id in backend.cancelled)
    job = await backend.job(request_id)
    cancelled = finished(0, reason=generation_pb2.FINISH_REASON_CANCELLED, attempt=job.attempt_id)
    await backend.say(job, cancelled)
    await backend.done(request_id)


async def limits_of(stream: Stream) -> dict[str, str]:
    """What the trailing metadata says of limits."""
    metadata = dict(await stream.call.trailing_metadata())
    return {k.removeprefix("x-ratelimit-"): v for k, v in metadata.items() if k.startswith("x-ratelimit-")}


async def test_what_is_left_is_told_over_grpc_and_a_request_too_many_is_refused(
    tenant: Tenant, backend: Backend
) -> None:
    await tenant.limit(requests_per_minute=2, tokens_per_minute=100)
    params = generation_pb2.GenerationParams(max_tokens=10)
    stream = tenant.client.generate("limits-1", params=params)
    await finish(backend, stream, "limits-1")
    told = await limits_of(stream)
    assert (told["limit-requests"], told["remaining-requests"]) == ("2", "1")
    assert told["limit-tokens"] == "100"
    assert int(told["remaining-tokens"]) < 90
    await finish(backend, tenant.client.generate("limits-2", params=params), "limits-2")
    refused = tenant.client.generate("limits-3", params=params)
    error = await refused.error()
    assert isinstance(error, ResourceExhausted)
    assert error.reason == "RATE_LIMITED"
    assert 0 < (error.retry_delay_s or 0) <= 61
    assert (await limits_of(refused))["remaining-requests"] == "0"
    assert "limits-3" not in backend.jobs


async def test_the_same_over_http(tenant: Tenant, backend: Backend) -> None:
    await tenant.limit(requests_per_minute=1, tokens_per_minute=400)
    answer = await tenant.http.call("POST", "/v1/detokenize", {"model": "demo", "tokens": [5]})
    assert answer.status == 200
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert answer.headers["x-ratelimit-remaining-tokens"] == "400"
    for path in ("/v1/chat/completions", "/v1/completions", "/generate", "/v1/tokenize"):
        refused = await tenant.http.post(path, {})
        assert refused.status == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 61
        assert refused.headers["x-ratelimit-limit-requests"] == "1"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.headers["x-ratelimit-reset-requests"].endswith("s")
        assert (refused.error["code"], refused.error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    async with WebSocket(tenant.gateway.http_port, key=tenant.secret) as socket:
        assert socket.status == 101
        socket.send({"model": "demo", "prompt": "hello"})
        (told,) = await socket.until_end()
        assert told["error"]["code"] == "rate_limit_exceeded"


async def test_tokens_are_reserved_while_a_request_runs_and_settled_when_it_ends(
    tenant: Tenant, backend: Backend
) -> None:
    await tenant.limit(tokens_per_day=100, concurrent_requests=5)
    stream = tenant.client.generate("reserved-1", token_ids={"ids": [1, 2, 3]}, params={"max_tokens": 60})
    await backend.job("reserved-1")
    assert await tenant.used() == {"tokens_per_day": 63, "concurrent_requests": 1}
    error = await tenant.client.generate("reserved-2", params={"max_tokens": 60}).error()
    assert isinstance(error, ResourceExhausted)
    assert error.reason == "QUOTA_USED_UP"
    await finish(backend, stream, "reserved-1", n=4)
    await tenant.until_used(tokens_per_day=9, concurrent_requests=0)  # the backend counts 5 of the prompt


async def test_a_request_that_is_refused_later_gives_all_back(tenant: Tenant, backend: Backend) -> None:
    await tenant.limit(tokens_per_day=1000, concurrent_requests=5)
    stream = tenant.client.generate("taken-1", params={"max_tokens": 10})
    await finish(backend, stream, "taken-1")
    await tenant.until_used(concurrent_requests=0)
    before = await tenant.used()
    error = await tenant.client.generate("taken-1", params={"max_tokens": 10}).error()
    assert error.reason == "REQUEST_ID_TAKEN"
    await tenant.until_used(**before)


async def test_a_client_that_leaves_gives_its_place_back(tenant: Tenant, backend: Backend) -> None:
    await tenant.limit(concurrent_requests=1)
    stream = tenant.client.generate("leaves-1")
    await backend.job("leaves-1")
    error = await tenant.client.generate("leaves-2").error()
    assert isinstance(error, ResourceExhausted)
    assert "1 requests at a time" in error.message
    stream.cancel()
    await confirm_cancel(backend, "leaves-1")
    await tenant.until_used(concurrent_requests=0)
    stream = tenant.client.generate("leaves-3")
    await finish(backend, stream, "leaves-3")


async def test_cancel_and_resume_are_not_held_to_limits(tenant: Tenant, backend: Backend) -> None:
    await tenant.limit(requests_per_minute=1, concurrent_requests=1)
    stream = tenant.client.generate("free-1", resume_window_s=30)
    job = await backend.job("free-1")
    resumed = tenant.client.resume("free-1", 0)
    await backend.finish(job, n=2)
    for each in (stream, resumed):
        assert (await each.rest())[-1].HasField("finished")
    backend.known.add("free-1")
    await tenant.client.cancel("free-1")


async def test_choices_of_one_call_are_one_request_and_each_reserves(
    tenant: Tenant, backend: Backend
) -> None:
    await tenant.limit(requests_per_minute=5, concurrent_requests=1)
    asking = asyncio.create_task(tenant.http.chat("choices-1", n=2, max_tokens=5))
    await backend.say(await backend.job("choices-1"), tokens(0))  # the other begins with the first token
    answer = await asking
    assert answer.status == 429
    assert "requests at a time" in answer.error["message"]
    assert (await tenant.used())["requests_per_minute"] == 1
    await confirm_cancel(backend, "choices-1")
    await tenant.until_used(concurrent_requests=0)


async def test_a_reader_that_leaves_a_running_request_frees_nothing(
    tenant: Tenant, backend: Backend, valkey_url: str
) -> None:
    await tenant.limit(tokens_per_day=1000, concurrent_requests=1)
    client, params = tenant.client, {"max_tokens": 60}
    stream, job = await client.begin(backend, "read-twice", token_ids={"ids": [1, 2, 3]}, params=params)
    backend.reader_replies["read-twice"] = scheduler_pb2.ReaderReply(
        was_found=True, attempt_id=job.attempt_id
    )
    resumed = client.resume("read-twice", 0)
    await resumed.until_tokens()
    # The scheduler's answer, which says which attempt it is, comes before the next token.
    await until(lambda: any(n.joined.request.request_id == "read-twice" for n in backend.reader_notices))
    await backend.say(job, tokens(1))
    await resumed.until_tokens()
    resumed.cancel()
    async with redis.asyncio.Redis.from_url(valkey_url) as connection:
        store = UsageStore(connection, timeout_s=5)

        async def is_settled() -> bool:
            return (await store.usage(tenant.name)).get("requests") == 1

        await until(is_settled)
    assert await tenant.used() == {"tokens_per_day": 63, "concurrent_requests": 1}
    assert (await client.generate("one-more").error()).reason == "RATE_LIMITED"
    await backend.finish(job, offset=2, n=4)
    await stream.rest()
    await tenant.until_used(tokens_per_day=9, concurrent_requests=0)


async def test_a_key_is_held_to_its_models(
    policy: PolicyProcess, admin_key: str, gateway: GatewayProcess, backend: Backend
) -> None:
    tenant = await tenant_of(policy, admin_key, gateway, models=["other*"])
    assert await tenant.client.model_names() == []
    for stream in (tenant.client.generate("models-1"), tenant.client.chat("models-2")):
        error = await stream.error()
        assert isinstance(error, PermissionDenied)
        assert error.reason == "MODEL_NOT_ALLOWED"
    answer = await tenant.http.chat()
    assert (answer.status, answer.error["code"]) == (403, "model_not_allowed")
    assert (await tenant.http.get("/v1/models")).json()["data"] == []
    assert (await tenant.http.get("/v1/models/demo")).status == 403
    for path, body in (("/v1/tokenize", {"prompt": "hi"}), ("/v1/detokenize", {"tokens": [5]})):
        assert (await tenant.http.post(path, {"model": "demo", **body})).status == 403
    assert not {"models-1", "models-2"} & backend.jobs.keys()


async def test_a_request_carries_the_worker_pools_of_its_key_and_the_gateway_s_zone(
    policy: PolicyProcess, admin_key: str, gateway: GatewayProcess, backend: Backend
) -> None:
    tenant = await tenant_of(policy, admin_key, gateway, worker_pools=["gold", "silver"])
    stream = tenant.client.generate("in-pools")
    job = await backend.job("in-pools")
    assert list(job.worker_pools) == ["gold", "silver"]
    assert job.zone == "north"
    await finish(backend, stream, "in-pools")


@pytest.mark.parametrize(("own", "found"), [(None, True), (False, False)])
async def test_a_request_of_a_deterministic_key_is_deterministic_unless_it_says_otherwise(
    policy: PolicyProcess,
    admin_key: str,
    gateway: GatewayProcess,
    backend: Backend,
    own: bool | None,
    found: bool,
) -> None:
    tenant = await tenant_of(policy, admin_key, gateway, deterministic=True)
    request_id = f"same-{own}"
    params = generation_pb2.GenerationParams(deterministic=own)
    stream = tenant.client.generate(request_id, params=params)
    assert (await backend.job(request_id)).params.deterministic is found
    await finish(backend, stream, request_id)


async def test_a_revoked_key_is_refused_at_once_by_every_gateway_and_on_open_websockets(
    tenant: Tenant, start_gateway: StartGateway, nats_url: str, admin_key: str
) -> None:
    other = await start_gateway(nats_url)
    clients = [tenant.client, Client(other, tenant.secret)]
    for client in clients:
        await client.model_names()
    async with WebSocket(tenant.gateway.http_port, key=tenant.secret) as socket:
        assert socket.status == 101
        await tenant.policy.revoke(admin_key, tenant.key_id)
        for client in clients:
            error = await client.generate("revoked").error()
            assert isinstance(error, Unauthenticated)
        socket.send({"model": "demo", "prompt": "hello"})
        (told,) = await socket.until_end()
        assert told["error"]["code"] == "invalid_api_key"
        assert await socket.next() is None
        assert socket.close_code == 1008


async def test_a_gateway_with_a_wrong_service_key_tells_its_clients_that_it_cannot_serve(
    tenant: Tenant, start_gateway: StartGateway, nats_url: str
) -> None:
    gateway = await start_gateway(nats_url, knows="", INFERFLUX_SERVICE_KEY="another-service-key")
    error = await Client(gateway, tenant.secret).generate("wrong-service-key").error()
    assert isinstance(error, Unavailable)
    assert error.reason == "POLICY_REFUSES_GATEWAY"


async def test_a_gateway_does_not_start_without_a_service_key(
    start_gateway: StartGateway, nats_url: str
) -> None:
    gateway = await start_gateway(nats_url, wait=False, INFERFLUX_SERVICE_KEY="")
    assert await gateway.ended() == 2
    (line,) = gateway.log_path.read_text().splitlines()
    assert line.startswith("gateway: INFERFLUX_SERVICE_KEY must be set")


async def test_administrators_reach_policy_through_the_gateway(tenant: Tenant, admin_key: str) -> None:
    """The same methods, under the same names."""
    through = PolicyThrough(tenant.gateway)
    made = await through.create_key(admin_key, tenant=tenant.name)
    assert made.api_key.tenant == tenant.name
    assert (await tenant.policy.admit(made.secret)).key_id == made.api_key.key_id
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await through.create_key(admin_key, tenant="A")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await through.create_key(tenant.secret)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    await through.revoke(admin_key, made.api_key.key_id)


class PolicyThrough(PolicyProcess):
    """A client of policy that knows the gateway's address alone."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.stranger = policy_pb2_grpc.PolicyServiceStub(gateway.channel)


@pytest.fixture
async def short_lease(tmp_path: Path, valkey_url: str, admin_key: str) -> AsyncIterator[PolicyProcess]:
    """A policy process that gives back after 6 s what is not renewed: a busy machine holds a renewal up."""
    process = PolicyProcess(
        tmp_path,
        valkey_url,
        INFERFLUX_POLICY_BOOTSTRAP_KEY=admin_key,
        **patched("inferflux.policy.app:_LEASE_S", 6.0),
    )
    process.start()
    await process.wait_ready()
    yield process
    await process.close()


async def test_a_dead_gateway_leaks_nothing_and_a_living_one_keeps_what_it_has(
    tmp_path: Path, nats_url: str, short_lease: PolicyProcess, admin_key: str, backend: Backend
) -> None:
    address = f"127.0.0.1:{short_lease.port}"
    dying, living = (GatewayProcess(tmp_path, nats_url, address) for _ in range(2))
    for gateway in (dying, living):
        gateway.start()
    try:
        for gateway in (dying, living):
            await gateway.wait_ready()
        tenant = await tenant_of(short_lease, admin_key, living)
        await tenant.limit(tokens_per_day=1000, concurrent_requests=4)
        token_ids, params = {"ids": [1, 2, 3]}, {"max_tokens": 7}
        kept = tenant.client.generate("lease-kept", token_ids=token_ids, params=params)
        lost = [
            Client(dying, tenant.secret).generate(f"lease-lost-{i}", token_ids=token_ids, params=params)
            for i in range(3)
        ]
        for request_id in ("lease-kept", *(f"lease-lost-{i}" for i in range(3))):
            await backend.job(request_id)
        assert await tenant.used() == {"tokens_per_day": 40, "concurrent_requests": 4}
        assert dying.process is not None
        dying.process.kill()
        for stream in lost:
            with pytest.raises(grpc.aio.AioRpcError):
                await stream.rest()
        await tenant.until_used(tokens_per_day=10, concurrent_requests=1)
        # The other has lasted longer than a lease by now, and is still counted.
        job = await backend.job("lease-lost-0")
        resumed = tenant.client.resume(job.request_id, 0)
        await backend.say(job, tokens(0, 3), finished(4, attempt=job.attempt_id))
        await backend.done(job.request_id)
        await resumed.rest()
        await tenant.until_used(tokens_per_day=19, concurrent_requests=1)
        await finish(backend, kept, "lease-kept", n=1)
        await tenant.until_used(tokens_per_day=15, concurrent_requests=0)
    finally:
        await dying.close()
        await living.close()


async def test_a_request_that_is_resumed_in_time_still_counts_when_its_gateway_is_gone(
    tmp_path: Path, nats_url: str, short_lease: PolicyProcess, admin_key: str, backend: Backend
) -> None:
    address = f"127.0.0.1:{short_lease.port}"
    dying, living = (GatewayProcess(tmp_path, nats_url, address) for _ in range(2))
    for gateway in (dying, living):
        gateway.start()
    try:
        for gateway in (dying, living):
            await gateway.wait_ready()
        tenant = await tenant_of(short_lease, admin_key, living)
        await tenant.limit(tokens_per_day=1000, concurrent_requests=4)
        names = ("resumed-in-time", "not-resumed")
        prompt, params = {"ids": [1, 2, 3]}, {"max_tokens": 7}
        client = Client(dying, tenant.secret)
        streams = [client.generate(name, token_ids=prompt, params=params) for name in names]
        for name in names:
            job = await backend.job(name)
            backend.reader_replies[name] = scheduler_pb2.ReaderReply(
                was_found=True, attempt_id=job.attempt_id
            )
        assert await tenant.used() == {"tokens_per_day": 20, "concurrent_requests": 2}
        assert dying.process is not None
        dying.process.kill()
        resumed = tenant.client.resume("resumed-in-time", 0)
        for stream in streams:
            with pytest.raises(grpc.aio.AioRpcError):
                await stream.rest()
        await tenant.until_used(tokens_per_day=10, concurrent_requests=1)
        job = await backend.job("resumed-in-time")
        await backend.say(job, tokens(0, 1), finished(2, attempt=job.attempt_id))
        await backend.done(job.request_id)
        await resumed.rest()
        await tenant.until_used(tokens_per_day=7, concurrent_requests=0)
    finally:
        await dying.close()
        await living.close()


async def test_without_redis_no_request_is_let_through(
    tmp_path: Path, nats_url: str, private_valkey: ServerProcess, admin_key: str, backend: Backend
) -> None:
    policy = PolicyProcess(tmp_path, private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin_key)
    gateway = GatewayProcess(tmp_path, nats_url, f"127.0.0.1:{policy.port}")
    policy.start()
    gateway.start()
    try:
        await policy.wait_ready()
        await gateway.wait_ready()
        tenant = await tenant_of(policy, admin_key, gateway)
        private_valkey.kill()
        error = await tenant.client.generate("no-redis").error()
        assert isinstance(error, Unavailable)
        assert (await tenant.http.chat()).status == 503
        assert "no-redis" not in backend.jobs
    finally:
        await gateway.close()
        await policy.close()
