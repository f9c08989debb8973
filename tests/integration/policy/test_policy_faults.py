"""Redis away, frozen, restarted; two processes on one store; the process's own end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import grpc
import psutil
import pytest
import redis.asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.policy import PolicyProcess, refusal, until
from harness.servers import ServerProcess
from harness.starting import patched

from inferflux.cli.stack.servers import free_port
from inferflux.common.contract.errors import Unavailable, from_rpc
from inferflux.policy.decide import keys
from inferflux.policy.decide.guardrails.store import MAX_AGE_S
from inferflux.policy.storage.usage_store import UsageStore
from inferflux.v1 import generation_pb2, policy_pb2

from .conftest import Running, StartPolicy

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(policy: PolicyProcess) -> int:
    stub = health_pb2_grpc.HealthStub(policy.channel)
    request = health_pb2.HealthCheckRequest(service="inferflux.v1.PolicyService")
    answer: health_pb2.HealthCheckResponse = await stub.Check(request, timeout=5)
    return int(answer.status)


async def assert_refused_in_time(policy: PolicyProcess, secret: str) -> None:
    error = None
    began = asked = time.monotonic()
    while error is None:
        assert asked - began < 2 * MAX_AGE_S, "what is in memory is used for too long"
        asked = time.monotonic()
        try:
            await policy.admit(secret)
        except grpc.aio.AioRpcError as raised:
            error = raised
    assert time.monotonic() - asked < 1.0
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    told = from_rpc(error)
    assert isinstance(told, Unavailable)
    assert told.retry_delay_s
    # Where the store is, and as whom policy calls it, is for the log.
    assert told.message.startswith(("the policy store does not answer", "the policy store did not answer"))
    assert "127.0.0.1" not in told.message


async def test_without_redis_every_call_is_refused_within_a_second_and_readiness_says_so(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    policy = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    await policy.admit(secret)
    assert await health(policy) == SERVING

    private_valkey.kill()
    for _ in range(3):
        await assert_refused_in_time(policy, secret)
    await policy.wait_without_store()
    assert any(str(private_valkey.port) in line.get("why", "") for line in policy.log_lines())
    assert (await policy.readiness())["ready"] is False
    assert await health(policy) == NOT_SERVING

    private_valkey.start()
    private_valkey.wait_ready()
    await policy.wait_ready()
    assert (await policy.admit(secret)).tenant == "default"
    assert await health(policy) == SERVING


async def test_a_frozen_redis_is_refused_within_a_second_too(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    policy = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    await policy.admit(secret)
    private_valkey.pause()
    try:
        await asyncio.gather(*(assert_refused_in_time(policy, secret) for _ in range(5)))
        await policy.wait_without_store()
    finally:
        private_valkey.resume()
    await policy.wait_ready()
    await policy.admit(secret)


async def test_policy_may_start_before_redis(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    private_valkey.kill()
    policy = await start_policy(private_valkey.url, wait=False, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    await policy.wait_without_store()
    await assert_refused_in_time(policy, secret)
    private_valkey.start()
    private_valkey.wait_ready()
    await policy.wait_ready()
    await policy.admit(secret)


async def test_redis_killed_and_restarted_under_calls_costs_refusals_and_nothing_else(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    policy = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    done = asyncio.Event()

    async def call_on() -> None:
        nonlocal slowest
        while not done.is_set():
            started = time.monotonic()
            try:
                await policy.admit(secret)
                outcomes["OK"] += 1
            except grpc.aio.AioRpcError as error:
                outcomes[error.code().name] += 1
            slowest = max(slowest, time.monotonic() - started)

    async def more(outcome: str, than: int) -> None:
        async def has_come() -> bool:
            return outcomes[outcome] > than

        await until(has_come)

    callers = [asyncio.create_task(call_on()) for _ in range(8)]
    for _ in range(3):
        await more("OK", than=outcomes["OK"] + 20)
        private_valkey.kill()
        await more("UNAVAILABLE", than=outcomes["UNAVAILABLE"] + 20)
        private_valkey.start()
        await asyncio.to_thread(private_valkey.wait_ready)
        await more("OK", than=outcomes["OK"] + 20)
    done.set()
    await asyncio.gather(*callers)
    assert set(outcomes) == {"OK", "UNAVAILABLE"}
    assert slowest < 1.5


async def test_keys_and_counters_survive_a_kill_of_redis(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    policy = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    made = await policy.create_key(secret)
    revoked = await policy.create_key(secret)
    await policy.revoke(secret, revoked.api_key.key_id)
    usage = generation_pb2.Usage(completion_tokens=9)
    settled = policy_pb2.SettleRequest(
        request_id="r",
        attempt_id="a1",
        tenant="acme",
        key_id=made.api_key.key_id,
        outcome="stop",
        usage=usage,
    )
    await policy.stub.Settle(settled)
    private_valkey.restart()
    await policy.wait_ready()
    assert (await policy.admit(made.secret)).key_id == made.api_key.key_id
    assert (await refusal(policy.admit(revoked.secret))).code() is grpc.StatusCode.UNAUTHENTICATED
    await policy.stub.Settle(settled)
    async with redis.asyncio.Redis.from_url(private_valkey.url) as client:
        assert (await UsageStore(client, timeout_s=5).usage("acme"))["completion_tokens"] == 9


async def test_two_processes_agree_on_new_keys_at_once_and_on_revoked_ones_soon(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    left, right = await asyncio.gather(
        *(start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret) for _ in range(2))
    )
    for maker, other in ((left, right), (right, left)):
        made = await maker.create_key(secret)
        assert (await other.admit(made.secret)).key_id == made.api_key.key_id
        await other.revoke(secret, made.api_key.key_id)
        assert (await refusal(other.admit(made.secret))).code() is grpc.StatusCode.UNAUTHENTICATED
        await asyncio.sleep(MAX_AGE_S)  # the longest time that what is in memory is used
        assert (await refusal(maker.admit(made.secret))).code() is grpc.StatusCode.UNAUTHENTICATED

    usage = generation_pb2.Usage(completion_tokens=1)
    settled = policy_pb2.SettleRequest(
        request_id="both",
        attempt_id="a1",
        tenant="acme",
        key_id="key_" + "0" * 16,
        outcome="stop",
        usage=usage,
    )
    await asyncio.gather(*(p.stub.Settle(settled) for p in (left, right) for _ in range(10)))
    async with redis.asyncio.Redis.from_url(private_valkey.url) as client:
        assert (await UsageStore(client, timeout_s=5).usage("acme"))["requests"] == 1


async def test_an_admission_asks_redis_nothing_but_whether_anything_has_changed(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    policy = await start_policy(
        private_valkey.url,
        INFERFLUX_POLICY_BOOTSTRAP_KEY=secret,
        **patched("inferflux.policy.app:_STORE_CHECK_INTERVAL_S", 60.0),
    )
    await policy.admit(secret)
    async with redis.asyncio.Redis.from_url(private_valkey.url) as client:
        await client.config_resetstat()
        began = time.monotonic()
        for _ in range(50):
            await policy.admit(secret)
        took_s = time.monotonic() - began
        stats = await client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
    ours = {k: v for k, v in calls.items() if k not in {"info", "config|resetstat"}}
    assert ours.pop("get", 0) <= took_s / MAX_AGE_S + 1
    # When keys were last used is written from time to time, whatever is admitted.
    assert max(ours.values(), default=0) < 25, ours


async def test_an_idle_process_is_small(running: Running) -> None:
    await running.policy.admit(running.admin)
    assert running.policy.process is not None
    assert psutil.Process(running.policy.process.pid).memory_info().rss < 120 * 2**20


async def test_sigterm_ends_it_with_status_0(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    policy = await start_policy(private_valkey.url)
    assert policy.stop() == 0


async def test_sigterm_ends_it_while_redis_is_away(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    policy = await start_policy(private_valkey.url)
    private_valkey.kill()
    await policy.wait_without_store()
    assert policy.stop() == 0


async def test_a_taken_port_ends_it_with_a_line_that_names_the_port(
    running: Running, start_policy: StartPolicy
) -> None:
    taken = running.policy.environment["INFERFLUX_POLICY_LISTEN"]
    url = running.policy.environment["INFERFLUX_REDIS_URL"]
    policy = await start_policy(url, wait=False, INFERFLUX_POLICY_LISTEN=taken)
    assert policy.process is not None
    assert await asyncio.to_thread(policy.process.wait, 15) == 1
    last = policy.log_path.read_text().splitlines()[-1]
    assert taken in last
    assert "INFERFLUX_POLICY_LISTEN" in last


async def test_a_bad_redis_url_ends_it_with_a_line_that_names_the_variable(
    start_policy: StartPolicy,
) -> None:
    policy = await start_policy(f"postgres://127.0.0.1:{free_port()}", wait=False)
    assert policy.process is not None
    assert await asyncio.to_thread(policy.process.wait, 15) == 2
    assert "INFERFLUX_REDIS_URL" in policy.log_path.read_text().splitlines()[-1]


async def test_an_abandoned_call_never_gives_its_answer_to_another(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    policy = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    tenants = [f"tenant-{i}" for i in range(6)]
    made = {t: (await policy.create_key(secret, tenant=t)).secret for t in tenants}
    abandoned = answered = 0
    done = asyncio.Event()

    async def call_on(tenant: str) -> None:
        nonlocal abandoned, answered
        request = policy_pb2.AdmitRequest(credential=made[tenant], scope="inference", request_id="r")
        deadline_s = 0.0005
        while not done.is_set():
            try:
                answer = await policy.stub.Admit(request, timeout=deadline_s)
            except grpc.aio.AioRpcError:
                abandoned += 1
                deadline_s = min(deadline_s * 2, 5.0)
            else:
                answered += 1
                deadline_s = 0.0005
                assert answer.tenant == tenant

    async def more_of_both() -> None:
        wanted = abandoned + 100, answered + 100

        async def have_come() -> bool:
            return abandoned >= wanted[0] and answered >= wanted[1]

        await until(have_come, timeout_s=30)

    callers = [asyncio.create_task(call_on(t)) for t in tenants for _ in range(2)]
    for _ in range(2):
        await more_of_both()
        private_valkey.pause()
        await policy.wait_without_store()
        private_valkey.resume()
    await more_of_both()
    done.set()
    await asyncio.gather(*callers)
    for tenant in tenants:
        assert (await policy.admit(made[tenant])).tenant == tenant


async def test_a_replica_that_lost_its_master_counts_as_no_redis(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    policy = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    async with redis.asyncio.Redis.from_url(private_valkey.url) as client:
        await client.config_set("replica-serve-stale-data", "no")
        await client.replicaof("127.0.0.1", free_port())
        await policy.wait_without_store()
        await assert_refused_in_time(policy, secret)
        await client.replicaof("NO", "ONE")
    await policy.wait_ready()
    await policy.admit(secret)


@pytest.mark.parametrize("why", ["a replica", "too few replicas"])
async def test_a_redis_that_takes_no_writes_still_admits_and_settles_later(
    private_valkey: ServerProcess, start_policy: StartPolicy, why: str
) -> None:
    secret = keys.generate()
    policy = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    settled = policy_pb2.SettleRequest(
        request_id="r", attempt_id="a1", tenant="acme", key_id="key_" + "0" * 16, outcome="stop"
    )
    async with redis.asyncio.Redis.from_url(private_valkey.url) as client:
        if why == "a replica":
            await client.replicaof("127.0.0.1", free_port())
        else:
            await client.config_set("min-replicas-to-write", 1)
        await policy.admit(secret)
        assert (await refusal(policy.stub.Settle(settled))).code() is grpc.StatusCode.UNAVAILABLE
        assert (await refusal(policy.create_key(secret))).code() is grpc.StatusCode.UNAVAILABLE
        await client.replicaof("NO", "ONE")
        await client.config_set("min-replicas-to-write", 0)
        await policy.stub.Settle(settled)
        assert (await UsageStore(client, timeout_s=5).usage("acme"))["requests"] == 1


async def test_redis_that_refuses_policy_its_commands_is_seen_in_readiness(
    private_valkey: ServerProcess, start_policy: StartPolicy
) -> None:
    secret = keys.generate()
    policy = await start_policy(private_valkey.url, INFERFLUX_POLICY_BOOTSTRAP_KEY=secret)
    admin = redis.asyncio.Redis.from_url(private_valkey.url)
    async with admin:
        await admin.acl_setuser("default", enabled=True, nopass=True, categories=["+@all"], commands=["-get"])
        await policy.wait_without_store()
        await admin.acl_setuser("default", enabled=True, nopass=True, categories=["+@all"])
    await policy.wait_ready()
