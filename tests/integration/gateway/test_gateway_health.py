"""What a gateway says of its health: ready only with a model, degraded where something else is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.gateway import GatewayProcess, StartGateway, until
from harness.http_client import HttpClient
from harness.servers import ServerProcess

from inferflux.common.bus import Bus, Message
from inferflux.common.contract import subjects
from inferflux.v1 import cluster_pb2, host_pb2, model_pb2, scheduler_pb2

SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)
LOADING, READY, FAILED = (
    model_pb2.MODEL_STATE_LOADING,
    model_pb2.MODEL_STATE_READY,
    model_pb2.MODEL_STATE_FAILED,
)


class Cluster:
    """Stands for a host of models and for the scheduler on the bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.models = [hosted("a", LOADING)]
        self.scheduler_lacks = ""
        self.pools: list[scheduler_pb2.PoolStatus] = []

    async def run(self) -> None:
        while True:
            status = host_pb2.HostStatus(
                host_id="h",
                incarnation="i",
                models_max=4,
                memory_bytes=100,
                memory_free_bytes=40,
                models=self.models,
            )
            await self._bus.publish(subjects.host_status("h"), status.SerializeToString())
            await asyncio.sleep(0.1)

    async def on_question(self, message: Message) -> None:
        asked = scheduler_pb2.SchedulerStatusRequest.FromString(message.data)
        queued = 0 if asked.without_workers else 1
        answer = scheduler_pb2.SchedulerStatus(
            queued=queued, not_ready=self.scheduler_lacks, pools=self.pools
        )
        await message.respond(answer.SerializeToString())


def hosted(
    name: str, state: model_pb2.ModelState.ValueType, *, is_pinned: bool = False
) -> host_pb2.HostedModel:
    card = model_pb2.ModelCard(name=name, digest=name.encode().hex().rjust(64, "0"), context_length=64)
    return host_pb2.HostedModel(card=card, state=state, is_pinned=is_pinned)


@pytest.fixture
async def cluster(private_nats: ServerProcess) -> AsyncIterator[Cluster]:
    bus = await Bus.connect(private_nats.url, name="cluster")
    made = Cluster(bus)
    running = asyncio.create_task(made.run())
    serving = await bus.serve(subjects.SCHEDULER_STATUS, made.on_question)
    yield made
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await serving.close()
    await bus.close()


async def health_of(gateway: GatewayProcess, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(gateway.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10, wait_for_ready=True)
    return int(answer.status)


async def degraded(gateway: GatewayProcess) -> str:
    """Why it is degraded; "" if it is not."""
    answer = await HttpClient(gateway.http_port, "").get("/healthz")
    assert answer.status == 200
    told = answer.json()
    assert told["status"] == ("degraded" if told["reason"] else "ok")
    assert json.loads((await gateway.get("/healthz"))[1]).keys() == told.keys()
    return str(told["reason"])


async def test_a_gateway_is_ready_with_a_model_and_says_what_is_wrong_beside_that(
    start_gateway: StartGateway, private_nats: ServerProcess, cluster: Cluster, admin_key: str
) -> None:
    gateway = await start_gateway(
        private_nats.url, wait=False, knows="", INFERFLUX_GATEWAY_NEEDS_MODEL="true"
    )

    async def lacks_a_model() -> bool:
        status, body = await gateway.get("/readyz")
        told = json.loads(body) if status else {}
        wanted = "no model is ready: 1 loading"
        return (
            status == 503
            and told["not_met"] == ["models"]
            and (told["conditions"]["models"]["detail"] == wanted)
        )

    async def serves(service: str, status: int) -> None:
        async def is_so() -> bool:
            return await health_of(gateway, service) == status

        await until(is_so)

    await until(lacks_a_model)
    await serves("inferflux.v1.ModelService", SERVING)  # which loads one
    assert (
        await health_of(gateway) == await health_of(gateway, "inferflux.v1.InferenceService") == NOT_SERVING
    )
    assert "models: no model is ready" in await degraded(gateway)

    cluster.models = [hosted("a", READY)]
    await gateway.wait_ready()
    await serves("", SERVING)
    await serves("inferflux.v1.InferenceService", SERVING)

    async def is_well() -> bool:
        return not await degraded(gateway)

    await until(is_well)

    cluster.models.append(hosted("b", FAILED, is_pinned=True))

    async def tells_the_failure() -> bool:
        return await degraded(gateway) == "models: pinned models that failed: 1"

    await until(tells_the_failure)
    await gateway.wait_ready()

    metadata = (("authorization", f"Bearer {admin_key}"),)
    status = await gateway.cluster.GetStatus(cluster_pb2.GetStatusRequest(), metadata=metadata, timeout=10)
    (host,) = status.hosts
    assert (host.host_id, host.ready, host.failed, host.models_max) == ("h", 1, 1, 4)
    assert (host.memory_bytes, host.memory_used_bytes) == (100, 60)


async def test_a_gateway_that_needs_no_model_is_ready_without_one_and_degraded(
    start_gateway: StartGateway, private_nats: ServerProcess
) -> None:
    gateway = await start_gateway(private_nats.url, knows="")

    async def tells_all() -> bool:
        reason = await degraded(gateway)
        return "scheduler: it does not answer" in reason and "models: no model is ready" in reason

    await until(tells_all)
    assert (await gateway.get("/readyz"))[0] == 200


async def test_strangers_learn_that_the_scheduler_is_not_ready_and_no_path(
    start_gateway: StartGateway, private_nats: ServerProcess, cluster: Cluster, admin_key: str
) -> None:
    cluster.models = [hosted("a", READY)]
    cluster.scheduler_lacks = "scheduler: NATS does not write: write /data/1.blk: no space left"
    gateway = await start_gateway(private_nats.url, knows="", INFERFLUX_GATEWAY_NEEDS_MODEL="true")

    async def is_told() -> bool:
        return await degraded(gateway) == "scheduler: it is not ready: requests wait"

    await until(is_told)


async def test_a_gateway_is_ready_and_degraded_while_a_pool_lacks_workers(
    start_gateway: StartGateway, private_nats: ServerProcess, cluster: Cluster
) -> None:
    cluster.models = [hosted("a", READY)]
    decode = scheduler_pb2.PoolStatus(role=scheduler_pb2.WORKER_ROLE_DECODE, ready=1, expected=2)
    cluster.pools = [decode]
    gateway = await start_gateway(private_nats.url, knows="", INFERFLUX_GATEWAY_NEEDS_MODEL="true")

    async def told() -> tuple[int, str, str]:
        status, body = await gateway.get("/readyz")
        said = json.loads(body)
        assert said["role"] == "gateway"
        return status, said["status"], said["reason"]

    async def lacks_a_worker() -> bool:
        return await told() == (200, "degraded", "decode pool not ready")

    async def is_well() -> bool:
        return await told() == (200, "ok", "")

    await until(lacks_a_worker)
    assert await degraded(gateway) == "pools: decode pool not ready: 1 of 2 workers"
    decode.ready = 2
    await until(is_well)
