"""One stack that speaks TLS on every connection, with certificates on both ends."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import httpx2 as httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.inferctl import run
from harness.tls_proxy import TlsProxy

from inferflux.cli.reach.state_dir import StateDir
from inferflux.cli.stack import Stack, StackOptions
from inferflux.cli.stack.cert_files import files_of
from inferflux.cli.stack.certificates import write_certificates
from inferflux.cli.stack.servers import LOOPBACK, free_port
from inferflux.client import AsyncClient, InferFluxError, Tls
from inferflux.client.token_reader import TokenReader
from inferflux.common.bus import Bus
from inferflux.common.calls import grpc_client
from inferflux.common.calls.grpc_tls import channel_credentials
from inferflux.common.contract.errors import Unavailable
from inferflux.common.process.tls import ClientTls, TlsFiles
from inferflux.common.servers import redis_users

pytestmark = pytest.mark.e2e
MODEL = "inferflux-demo"


@pytest.fixture(scope="module")
async def stack(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    state_dir = StateDir(tmp_path_factory.mktemp("tls") / "state")
    state_dir.prepare()
    write_certificates(state_dir.certificates)
    # The stack's valkey-server does not speak TLS: this does, before it.
    redis_port = free_port()
    ca = state_dir.certificates / "ca.pem"
    proxy = TlsProxy(redis_port, TlsFiles(*files_of(state_dir.certificates, "valkey"), ca))
    where = f"{LOOPBACK}:{await proxy.start()}/0"
    passwords = state_dir.passwords("redis", redis_users.USERS)
    urls = {
        kind: {"INFERFLUX_REDIS_URL": f"rediss://{kind}:{passwords[kind]}@{where}"}
        for kind in ("policy", "gateway", "scheduler", "worker")
    }
    options = StackOptions(
        model=demo_model,
        state_dir=state_dir.path,
        workers=2,
        has_tls=True,
        redis_port=redis_port,
        service_env=urls,
        env={"INFERFLUX_GATEWAY_ANSWER_CACHE_BYTES": "1MB"},
    )
    async with Stack(options) as running:
        yield running
    await proxy.stop()


def certificates(stack: Stack) -> Path:
    return stack.state_dir.certificates


def shown_as(stack: Stack, name: str) -> TlsFiles:
    return TlsFiles(*files_of(certificates(stack), name), certificates(stack) / "ca.pem")


async def test_a_client_with_the_ca_gets_an_answer_and_one_without_none(stack: Stack) -> None:
    async with AsyncClient(stack.endpoint, api_key=stack.api_key, tls=stack.tls) as client:
        assert await client.chat("What is the capital of France?", model=MODEL, max_tokens=8).text()
    async with AsyncClient(stack.endpoint, api_key=stack.api_key, retries=0) as plain:
        with pytest.raises(InferFluxError):
            await plain.chat("Hello", model=MODEL, max_tokens=8, resume_window_s=0).text()


async def test_inferctl_finds_what_it_needs_in_the_state_directory(stack: Stack) -> None:
    where = ["--state-dir", str(stack.state_dir.path)]
    told = await run("chat", *where, "--max-tokens", "8", "Hello", env={})
    assert (told.returncode, bool(told.stdout.strip())) == (0, True), told.stderr
    ca = str(certificates(stack) / "ca.pem")
    elsewhere = {"INFERFLUX_ENDPOINT": stack.endpoint, "INFERFLUX_API_KEY": stack.api_key}
    told = await run("--tls-ca", ca, "models", env=elsewhere)
    assert MODEL in told.stdout, told.stderr
    assert (await run("models", env=elsewhere)).returncode == 1


async def test_http_is_served_over_tls_alone(stack: Stack) -> None:
    context = ssl.create_default_context(cafile=certificates(stack) / "ca.pem")

    headers = {"Authorization": f"Bearer {stack.api_key}"}
    assert stack.http_url.startswith("https://")
    async with httpx.AsyncClient(verify=context, headers=headers) as client:
        listed = (await client.get(f"{stack.http_url}/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == [MODEL]
        with pytest.raises(httpx.TransportError):
            await client.get(stack.http_url.replace("https", "http") + "/v1/models")
    async with httpx.AsyncClient() as stranger:
        with pytest.raises(httpx.ConnectError):
            await stranger.get(f"{stack.http_url}/healthz")


async def test_policy_is_called_with_a_certificate_alone(stack: Stack) -> None:
    address = stack.processes["policy"].spec.env["INFERFLUX_POLICY_LISTEN"]

    async def ask(channel: grpc.aio.Channel) -> grpc.StatusCode:
        async with channel:
            try:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    for files, status in (
        (shown_as(stack, "gateway"), grpc.StatusCode.OK),
        (TlsFiles(ca=certificates(stack) / "ca.pem"), grpc.StatusCode.UNAVAILABLE),
    ):
        credentials = channel_credentials(ClientTls(files)).current()
        assert await ask(grpc_client.channel(address, credentials=credentials)) is status
    assert await ask(grpc_client.channel(address)) is grpc.StatusCode.UNAVAILABLE


async def test_servers_take_neither_plain_text_nor_a_client_without_a_certificate(stack: Stack) -> None:
    bare = TlsFiles(ca=certificates(stack) / "ca.pem")
    for url in (stack.nats_url, stack.nats_url.replace("tls://", "nats://")):
        with pytest.raises(Unavailable):
            await Bus.connect(url, name="t", tls=bare, connect_timeout_s=1)
    bus = await Bus.connect(stack.nats_url, name="t", tls=shown_as(stack, "client"))
    await bus.close()


async def test_tokens_are_read_from_nats_over_tls(stack: Stack) -> None:
    cert, key = files_of(certificates(stack), "client")
    tls = Tls(certificates(stack) / "ca.pem", cert, key).context()
    async with (
        AsyncClient(stack.endpoint, api_key=stack.api_key, tls=stack.tls) as client,
        TokenReader(stack.tokens_url, tls=tls) as reader,
    ):
        stream = client.chat("Hello", model=MODEL, max_tokens=8, request_id="over-tls")
        await stream.text()
        read = [i async for chunk in reader.read("default", "over-tls") for i in chunk.token_ids]
        assert read == stream.token_ids


async def test_a_killed_worker_is_reported_and_its_stream_goes_on_at_another(stack: Stack) -> None:
    async with AsyncClient(stack.endpoint, api_key=stack.api_key, tls=stack.tls) as client:
        stream = client.chat("Tell me a story.", model=MODEL, max_tokens=200, ignore_eos=True, seed=1)
        workers: list[str] = []
        try:
            async for chunk in stream:
                if chunk.HasField("started"):
                    workers.append(chunk.started.worker_id)
                    if len(workers) == 1:
                        await stack.kill(workers[0])
            assert len(stream.token_ids) == 200
        finally:
            await stack.restart(workers[0])
