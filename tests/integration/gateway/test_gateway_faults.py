"""NATS restarted, the queue full, policy away, too many streams, a gateway that leaves."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.gateway import (
    Backend,
    Client,
    GatewayProcess,
    StartGateway,
    finished,
    ids_of,
    text_of,
    tokens,
    until,
)
from harness.policy import PolicyProcess
from harness.servers import ServerProcess
from harness.starting import patched

from inferflux.common.bus import Bus, Message
from inferflux.common.contract import errors, subjects
from inferflux.common.contract.errors import ResourceExhausted, Unavailable
from inferflux.v1 import cluster_pb2, scheduler_pb2


async def test_a_stream_outlives_a_restart_of_nats(
    start_gateway: StartGateway, private_nats: ServerProcess, private_backend: Backend, key: str
) -> None:
    gateway = await start_gateway(
        private_nats.url, **patched("inferflux.gateway.request.services:_RELAY_LIMITS.silence_s", 1.0)
    )
    client = Client(gateway, key)
    stream = client.generate("restart-1")
    job = await private_backend.job("restart-1")
    await private_backend.say(job, *(tokens(i) for i in range(5)))
    first = await stream.until_tokens()
    await asyncio.to_thread(private_nats.restart)
    await private_backend.remembers_tokens()
    # As a worker does: everything once more, then on.
    await private_backend.say(job, *(tokens(i) for i in range(10)), finished(10))
    chunks = [first, *await stream.rest()]
    assert ids_of(chunks) == list(range(10))
    assert text_of(chunks) == "".join(f"{i} " for i in range(10))


async def test_tokens_published_while_the_gateway_was_cut_off_are_made_up_for(
    start_gateway: StartGateway, private_nats: ServerProcess, private_backend: Backend, key: str
) -> None:
    """The last words of a request may be the ones that are lost."""
    gateway = await start_gateway(
        private_nats.url, **patched("inferflux.gateway.request.services:_RELAY_LIMITS.silence_s", 0.5)
    )
    client = Client(gateway, key)
    stream = client.generate("restart-2")
    job = await private_backend.job("restart-2")
    await private_backend.say(job, tokens(0))
    first = await stream.until_tokens()
    os.kill(gateway.pid, signal.SIGSTOP)
    try:
        # What a stopped process does not read still waits in its socket, so the connection has to go too.
        await asyncio.to_thread(private_nats.restart)
        await private_backend.remembers_tokens()
        await private_backend.say(job, tokens(0), tokens(1), finished(2))
    finally:
        os.kill(gateway.pid, signal.SIGCONT)
    assert ids_of([first, *await stream.rest()]) == [0, 1]


async def test_new_requests_are_served_after_a_restart_of_nats(
    private_client: Client, private_nats: ServerProcess, private_backend: Backend
) -> None:
    private_nats.kill()
    await private_client.gateway.wait_ready(ready=False)
    private_nats.start()
    await asyncio.to_thread(private_nats.wait_ready)
    await private_client.gateway.wait_ready()
    stream = private_client.chat("restart-3")
    await private_backend.finish(await private_backend.job("restart-3"), n=2)
    assert ids_of(await stream.rest()) == [0, 1]


async def test_lost_tokens_end_the_stream_in_bounded_time_and_cancel_the_request(
    start_gateway: StartGateway, nats_url: str, backend: Backend, key: str
) -> None:
    gateway = await start_gateway(
        nats_url, **patched("inferflux.gateway.request.services:_RELAY_LIMITS.gap_limit_s", 1.0)
    )
    stream = Client(gateway, key).generate("lost-1")
    job = await backend.job("lost-1")
    await backend.say(job, tokens(0), tokens(2))
    assert ids_of([await stream.until_tokens()]) == [0]
    error = await stream.error()
    assert isinstance(error, Unavailable)
    assert error.reason == "TOKENS_LOST"
    await until(lambda: "lost-1" in backend.cancelled)
    await until(lambda: bool(gateway.audit("lost-1")))
    assert gateway.audit("lost-1")[0]["outcome"] == "tokens_lost"
    await backend.done("lost-1")


async def test_a_full_queue_refuses_with_a_retry_delay(
    start_gateway: StartGateway, private_nats: ServerProcess, demo_tokenizer: bytes, key: str
) -> None:
    gateway = await start_gateway(private_nats.url, knows="", INFERFLUX_QUEUE_LIMIT="3")
    bus = await Bus.connect(private_nats.url, name="backend")
    behind = Backend(bus, demo_tokenizer)
    try:
        await bus.put_object(behind.digest, demo_tokenizer)
        await behind.beat()
        client = Client(gateway, key)
        await client.sees("demo")
        waiting = [client.generate(f"full-{i}") for i in range(3)]

        async def queue_is_full() -> bool:
            await behind.beat()
            stream = client.generate()
            try:
                error = await asyncio.wait_for(stream.error(), 0.5)
            except TimeoutError:
                stream.cancel()
                return False
            assert isinstance(error, ResourceExhausted), error
            assert error.reason == "QUEUE_FULL"
            assert error.retry_delay_s
            return True

        await until(queue_is_full)
        for stream in waiting:
            stream.cancel()
    finally:
        await behind.close()
        await bus.close()


async def test_one_stream_more_than_there_are_places_is_refused(
    start_gateway: StartGateway, nats_url: str, backend: Backend, key: str
) -> None:
    gateway = await start_gateway(
        nats_url, INFERFLUX_GATEWAY_MAX_STREAMS="2", INFERFLUX_GATEWAY_MAX_STREAMS_PER_TENANT="2"
    )
    client = Client(gateway, key)
    first, second = client.generate("places-1"), client.generate("places-2")
    jobs = [await backend.job("places-1"), await backend.job("places-2")]
    error = await client.generate("places-3").error()
    assert isinstance(error, ResourceExhausted)
    assert (error.reason, error.retry_delay_s) == ("TOO_MANY_STREAMS", 1.0)
    await backend.finish(jobs[0], n=1)
    await first.rest()
    third = client.generate("places-4")
    await backend.finish(await backend.job("places-4"), n=1)
    assert ids_of(await third.rest()) == [0]
    await backend.finish(jobs[1], n=1)
    await second.rest()


async def test_no_caller_is_admitted_while_policy_is_away(
    tmp_path: Path, nats_url: str, valkey_url: str, backend: Backend, admin_key: str
) -> None:
    policy = PolicyProcess(tmp_path, valkey_url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin_key)
    policy.start()
    await policy.wait_ready()
    gateway = GatewayProcess(tmp_path, nats_url, f"127.0.0.1:{policy.port}")
    gateway.start()
    try:
        await gateway.wait_ready()
        client = Client(gateway, admin_key)
        stream = client.generate("policy-1")
        job = await backend.job("policy-1")
        policy.stop()
        error = await client.generate("policy-2").error()
        assert isinstance(error, Unavailable)
        assert error.reason == "POLICY_UNAVAILABLE"
        assert "policy-2" not in backend.jobs
        await gateway.wait_ready(ready=False)
        # What was admitted goes on.
        await backend.finish(job, n=2)
        assert ids_of(await stream.rest()) == [0, 1]
        policy.start()
        await gateway.wait_ready()
        stream = client.generate("policy-3")
        await backend.finish(await backend.job("policy-3"), n=1)
        await stream.rest()
    finally:
        await gateway.close()
        await policy.close()


async def test_cancel_without_a_scheduler_is_unavailable(
    start_gateway: StartGateway, private_nats: ServerProcess, key: str
) -> None:
    gateway = await start_gateway(private_nats.url, knows="")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await Client(gateway, key).cancel("any")
    error = errors.from_rpc(caught.value)
    assert isinstance(error, Unavailable)
    assert error.reason == "CANCEL_UNCONFIRMED"


async def test_a_leaving_gateway_lets_streams_finish(
    start_gateway: StartGateway, nats_url: str, backend: Backend, key: str
) -> None:
    gateway = await start_gateway(nats_url, INFERFLUX_GATEWAY_DRAIN_NOTICE_S="60")
    client = Client(gateway, key)
    stream = client.generate("drain-1")
    job = await backend.job("drain-1")
    await backend.say(job, tokens(0))
    first = await stream.until_tokens()
    gateway.terminate()
    await gateway.wait_ready(ready=False)
    error = await client.generate("drain-2").error()
    assert isinstance(error, Unavailable)
    assert error.reason == "DRAINING"
    assert await _health(gateway) == health_pb2.HealthCheckResponse.NOT_SERVING
    await backend.finish(job, n=2, offset=1)
    assert ids_of([first, *await stream.rest()]) == [0, 1]
    assert await gateway.ended() == 0
    assert "drain-1" not in backend.cancelled


async def test_a_leaving_gateway_sends_clients_away_while_streams_finish(
    start_gateway: StartGateway, nats_url: str, backend: Backend, key: str
) -> None:
    gateway = await start_gateway(nats_url, INFERFLUX_GATEWAY_DRAIN_NOTICE_S="0")
    client = Client(gateway, key)
    stream = client.generate("drain-4")
    job = await backend.job("drain-4")
    await backend.say(job, tokens(0))
    first = await stream.until_tokens()
    gateway.terminate()
    # The channel was told to leave (GOAWAY): its next call connects anew, and nothing listens.
    async with asyncio.timeout(30):
        error = await client.generate("drain-5").error()
        # Calls that come while it closes are dropped: clients send them again.
        while error.reason in ("DRAINING", "CALL_DROPPED"):
            error = await client.generate("drain-5").error()
    assert isinstance(error, Unavailable)
    assert error.message.startswith("failed to connect")
    await backend.finish(job, n=2, offset=1)
    assert ids_of([first, *await stream.rest()]) == [0, 1]
    assert await gateway.ended() == 0
    assert "drain-4" not in backend.cancelled


async def test_a_leaving_gateway_hands_long_streams_over(
    start_gateway: StartGateway, nats_url: str, backend: Backend, gateway: GatewayProcess, key: str
) -> None:
    leaving = await start_gateway(nats_url, INFERFLUX_DRAIN_LIMIT_S="0.3")
    stream = Client(leaving, key).generate("drain-3")
    job = await backend.job("drain-3")
    await backend.say(job, tokens(0))
    first = await stream.until_tokens()
    leaving.terminate()
    error = await stream.error()
    assert isinstance(error, Unavailable)
    assert error.reason == "GATEWAY_DRAINING"
    assert "Resume" in error.message
    assert await leaving.ended() == 0
    assert "drain-3" not in backend.cancelled
    resumed = Client(gateway, key).resume("drain-3", 1)
    await backend.finish(job, n=3, offset=1)
    assert ids_of([first, *[c for c in await resumed.rest() if c.token_ids]]) == [0, 1, 2]


async def test_a_taken_port_is_told_with_its_variable(
    start_gateway: StartGateway, nats_url: str, gateway: GatewayProcess
) -> None:
    second = await start_gateway(nats_url, wait=False, INFERFLUX_GATEWAY_LISTEN=f"127.0.0.1:{gateway.port}")
    assert await second.ended() == 1
    assert "INFERFLUX_GATEWAY_LISTEN" in second.log_path.read_text().splitlines()[-1]


async def test_no_nats_is_told_with_its_variable(start_gateway: StartGateway) -> None:
    gateway = await start_gateway("nats://127.0.0.1:9", wait=False)
    assert await gateway.ended() == 1
    assert "INFERFLUX_NATS_URL" in gateway.log_path.read_text().splitlines()[-1]


async def test_a_model_whose_workers_are_gone_is_unavailable(
    private_client: Client, private_backend: Backend
) -> None:
    await private_backend.close()

    async def is_unserved() -> bool:
        return await private_client.model_names() == []

    await until(is_unserved)
    error = await private_client.chat().error()
    assert isinstance(error, Unavailable)
    assert error.reason == "NO_WORKER"
    assert error.retry_delay_s
    assert "demo" in error.message


async def _rows(gateway: GatewayProcess, admin_key: str) -> dict[str, cluster_pb2.ServiceStatus]:
    metadata = (("authorization", f"Bearer {admin_key}"),)
    answer = await gateway.cluster.GetStatus(cluster_pb2.GetStatusRequest(), metadata=metadata, timeout=10)
    return {row.name: row for row in answer.services}


async def test_a_nats_that_stands_still_is_named_as_the_cause(
    private_client: Client,
    private_nats: ServerProcess,
    admin_key: str,
) -> None:
    assert (await _rows(private_client.gateway, admin_key))["nats"].is_ready
    private_nats.pause()
    try:

        async def is_refused() -> bool:
            try:
                await private_client.model_names()
            except grpc.aio.AioRpcError:
                return True
            return False

        await until(is_refused)
        with pytest.raises(grpc.aio.AioRpcError) as listed:
            await private_client.model_names()
        for error in (errors.from_rpc(listed.value), await private_client.chat().error()):
            assert isinstance(error, Unavailable)
            assert (error.reason, error.retry_delay_s) == ("NATS_UNAVAILABLE", 2.0)
            assert "NATS" in error.message
        assert not (await _rows(private_client.gateway, admin_key))["nats"].is_ready
        await private_client.gateway.wait_ready(ready=False)
        row = (await _rows(private_client.gateway, admin_key))["gateway"]
        assert not row.is_ready
        assert "nats: connection lost" in row.detail
    finally:
        private_nats.resume()
    await private_client.gateway.wait_ready()
    await private_client.sees("demo")


async def test_a_scheduler_that_is_not_ready_is_shown_with_its_reason(
    start_gateway: StartGateway, private_nats: ServerProcess, private_backend: Backend, admin_key: str
) -> None:
    gateway = await start_gateway(private_nats.url)
    scheduler_status = scheduler_pb2.SchedulerStatus(not_ready="scheduler: NATS does not write")

    async def on_request(message: Message) -> None:
        await message.respond(scheduler_status.SerializeToString())

    serving = await private_backend.bus.serve(subjects.SCHEDULER_STATUS, on_request)
    await private_backend.bus.flush()
    rows = await _rows(gateway, admin_key)
    assert not rows["scheduler"].is_ready
    assert "NATS does not write" in rows["scheduler"].detail
    await serving.close()


async def _health(gateway: GatewayProcess) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
    stub = health_pb2_grpc.HealthStub(gateway.channel)
    request = health_pb2.HealthCheckRequest(service="inferflux.v1.InferenceService")
    return (await stub.Check(request, timeout=5)).status
