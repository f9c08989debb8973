"""The HTTP client against servers that answer as they like."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.certificates import Certificates
from harness.http_proxy import http_proxy
from harness.policy import until

from inferflux.common.contract.errors import Unavailable
from inferflux.common.http.http_addresses import parse_networks
from inferflux.common.http.http_client import HttpClient, HttpResponse
from inferflux.common.http.http_connecting import Resolve
from inferflux.common.http.http_proxies import Proxies
from inferflux.common.http.http_settings import HttpClientSettings
from inferflux.common.process.settings import load

LOOPBACK = parse_networks(["127.0.0.0/8"])
Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Takes requests on loopback and lets a test answer each.

    Attributes:
        heads: of the requests, as they came.
        connections: that were made.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.heads: list[str] = []
        self.connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head.decode())
                length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                await self._answer(body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/keys"


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(answer)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()


def answering(body: bytes, *, status: str = "200 OK", headers: str = "") -> Answer:
    async def answer(_body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)

    return answer


@asynccontextmanager
async def client_of(**more: object) -> AsyncIterator[HttpClient]:
    client = HttpClient(**({"allowed_networks": LOOPBACK} | more))  # type: ignore[arg-type]
    try:
        yield client
    finally:
        await client.aclose()


def to(*addresses: str) -> Resolve:
    """Every name has these addresses."""

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return addresses

    return resolve


async def refused(call: Awaitable[HttpResponse]) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        await call
    return caught.value


async def test_an_answer_comes_whole_over_a_connection_that_is_kept() -> None:
    async with serving(answering(b'{"keys": []}', headers="X-A: b\r\n")) as server, client_of() as client:
        for _ in range(3):
            answer = await client.get(server.url, headers={"X-Mine": "1"})
            assert (answer.status, answer.json(), answer.headers["x-a"]) == (200, {"keys": []}, "b")
        assert server.connections == 1
        assert f"host: 127.0.0.1:{server.port}\r\n" in server.heads[0].lower()
        assert "x-mine: 1" in server.heads[0].lower()


async def test_json_is_sent_and_every_status_is_an_answer() -> None:
    async def echo(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with serving(echo) as server, client_of() as client:
        answer = await client.post_json(server.url, {"input": {"a": 1}})
        assert (answer.status, answer.json()) == (403, {"input": {"a": 1}})
        assert "content-type: application/json" in server.heads[0].lower()


async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    async with (
        serving(answering(b"{}")) as other,
        serving(answering(b"", status="302 Found", headers=f"Location: {other.url}\r\n")) as server,
        client_of() as client,
    ):
        assert (await client.get(server.url)).status == 302
        assert other.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_loopback_is_refused_however_it_is_spelled(scheme: str, host: str) -> None:
    async with serving(answering(b"{}")) as server, client_of(allowed_networks=()) as client:
        error = await refused(client.get(f"{scheme}://{host}:{server.port}/"))
        assert error.reason == "HTTP_ADDRESS_REFUSED"
        assert "INFERFLUX_HTTP_ALLOWED_NETWORKS" in error.message
        assert server.connections == 0


async def test_plain_http_is_for_allowed_networks_alone() -> None:
    async with client_of(resolve=to("93.184.216.34")) as client:
        error = await refused(client.get("http://idp.example.com/"))
        assert error.reason == "HTTP_ADDRESS_REFUSED"


async def test_a_name_is_resolved_once_and_its_checked_address_is_connected_to() -> None:
    """A name that answers with another address the second time gains nothing by it."""
    asked: list[str] = []

    async def rebinding(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    async with serving(answering(b"{}")) as server, client_of(resolve=rebinding) as client:
        assert (await client.get(f"http://idp.example.com:{server.port}/")).status == 200
        assert asked == ["idp.example.com"]
        assert f"host: idp.example.com:{server.port}\r\n" in server.heads[0].lower()


async def test_a_host_that_is_an_ipv6_address_is_asked_for_as_one() -> None:
    asked: list[str] = []

    async def to_loopback(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async with serving(answering(b"{}")) as server, client_of(resolve=to_loopback) as client:
        assert (await client.get(f"http://[::1]:{server.port}/")).status == 200
        assert asked == ["::1"]
        assert f"host: [::1]:{server.port}\r\n" in server.heads[0].lower()


async def test_of_several_addresses_those_that_are_refused_are_left_out() -> None:
    several = to("169.254.169.254", "10.0.0.1", "127.0.0.1")
    async with serving(answering(b"{}")) as server, client_of(resolve=several) as client:
        assert (await client.get(f"http://idp.example.com:{server.port}/", timeout_s=5)).status == 200


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_beyond_the_limit_is_not_taken(is_chunked: bool) -> None:
    async def endless(_body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"400\r\n" + b"a" * 1024 + b"\r\n")
            await writer.drain()

    answer = endless if is_chunked else answering(b"a" * 4097)
    async with serving(answer) as server, client_of(max_body_bytes=4096) as client:
        assert (await refused(client.get(server.url))).reason == "HTTP_TOO_LARGE"
    async with serving(answering(b"a" * 4096)) as server, client_of(max_body_bytes=4096) as client:
        assert len((await client.get(server.url)).body) == 4096


async def test_a_compressed_body_is_not_taken() -> None:
    packed = answering(gzip.compress(b"a" * 1_000_000), headers="Content-Encoding: gzip\r\n")
    async with serving(packed) as server, client_of() as client:
        assert (await refused(client.get(server.url))).reason == "HTTP_ENCODED"


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
async def test_a_server_that_drips_is_left_when_the_time_is_over(start: bytes) -> None:
    async def dripping(_body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(start or b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while True:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with serving(dripping) as server, client_of(timeout_s=0.3) as client:
        assert (await refused(client.get(server.url))).reason == "HTTP_TIMEOUT"


async def test_a_name_that_is_never_resolved_is_left_when_the_time_is_over() -> None:
    async def silent(_host: str, _port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        raise AssertionError

    async with client_of(resolve=silent, timeout_s=0.2) as client:
        assert (await refused(client.get("https://idp.example.com/"))).reason == "HTTP_TIMEOUT"


async def test_what_is_no_http_and_what_does_not_listen_is_unreachable() -> None:
    async def gibberish(_body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-ERR unknown command\r\n\r\n")

    async with client_of() as client:
        async with serving(gibberish) as server:
            assert (await refused(client.get(server.url))).reason == "HTTP_UNREACHABLE"
        assert (await refused(client.get(server.url))).reason == "HTTP_UNREACHABLE"


async def test_a_proxy_of_the_environment_is_not_used_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(answering(b"{}")) as server, serving(answering(b"proxy")) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        async with client_of() as client:
            assert (await client.get(server.url)).body == b"{}"
        assert proxy.connections == 0


def through(monkeypatch: pytest.MonkeyPatch, proxy: str, *, none_for: str = "") -> Proxies:
    """The proxies of an environment that has this one for everything."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.setenv("no_proxy", none_for)
    return Proxies.of_environment()


