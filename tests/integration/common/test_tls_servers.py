"""NATS and Redis over TLS and mutual TLS: real servers, and one that lies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis.exceptions
from harness.certificates import Certificates
from harness.servers import ServerProcess
from harness.tls_proxy import TlsProxy

from inferflux.cli.stack.servers import LOOPBACK, free_port, nats_command
from inferflux.common.bus import Bus
from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.process.tls import TlsFiles
from inferflux.common.redis import store


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.made(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.made(tmp_path_factory.mktemp("strangers"))


@contextlib.contextmanager
def nats(directory: Path, tls: TlsFiles) -> Iterator[ServerProcess]:
    port = free_port()
    command = nats_command(port, directory / "nats", tls=tls)
    yield from _running(ServerProcess(command, port=port, name="nats-server", log_path=directory / "log"))


@contextlib.asynccontextmanager
async def tls_before(port: int, files: TlsFiles) -> AsyncIterator[int]:
    """Speaks TLS before a server that does not; yields where."""
    proxy = TlsProxy(port, files)
    yield await proxy.start()
    await proxy.stop()


def _running(server: ServerProcess) -> Iterator[ServerProcess]:
    server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.kill()


async def connects(url: str, tls: TlsFiles) -> bool:
    try:
        bus = await Bus.connect(url, name="t", tls=tls, connect_timeout_s=1.5)
    except Unavailable:
        return False
    await bus.flush()
    await bus.close()
    return True


@pytest.mark.parametrize("is_mutual", [False, True])
async def test_nats_is_spoken_to_by_those_who_trust_its_ca_and_have_what_it_asks_for(
    tmp_path: Path, certificates: Certificates, strangers: Certificates, is_mutual: bool
) -> None:
    with nats(tmp_path, certificates.server("nats", is_mutual=is_mutual)) as server:
        url = f"tls://{LOOPBACK}:{server.port}"
        assert await connects(url, certificates.client("worker"))
        assert await connects(url, certificates.client()) is not is_mutual
        assert not await connects(url, strangers.client("worker"))
        forged = strangers.client("worker")
        with_forged = TlsFiles(forged.cert, forged.key, certificates.ca)
        assert await connects(url, with_forged) is not is_mutual


async def test_a_connection_to_nats_is_made_again_with_renewed_certificates(tmp_path: Path) -> None:
    certificates = Certificates.made(tmp_path / "certificates")
    with nats(tmp_path, certificates.server("nats", is_mutual=True)) as server:
        url = f"tls://{LOOPBACK}:{server.port}"
        bus = await Bus.connect(url, name="t", tls=certificates.client("worker"))
        try:
            certificates.replace_by(Certificates.made(tmp_path / "other"))
            server.restart()
            async with asyncio.timeout(20):
                while True:
                    with contextlib.suppress(Unavailable):
                        await bus.flush(0.5)
                        break
        finally:
            await bus.close()


async def test_nats_takes_new_certificates_at_a_signal_and_connections_stay(tmp_path: Path) -> None:
    certificates = Certificates.made(tmp_path / "certificates")
    with nats(tmp_path, certificates.server("nats", is_mutual=True)) as server:
        url = f"tls://{LOOPBACK}:{server.port}"
        bus = await Bus.connect(url, name="t", tls=certificates.client("worker"))
        try:
            certificates.replace_by(Certificates.made(tmp_path / "other"))
            os.kill(server.pid, signal.SIGHUP)
            async with asyncio.timeout(20):
                while not await connects(url, certificates.client("worker")):
                    await asyncio.sleep(0.05)
            await bus.flush()
        finally:
            await bus.close()


@pytest.fixture
async def liar() -> AsyncIterator[tuple[int, list[bytes]]]:
    """Says that it is a nats-server without TLS, and keeps what it is told."""
    told: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version": "2.15.1", "max_payload": 1048576, "auth_required": true}\r\n')
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(4096):
                told.append(data)
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    yield server.sockets[0].getsockname()[1], told
    server.close()


async def test_no_password_is_sent_to_a_server_that_does_not_speak_the_tls_of_its_url(
    liar: tuple[int, list[bytes]], certificates: Certificates
) -> None:
    port, told = liar
    with pytest.raises(Unavailable, match="does not speak TLS"):
        await Bus.connect(
            f"tls://u:secret@{LOOPBACK}:{port}", name="t", tls=certificates.client(), connect_timeout_s=1
        )
    assert told == []


async def test_a_ca_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    files = TlsFiles(ca=tmp_path / "none.pem", variable="INFERFLUX_TLS_CA")
    with pytest.raises(InvalidArgument, match=r"INFERFLUX_TLS_CA: cannot use .*none\.pem"):
        await Bus.connect("tls://127.0.0.1:1", name="t", tls=files, connect_timeout_s=1)
    with pytest.raises(InvalidArgument, match=r"INFERFLUX_TLS_CA: cannot use .*none\.pem"):
        store.connect("rediss://127.0.0.1:1/0", tls=files)


async def answers(url: str, tls: TlsFiles | None) -> bool:
    async with store.connect(url, tls=tls) as client:
        try:
            return bool(await client.ping())
        except (redis.exceptions.RedisError, OSError):
            return False


@pytest.mark.parametrize("is_mutual", [False, True])
async def test_redis_is_spoken_to_by_those_who_trust_its_ca_and_have_what_it_asks_for(
    private_valkey: ServerProcess, certificates: Certificates, strangers: Certificates, is_mutual: bool
) -> None:
    files = certificates.server("valkey", is_mutual=is_mutual)
    async with tls_before(private_valkey.port, files) as port:
        url = f"rediss://{LOOPBACK}:{port}/0"
        assert await answers(url, certificates.client("policy"))
        assert await answers(url, certificates.client()) is not is_mutual
        assert not await answers(url, strangers.client("policy"))
        forged = strangers.client("policy")
        assert await answers(url, TlsFiles(forged.cert, forged.key, certificates.ca)) is not is_mutual
        assert not await answers(f"redis://{LOOPBACK}:{port}/0", None)


async def test_a_url_with_tls_options_of_its_own_goes_by_them(
    private_valkey: ServerProcess, certificates: Certificates
) -> None:
    async with tls_before(private_valkey.port, certificates.server("valkey")) as port:
        assert await answers(f"rediss://{LOOPBACK}:{port}/0?ssl_ca_certs={certificates.ca}", None)
        assert not await answers(f"rediss://{LOOPBACK}:{port}/0", None)


async def test_a_connection_to_redis_is_made_again_with_renewed_certificates(
    private_valkey: ServerProcess, tmp_path: Path
) -> None:
    certificates = Certificates.made(tmp_path / "certificates")
    proxy = TlsProxy(private_valkey.port, certificates.server("valkey", is_mutual=True))
    url = f"rediss://{LOOPBACK}:{await proxy.start()}/0"
    try:
        async with store.connect(url, tls=certificates.client("policy")) as client:
            assert await client.ping()
            certificates.replace_by(Certificates.made(tmp_path / "other"))
            proxy.break_connections()
            async with asyncio.timeout(20):
                while True:
                    with contextlib.suppress(redis.exceptions.RedisError, OSError):
                        if await client.ping():
                            break
                    await asyncio.sleep(0.05)
    finally:
        await proxy.stop()
