"""The HTTP server over TLS and mutual TLS, and whose forwarded headers it trusts."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx2 as httpx
import pytest
from harness.certificates import Certificates, serial_shown, try_handshake
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from inferflux.common.process.tls import ServerTls, TlsFiles
from inferflux.gateway.http import server as http_server
from inferflux.gateway.http.server import HttpServer

Start = Callable[..., Awaitable[int]]


async def who_calls(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope)
    assert request.client is not None
    said = {"client": request.client.host, "scheme": request.url.scheme}
    await JSONResponse(said)(scope, receive, send)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[HttpServer] = []

    async def start(files: TlsFiles | None = None, *, trusted: tuple[str, ...] = ()) -> int:
        server = HttpServer(who_calls, trusted_proxies=trusted)
        started.append(server)
        tls = None if files is None else ServerTls(files)
        await server.start("127.0.0.1:0", variable="TEST", tls=tls)
        return server.port

    yield start
    for server in started:
        await server.stop(0.1)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.made(tmp_path_factory.mktemp("certificates"))


async def get(port: int, files: TlsFiles | None = None, **headers: str) -> dict[str, str]:
    scheme, context = ("http", True) if files is None else ("https", files.client_context())
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(verify=context) as client:
        answer = await client.get(f"{scheme}://127.0.0.1:{port}/", headers=names)
    body: dict[str, str] = answer.json()
    return body


async def test_it_serves_those_who_trust_its_ca_and_no_plain_text(
    start: Start, certificates: Certificates
) -> None:
    port = await start(certificates.server())
    assert await get(port, certificates.client()) == {"client": "127.0.0.1", "scheme": "https"}
    with pytest.raises(httpx.ConnectError):
        await get(port, TlsFiles())
    with pytest.raises(httpx.TransportError):
        await get(port)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_old_versions_of_tls_are_refused(start: Start, certificates: Certificates) -> None:
    port = await start(certificates.server())
    await asyncio.to_thread(try_handshake, port, certificates.client(), highest=ssl.TLSVersion.TLSv1_2)
    with pytest.raises(ssl.SSLError, match=r"EOF|alert protocol version"):
        await asyncio.to_thread(try_handshake, port, certificates.client(), highest=ssl.TLSVersion.TLSv1_1)


async def test_with_mutual_tls_a_client_needs_a_certificate_of_the_ca(
    start: Start, certificates: Certificates, tmp_path: Path
) -> None:
    port = await start(certificates.server(is_mutual=True))
    assert (await get(port, certificates.client("client")))["scheme"] == "https"
    forged = Certificates.made(tmp_path).client("client")
    for files in (certificates.client(), TlsFiles(forged.cert, forged.key, certificates.ca)):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(try_handshake, port, files)


async def test_renewed_certificates_and_another_ca_count_without_a_restart(
    start: Start, tmp_path: Path
) -> None:
    certificates = Certificates.made(tmp_path / "certificates")
    port = await start(certificates.server(is_mutual=True))
    old = Certificates(tmp_path / "old")
    old.directory.mkdir()
    old.replace_by(certificates)
    assert await asyncio.to_thread(serial_shown, port, certificates.client("client")) == old.serial("gateway")
    certificates.replace_by(Certificates.made(tmp_path / "other"))

    async def is_served(files: TlsFiles) -> bool:
        try:
            await asyncio.to_thread(try_handshake, port, files)
        except (ssl.SSLError, ConnectionError):
            return False
        return True

    async with asyncio.timeout(15):
        while not await is_served(certificates.client("client")):
            await asyncio.sleep(0.1)
    # Who shows a certificate of the old CA is refused, though it trusts the new one.
    shown = old.client("client")
    assert not await is_served(TlsFiles(shown.cert, shown.key, certificates.ca))


async def test_a_connection_without_a_handshake_is_closed(
    start: Start, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_HANDSHAKE_LIMIT_S", 0.2)
    port = await start(certificates.server())

    def until_closed() -> bytes:
        with socket.create_connection(("127.0.0.1", port), 10) as silent:
            return silent.recv(1)

    assert await asyncio.to_thread(until_closed) == b""


FORWARDED = {"x_forwarded_for": "203.0.113.9", "x_forwarded_proto": "https"}
DIRECT = {"client": "127.0.0.1", "scheme": "http"}


@pytest.mark.parametrize(
    ("trusted", "seen"),
    [
        ((), DIRECT),
        (("10.0.0.0/8", "192.0.2.1"), DIRECT),
        (("127.0.0.1",), {"client": "203.0.113.9", "scheme": "https"}),
        (("10.0.0.0/8", "127.0.0.0/8"), {"client": "203.0.113.9", "scheme": "https"}),
    ],
)
async def test_forwarded_headers_count_from_trusted_addresses_alone(
    start: Start, trusted: tuple[str, ...], seen: dict[str, str]
) -> None:
    assert await get(await start(trusted=trusted), None, **FORWARDED) == seen


async def test_what_a_client_wrote_before_its_proxy_did_is_not_believed(start: Start) -> None:
    port = await start(trusted=("127.0.0.1", "10.0.0.0/8"))
    seen = await get(port, x_forwarded_for="198.51.100.1, 203.0.113.9, 10.0.0.7")
    assert seen["client"] == "203.0.113.9"
