"""One policy process, one key, and a gateway with a scheduler-and-worker behind it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.gateway import Backend, Client, GatewayProcess, StartGateway
from harness.http_client import HttpClient
from harness.policy import PolicyProcess
from harness.servers import ServerProcess
from harness.starting import patched

from inferflux.common.bus import Bus
from inferflux.worker.files.model_file import read_model_file

DEMO_MODEL = Path(__file__).resolve().parents[3] / "models" / "inferflux-demo.gguf"


@pytest.fixture(scope="session")
def demo_tokenizer() -> bytes:
    """The demo model's tokenizer file, as its worker puts it into the object store."""
    return read_model_file(DEMO_MODEL).tokenizer


@pytest.fixture(scope="session")
def admin_key() -> str:
    return f"ifx_{secrets.token_urlsafe(32)}"


@pytest.fixture(scope="session")
async def policy(
    tmp_path_factory: pytest.TempPathFactory, valkey_url: str, admin_key: str
) -> AsyncIterator[PolicyProcess]:
    directory = tmp_path_factory.mktemp("policy")
    process = PolicyProcess(directory, valkey_url, INFERFLUX_POLICY_BOOTSTRAP_KEY=admin_key)
    async with process.running():
        yield process


@pytest.fixture(scope="session")
async def key(policy: PolicyProcess, admin_key: str) -> str:
    """A key of the tenant `acme` for inference and models."""
    return (await policy.create_key(admin_key, scopes=("inference", "models"))).secret


@pytest.fixture(scope="session")
async def other_key(policy: PolicyProcess, admin_key: str) -> str:
    """A key of the tenant `other`."""
    return (await policy.create_key(admin_key, tenant="other")).secret


@pytest.fixture(scope="session")
async def session_bus(nats_url: str) -> AsyncIterator[Bus]:
    connection = await Bus.connect(nats_url, name="backend")
    yield connection
    await connection.close()


@pytest.fixture(scope="session")
async def backend(session_bus: Bus, demo_tokenizer: bytes) -> AsyncIterator[Backend]:
    """Serves the model `demo` for the whole session: use request ids of your own."""
    behind = Backend(session_bus, demo_tokenizer)
    await behind.start()
    yield behind
    await behind.close()


@pytest.fixture(scope="session")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory,
    nats_url: str,
    valkey_url: str,
    policy: PolicyProcess,
    backend: Backend,
    key: str,
) -> AsyncIterator[GatewayProcess]:
    """A gateway for the whole session."""
    process = GatewayProcess(
        tmp_path_factory.mktemp("gateway"),
        nats_url,
        f"127.0.0.1:{policy.port}",
        INFERFLUX_ZONE="north",
        INFERFLUX_REDIS_URL=valkey_url,
        **patched("inferflux.gateway.request.services:_RELAY_LIMITS.silence_s", 1.0),
    )
    process.start()
    try:
        await process.wait_ready()
        await Client(process, key).sees(backend.card.name)
        yield process
    finally:
        await process.close()


@pytest.fixture
def client(gateway: GatewayProcess, key: str) -> Client:
    return Client(gateway, key)


@pytest.fixture
async def constraining(client: Client, backend: Backend) -> AsyncIterator[Backend]:
    """The backend while its model can constrain answers, as the gateway knows; earlier jobs are forgotten."""
    backend.card.can_constrain = True
    await backend.beat()
    await client.sees_constraints(backend.card.name)
    backend.jobs.clear()
    yield backend
    backend.card.can_constrain = False
    await backend.beat()


@pytest.fixture
def http(gateway: GatewayProcess, key: str) -> HttpClient:
    """Calls the session's gateway over HTTP."""
    return HttpClient(gateway.http_port, key)


@pytest.fixture
async def start_gateway(tmp_path: Path, policy: PolicyProcess, key: str) -> AsyncIterator[StartGateway]:
    """Start gateways that end with the test."""
    started: list[GatewayProcess] = []

    async def start(
        nats_url: str, *, wait: bool = True, knows: str = "demo", **variables: str
    ) -> GatewayProcess:
        process = GatewayProcess(tmp_path, nats_url, f"127.0.0.1:{policy.port}", **variables)
        started.append(process)
        process.start()
        if wait:
            await process.wait_ready()
        if wait and knows:
            await Client(process, key).sees(knows)
        return process

    yield start
    for process in started:
        await process.close()


@pytest.fixture
async def private_backend(private_nats: ServerProcess, demo_tokenizer: bytes) -> AsyncIterator[Backend]:
    """Serves the model `demo` on a NATS that the test may kill and restart."""
    connection = await Bus.connect(private_nats.url, name="backend")
    behind = Backend(connection, demo_tokenizer)
    await behind.start()
    yield behind
    await behind.close()
    await connection.close()


@pytest.fixture
async def private_client(
    start_gateway: StartGateway, private_nats: ServerProcess, private_backend: Backend, key: str
) -> Client:
    """Calls a gateway of the test's own, on a NATS that the test may kill and restart."""
    return Client(await start_gateway(private_nats.url, knows=private_backend.card.name), key)
