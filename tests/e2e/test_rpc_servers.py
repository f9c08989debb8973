"""A stack whose model has its layers on two RPC servers, one of which dies under load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.client import Answer, Client, countdown
from harness.inferctl import run
from harness.rpc_servers import RpcServer, endpoints, rpc_servers

from inferflux.cli.stack import Stack, StackOptions
from inferflux.v1 import model_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.long]

WAIT_S = 60.0
REQUESTS = [countdown(start, 1) for start in (30, 29, 28)]


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[RpcServer]]:
    with rpc_servers(tmp_path_factory.mktemp("rpc")) as started:
        yield started


@pytest.fixture(scope="module")
async def stack(servers: list[RpcServer], demo_model: Path) -> AsyncIterator[Stack]:
    variables = {"INFERFLUX_WORKER_RPC_SERVERS": endpoints(servers)}
    options = StackOptions(
        model=demo_model, slots=4, threads=1, restarts=False, service_env={"worker": variables}
    )
    async with Stack(options) as running:
        yield running


async def model_once(client: Client, state: model_pb2.ModelState.ValueType, why: str = "") -> None:
    """Returns when the model is in this state, for this reason."""
    async with asyncio.timeout(WAIT_S):
        while True:
            listed = await client.models.ListModels(model_pb2.ListModelsRequest(), metadata=client.metadata())
            if any(model.state == state and why in model.reason for model in listed.models):
                return
            await asyncio.sleep(0.05)


async def test_streams_go_on_when_a_dead_rpc_server_is_back(
    stack: Stack, client: Client, servers: list[RpcServer], tmp_path: Path
) -> None:
    env = {
        "INFERFLUX_ENDPOINT": stack.endpoint,
        "INFERFLUX_API_KEY": stack.api_key,
        "INFERFLUX_STATE_DIR": str(tmp_path),
    }
    listed = await run("devices", "--json", env=env)
    assert listed.returncode == 0, listed.stderr
    (worker,) = json.loads(listed.stdout)
    remote = [device["endpoint"] for device in worker["devices"] if device.get("layers")]
    assert remote == [server.endpoint for server in servers]

    expected = [(await client.ask(request)).token_ids for request in REQUESTS]
    answers = [Answer() for _ in REQUESTS]
    running = [
        asyncio.create_task(client.ask(request, request_id=f"rpc-{i}", answer=answer))
        for i, (request, answer) in enumerate(zip(REQUESTS, answers, strict=True))
    ]
    async with asyncio.timeout(WAIT_S):
        await answers[0].first_token.wait()
    servers[1].kill()
    away = f"the RPC server {servers[1].endpoint} cannot be reached"
    await model_once(client, model_pb2.MODEL_STATE_LOADING, away)
    servers[1].start()
    await model_once(client, model_pb2.MODEL_STATE_READY)
    async with asyncio.timeout(WAIT_S):
        assert [(await answer).token_ids for answer in running] == expected
    assert any(len(answer.epochs) > 1 for answer in answers)
