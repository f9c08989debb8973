"""gRPC over TLS and mutual TLS, with certificates that are renewed while it serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.certificates import Certificates, serial_shown

from inferflux.common.calls import grpc_client
from inferflux.common.calls.grpc_server import GrpcServer, build_server
from inferflux.common.calls.grpc_tls import certificate_name, channel_credentials, server_credentials
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process.tls import ClientTls, ServerTls, TlsFiles

Start = Callable[[TlsFiles], Awaitable[int]]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.made(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of a CA that no server trusts."""
    return Certificates.made(tmp_path_factory.mktemp("strangers"))


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers: list[GrpcServer] = []

    async def start(files: TlsFiles) -> int:
        server = build_server()
        servers.append(server)
        return await server.start("127.0.0.1:0", tls=ServerTls(files))

    yield start
    for server in servers:
        await server.stop(0)


async def asked(channel: grpc.aio.Channel) -> grpc.StatusCode:
    """How a call ended."""
    try:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def ask(port: int, files: TlsFiles | None) -> grpc.StatusCode:
    address = f"127.0.0.1:{port}"
    channel = (
        grpc_client.channel(address)
        if files is None
        else grpc_client.renewed_channel(address, ClientTls(files))
    )
    try:
        return await asked(channel)
    finally:
        await channel.close()


async def test_a_client_that_trusts_the_ca_is_served_and_others_do_not_talk_to_it(
    start: Start, certificates: Certificates, strangers: Certificates
) -> None:
    port = await start(certificates.server())
    assert await ask(port, certificates.client()) is grpc.StatusCode.OK
    assert await ask(port, strangers.client()) is grpc.StatusCode.UNAVAILABLE
    assert await ask(port, None) is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_of_another_host_is_refused(
    start: Start, certificates: Certificates, tmp_path: Path
) -> None:
    port = await start(certificates.server())
    credentials = channel_credentials(ClientTls(certificates.client())).current()
    options = [("grpc.ssl_target_name_override", "elsewhere.example")]
    async with grpc_client.channel(f"127.0.0.1:{port}", options=options, credentials=credentials) as channel:
        assert await asked(channel) is grpc.StatusCode.UNAVAILABLE


async def test_with_mutual_tls_a_client_needs_a_certificate_of_the_ca(
    start: Start, certificates: Certificates, strangers: Certificates, tmp_path: Path
) -> None:
    port = await start(certificates.server("policy", is_mutual=True))
    assert await ask(port, certificates.client("gateway")) is grpc.StatusCode.OK
    assert await ask(port, certificates.client()) is grpc.StatusCode.UNAVAILABLE
    forged = strangers.client("gateway")
    assert await ask(port, TlsFiles(forged.cert, forged.key, certificates.ca)) is grpc.StatusCode.UNAVAILABLE
    expired = Certificates(tmp_path)
    for name in ("ca.pem", "ca.key"):
        (tmp_path / name).write_bytes((certificates.directory / name).read_bytes())
    Certificates.made(tmp_path, days=0)
    assert await ask(port, expired.client("gateway")) is grpc.StatusCode.UNAVAILABLE


async def test_a_server_knows_whose_certificate_it_was_shown(certificates: Certificates) -> None:
    names: list[str] = []

    class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
        async def Check(self, _: Any, context: Any) -> health_pb2.HealthCheckResponse:  # noqa: N802
            names.append(certificate_name(context.auth_context()))
            return health_pb2.HealthCheckResponse()

    for files, shown in ((certificates.server("policy", is_mutual=True), "gateway"), (None, "")):
        server = grpc.aio.server()
        health_pb2_grpc.add_HealthServicer_to_server(Health(), server)
        port = (
            server.add_insecure_port("127.0.0.1:0")
            if files is None
            else server.add_secure_port("127.0.0.1:0", server_credentials(ServerTls(files)))
        )
        await server.start()
        assert await ask(port, certificates.client("gateway") if files else None) is grpc.StatusCode.OK
        assert names.pop() == shown
        await server.stop(0)


async def test_renewed_certificates_are_shown_without_a_restart_and_calls_go_on(
    start: Start, tmp_path: Path
) -> None:
    certificates = Certificates.made(tmp_path / "certificates")
    port = await start(certificates.server("policy", is_mutual=True))
    files = certificates.client("gateway")
    async with asyncio.TaskGroup() as group:
        channel = grpc_client.renewed_channel(f"127.0.0.1:{port}", ClientTls(files))
        assert await asked(channel) is grpc.StatusCode.OK
        before = await asyncio.to_thread(serial_shown, port, files)
        assert before == certificates.serial("policy")
        certificates.renew()
        after = certificates.serial("policy")
        assert after != before
        async with asyncio.timeout(15):
            while await asyncio.to_thread(serial_shown, port, files) != after:
                assert await asked(channel) is grpc.StatusCode.OK
                await asyncio.sleep(0.1)
        assert await asked(channel) is grpc.StatusCode.OK
        group.create_task(channel.close())


async def test_both_ends_move_to_another_ca(start: Start, tmp_path: Path) -> None:
    certificates = Certificates.made(tmp_path / "certificates")
    port = await start(certificates.server("policy", is_mutual=True))
    channel = grpc_client.renewed_channel(f"127.0.0.1:{port}", ClientTls(certificates.client("gateway")))
    assert await asked(channel) is grpc.StatusCode.OK
    old = Certificates(tmp_path / "old")
    old.directory.mkdir()
    old.replace_by(certificates)
    certificates.replace_by(Certificates.made(tmp_path / "other"))
    async with asyncio.timeout(15):
        while await ask(port, old.client("gateway")) is grpc.StatusCode.OK:
            await asyncio.sleep(0.1)
        while await asked(channel) is not grpc.StatusCode.OK:
            await asyncio.sleep(0.1)
    assert await ask(port, certificates.client("gateway")) is grpc.StatusCode.OK
    await channel.close()


async def test_a_certificate_without_its_key_changes_nothing_until_the_key_is_there(
    start: Start, tmp_path: Path
) -> None:
    certificates = Certificates.made(tmp_path / "certificates")
    other = Certificates.made(tmp_path / "other")
    files = certificates.server("policy")
    assert files.cert is not None
    assert files.key is not None
    port = await start(files)
    both = tmp_path / "both.pem"
    both.write_bytes(certificates.ca.read_bytes() + other.ca.read_bytes())
    trusting = TlsFiles(ca=both)
    before = certificates.serial("policy")
    new = other.server("policy")
    assert new.cert is not None
    assert new.key is not None
    files.cert.write_bytes(new.cert.read_bytes())
    # Looked at again after a second: by then it has seen the pair that does not match.
    for _ in range(15):
        assert await asyncio.to_thread(serial_shown, port, trusting) == before
        await asyncio.sleep(0.1)
    files.key.write_bytes(new.key.read_bytes())
    async with asyncio.timeout(15):
        while await asyncio.to_thread(serial_shown, port, trusting) != other.serial("policy"):
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("damage", ["missing", "no pem", "another key"])
def test_files_that_cannot_be_used_stop_the_start_and_name_the_setting(tmp_path: Path, damage: str) -> None:
    certificates = Certificates.made(tmp_path)
    files = certificates.server("policy")
    assert files.key is not None
    if damage == "missing":
        files.key.unlink()
    elif damage == "no pem":
        files.key.write_text("nothing")
    else:
        files.key.write_bytes((tmp_path / "gateway.key").read_bytes())
    with pytest.raises(InvalidArgument) as refused:
        ServerTls(files)
    assert refused.value.field == "INFERFLUX_TLS_CERT"
    assert str(files.key) in refused.value.message