async def test_a_client_of_the_environment_s_proxies_asks_servers_through_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Certificates.made(tmp_path / "own")
    ours, theirs = made.server().server_context(), made.client().client_context
    async with (
        serving(answering(b"plain")) as plain,
        serving(answering(b"safe"), ours) as safe,
        http_proxy() as proxy,
    ):
        urls = {
            f"http://models.example:{plain.port}/a?b=c": b"plain",
            f"https://localhost:{safe.port}/": b"safe",
        }
        login = proxy.url.replace("//", "//user:pass%20word@")
        asked = client_of(proxies=through(monkeypatch, login), tls=theirs, resolve=to("127.0.0.1"))
        async with asked as client:
            for url, body in urls.items():
                assert (await client.get(url)).body == body
            async with client.stream(next(iter(urls))) as stream:
                assert [part async for part in stream.parts] == [b"plain"]
        assert proxy.asked == [
            f"GET http://models.example:{plain.port}/a?b=c HTTP/1.1",
            f"CONNECT localhost:{safe.port} HTTP/1.1",
            f"GET http://models.example:{plain.port}/a?b=c HTTP/1.1",
        ]
        assert all("Proxy-Authorization: Basic dXNlcjpwYXNzIHdvcmQ=\r\n" in head for head in proxy.heads)
        none_for = through(monkeypatch, proxy.url, none_for="127.0.0.1,example.org")
        async with client_of(proxies=none_for) as client:
            assert (await client.get(plain.url)).body == b"plain"
        assert len(proxy.asked) == 3


@pytest.mark.parametrize(
    ("proxy", "url", "reason", "said"),
    [
        ("socks5://127.0.0.1:9", "https://a.example/", "HTTP_BAD_PROXY", "begins with http://"),
        ("http://a:b:c", "https://a.example/", "HTTP_BAD_PROXY", "no URL"),
        ("127.0.0.1:9", "https://a.example/", "HTTP_UNREACHABLE", "through the proxy http://127.0.0.1:9 "),
        (
            "http://10.1.2.3:9",
            "http://127.0.0.1/",
            "HTTP_ADDRESS_REFUSED",
            "the proxy http://10.1.2.3:9 has no",
        ),
        ("http://127.0.0.1:9", "https://10.1.2.3/", "HTTP_ADDRESS_REFUSED", "https://10.1.2.3 through"),
        ("http://127.0.0.1:9", "http://10.1.2.3/", "HTTP_ADDRESS_REFUSED", "http://10.1.2.3 through"),
        ("http://127.0.0.1:9", "http://8.8.8.8/", "HTTP_ADDRESS_REFUSED", "http://8.8.8.8 through"),
        ("http://127.0.0.1:9", "http://a.invalid/", "HTTP_UNREACHABLE", "http://a.invalid through"),
    ],
)
async def test_what_a_proxy_cannot_or_may_not_do_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, proxy: str, url: str, reason: str, said: str
) -> None:
    async with client_of(proxies=through(monkeypatch, proxy)) as client:
        error = await refused(client.get(url))
    assert error.reason == reason
    assert said in error.message


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "a.localhost", "127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "10.1.2.3"),
        "[::ffff:10.0.0.1]",
    ],
)
async def test_no_proxy_is_asked_for_a_private_address_however_it_is_spelt(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    async with serving(answering(b"{}")) as proxy:
        proxies = through(monkeypatch, f"http://127.0.0.1:{proxy.port}")
        async with client_of(proxies=proxies, allowed_networks=()) as client:
            assert (await refused(client.get(f"https://{host}/"))).reason == "HTTP_ADDRESS_REFUSED"
    assert not proxy.connections


@pytest.mark.parametrize(
    ("scheme", "addresses"),
    [
        ("http", ["93.184.216.34"]),
        ("http", ["127.0.0.1", "10.0.0.1"]),
        ("https", ["93.184.216.34", "10.0.0.1"]),
    ],
)
async def test_no_proxy_is_asked_for_a_name_with_an_address_that_is_refused(
    monkeypatch: pytest.MonkeyPatch, scheme: str, addresses: list[str]
) -> None:
    async with serving(answering(b"{}")) as proxy:
        proxies = through(monkeypatch, f"http://127.0.0.1:{proxy.port}")
        async with client_of(proxies=proxies, resolve=to(*addresses)) as client:
            error = await refused(client.get(f"{scheme}://idp.example.com/"))
    assert error.reason == "HTTP_ADDRESS_REFUSED"
    assert not proxy.connections


async def test_a_certificate_is_checked_against_the_name_of_the_url(tmp_path: Path) -> None:
    made = Certificates.made(tmp_path / "own")
    other = Certificates.made(tmp_path / "other")

    async with serving(answering(b"{}"), made.server().server_context()) as server:
        async with client_of(tls=made.client().client_context, resolve=to("127.0.0.1")) as client:
            assert (await client.get(f"https://localhost:{server.port}/")).status == 200
            error = await refused(client.get(f"https://idp.example.com:{server.port}/"))
            assert error.reason == "HTTP_UNREACHABLE"
        async with client_of(tls=other.client().client_context) as client:
            error = await refused(client.get(f"https://127.0.0.1:{server.port}/"))
            assert error.reason == "HTTP_UNREACHABLE"


async def test_a_ca_that_was_replaced_counts_from_the_next_connection_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Certificates.made(tmp_path / "own")
    other = Certificates.made(tmp_path / "other")
    path = tmp_path / "ca.pem"
    shutil.copyfile(other.ca, path)
    monkeypatch.setenv("INFERFLUX_HTTP_CA", str(path))
    monkeypatch.setenv("INFERFLUX_HTTP_ALLOWED_NETWORKS", "127.0.0.1")
    async with serving(answering(b"{}"), made.server().server_context()) as server:
        client = load(HttpClientSettings).http_client()
        url = f"https://127.0.0.1:{server.port}/"
        assert (await refused(client.get(url))).reason == "HTTP_UNREACHABLE"
        shutil.copyfile(made.ca, path)

        async def is_trusted() -> bool:
            try:
                return (await client.get(url)).status == 200
            except Unavailable:
                return False

        await until(is_trusted)
        await client.aclose()
