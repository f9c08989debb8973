"""The one HTTP client of InferFlux's services, for servers that a setting or a document names.

A URL may have come from elsewhere, such as a discovery document. So the client holds to rules:

- A host's name is resolved once, and the client connects to an address that was checked. Private, loopback,
  link-local, multicast and reserved addresses are refused unless they are in `allowed_networks`.
- `http://` is for these networks alone; everywhere else it is `https://`, with a certificate that is checked.
- Redirects are followed by `stream` alone, so far as it is told; each is held to these rules, none leads from
  `https://` to `http://`, and credentials stay with the server that they are for.
- A proxy is used where the client is made with the environment's. The proxy resolves names again, so all
  addresses of a host are checked before it is asked. A name that does not resolve here is asked for over
  `https://` alone. For `http://` the proxy's own address has to be in `allowed_networks`.
- No cookie is kept.
- A request has one time limit, from the name's look-up to the last byte; one of `stream` has a limit for each
  wait. A body has a size limit, but for `stream`. A compressed body is not taken.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpcore2
import httpx2

from inferflux.common.contract.errors import Unavailable

from .http_addresses import Network, parse_networks
from .http_connecting import AddressRefused, CheckedBackend, Resolve, resolve
from .http_proxies import BadProxy, Proxies, Proxy

ALLOWED_NETWORKS = "INFERFLUX_HTTP_ALLOWED_NETWORKS"
TIMEOUT_S = 5.0
MAX_BODY_BYTES = 1 << 20
_MAX_CONNECTIONS = 32
_IDLE_S = 30.0
_SCHEMES = ("http", "https")
_EVERYWHERE = parse_networks(("0.0.0.0/0", "::/0"))
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The answer of a server, whatever its status: a redirect is one too.

    Attributes:
        headers: with lower-case names; the last of several of one name.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Raises:
        ValueError: the body is not JSON.
        """
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deep") from None


@dataclass(frozen=True, slots=True)
class HttpStream:
    """An answer whose body is read as it comes.

    Attributes:
        headers: with lower-case names.
        redirects: headers of the redirects that led here.
        parts: the body; raises Unavailable where it breaks off.
    """

    status: int
    headers: Mapping[str, str]
    redirects: tuple[Mapping[str, str], ...]
    parts: AsyncIterator[bytes]


def check_url(url: str) -> None:
    """Raises:
    ValueError: it is no URL of `http` or `https` with a host, or it has a user, a password or a fragment.
    """
    _parse(url)


class HttpClient:
    """Asks HTTP servers. Every method raises Unavailable where no whole answer came; its reason says why.

    | reason | |
    |---|---|
    | `HTTP_BAD_PROXY` | the environment names a proxy that is none for HTTP |
    | `HTTP_BAD_URL` | not a URL of `http` or `https`, or one with a password |
    | `HTTP_ADDRESS_REFUSED` | the host has no address that may be connected to |
    | `HTTP_TIMEOUT` | the time is over |
    | `HTTP_TOO_LARGE` | the body is larger than it may be |
    | `HTTP_ENCODED` | the body is compressed |
    | `HTTP_REDIRECT_REFUSED` | redirected too often, or from `https` to `http` |
    | `HTTP_UNREACHABLE` | no connection, a certificate that is not trusted, or no HTTP |

    Args:
        allowed_networks: that may be connected to beside public addresses, and over `http`.
        tls: for `https`, called for each connection; by default with the system's public CAs.
        timeout_s: for a request, unless it has its own.
        max_body_bytes: of an answer, unless a request has its own.
        networks_variable: the setting of `allowed_networks`, for errors.
        proxies: that lead to servers; by default none is used.
    """

    def __init__(
        self,
        *,
        allowed_networks: Sequence[Network] = (),
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        timeout_s: float = TIMEOUT_S,
        max_body_bytes: int = MAX_BODY_BYTES,
        resolve: Resolve = resolve,
        networks_variable: str = ALLOWED_NETWORKS,
        proxies: Proxies | None = None,
    ) -> None:
        self._networks_variable = networks_variable
        self._proxies = proxies or Proxies()
        self._allowed_networks = tuple(allowed_networks)
        self._tls = tls
        self._resolve = resolve
        self._timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes
        # By scheme of the URL, and the proxy that leads there.
        self._pools: dict[tuple[str, Proxy | None], httpcore2.AsyncConnectionPool] = {}

    async def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        max_body_bytes: int | None = None,
    ) -> HttpResponse:
        """Raises:
        Unavailable: no whole answer came.
        """
        return await self._ask("GET", url, None, headers or {}, timeout_s, max_body_bytes)

    async def post_json(
        self,
        url: str,
        message: Any,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        max_body_bytes: int | None = None,
    ) -> HttpResponse:
        """Send `message` as JSON.

        Raises:
            Unavailable: no whole answer came.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        return await self._ask("POST", url, body, sent, timeout_s, max_body_bytes)

    async def aclose(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()

    async def _ask(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float | None,
        max_body_bytes: int | None,
    ) -> HttpResponse:
        target = _target(url)
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        most = self._max_body_bytes if max_body_bytes is None else max_body_bytes
        with self._readable(self._way_to(target), limit_s, most):
            async with asyncio.timeout(limit_s):
                return await self._exchange(method, target, body, headers, most)

    @asynccontextmanager
    async def stream(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        max_redirects: int = 0,
        idle_s: float = 30.0,
    ) -> AsyncGenerator[HttpStream, None]:
        """Get a body of any size, as it comes.

        Args:
            max_redirects: that are followed; what is left of the way is the answer then, but an error where
                this is not 0.
            idle_s: longest wait for an answer to begin, and for more of its body.

        Raises:
            Unavailable: no answer came. Reading the body raises it too.
        """
        target, sent = _target(url), dict(headers or {})
        redirects: list[Mapping[str, str]] = []
        async with AsyncExitStack() as stack:
            while True:
                way = self._way_to(target)
                with self._readable(way, idle_s):
                    async with asyncio.timeout(idle_s):
                        response = await stack.enter_async_context(
                            self._begin("GET", target, None, sent, read_s=idle_s)
                        )
                    got = _headers(response)
                location = got.get("location")
                if not max_redirects or location is None or response.status not in _REDIRECTS:
                    break
                await stack.aclose()
                redirects.append(got)
                if len(redirects) > max_redirects:
                    raise Unavailable(
                        f"{_origin(target)} redirected more than {max_redirects} times",
                        reason="HTTP_REDIRECT_REFUSED",
                    )
                target, sent = _redirected(target, location, sent)
            with self._readable(way, idle_s):
                _check_encoding(got)
            parts = self._parts(response, way, idle_s)
            yield HttpStream(response.status, got, tuple(redirects), parts)

    def _proxy_to(self, target: httpx2.URL) -> Proxy | None:
        try:
            return self._proxies.proxy_to(target.scheme, target.host, target.port)
        except BadProxy as error:
            raise Unavailable(f"{_origin(target)}: {error}", reason="HTTP_BAD_PROXY") from None

    def _way_to(self, target: httpx2.URL) -> str:
        """Return what is asked, for errors."""
        proxy = self._proxy_to(target)
        return _origin(target) + (f" through the proxy {proxy.origin}" if proxy else "")

    async def _pool_to(self, target: httpx2.URL) -> httpcore2.AsyncConnectionPool:
        """Connections to servers of that scheme.

        Raises:
            AddressRefused, httpcore2.ConnectError: as `CheckedBackend.check_proxied`.
        """
        proxy, is_safe = self._proxy_to(target), target.scheme == "https"
        if proxy:
            port = target.port or (443 if is_safe else 80)
            await self._backend(self._allowed_networks, is_safe).check_proxied(target.host, port)
        key = target.scheme, proxy
        if key not in self._pools:
            # What goes through a proxy over TLS is read by the server alone: the proxy may be anywhere.
            networks = _EVERYWHERE if proxy and is_safe else self._allowed_networks
            self._pools[key] = _pool(proxy, self._backend(networks, is_safe))
        return self._pools[key]

    def _backend(self, networks: Sequence[Network], is_safe: bool) -> CheckedBackend:
        return CheckedBackend(networks, is_public_allowed=is_safe, tls=self._tls, resolve=self._resolve)

    @contextmanager
    def _readable(self, where: str, limit_s: float, most: int = 0) -> Iterator[None]:
        """Raises Unavailable, with a reason, for what a request to `where` ended with."""
        try:
            yield
        except _TooLarge:
            message = f"{where} answered with more than {most} bytes"
            raise Unavailable(message, reason="HTTP_TOO_LARGE") from None
        except _Encoded:
            message = f"{where} answered with a compressed body"
            raise Unavailable(message, reason="HTTP_ENCODED") from None
        except AddressRefused:
            message = (
                f"{where} has no address that may be connected to: "
                f"public ones may over https, others if {self._networks_variable} has them"
            )
            raise Unavailable(message, reason="HTTP_ADDRESS_REFUSED") from None
        except (TimeoutError, httpcore2.TimeoutException):
            message = f"{where} did not answer within {limit_s:g} s"
            raise Unavailable(message, reason="HTTP_TIMEOUT") from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ProxyError, OSError) as error:
            message = f"{where} cannot be reached: {error or type(error).__name__}"
            raise Unavailable(message, reason="HTTP_UNREACHABLE") from None

    async def _parts(self, response: httpcore2.Response, where: str, idle_s: float) -> AsyncIterator[bytes]:
        with self._readable(where, idle_s):
            async for part in response.aiter_stream():
                yield part

    async def _exchange(
        self, method: str, target: httpx2.URL, body: bytes | None, headers: Mapping[str, str], most: int
    ) -> HttpResponse:
        async with self._begin(method, target, body, headers) as response:
            got = _headers(response)
            _check_encoding(got)
            taken = bytearray()
            async for part in response.aiter_stream():
                taken += part
                if len(taken) > most:
                    raise _TooLarge
            return HttpResponse(response.status, got, bytes(taken))

    @asynccontextmanager
    async def _begin(
        self,
        method: str,
        target: httpx2.URL,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        read_s: float | None = None,
    ) -> AsyncGenerator[httpcore2.Response, None]:
        sent = {
            "host": target.netloc.decode("ascii"),
            "accept": "application/json",
            "accept-encoding": "identity",
        }
        # A port is part of the origin: connections are shared by requests to the same name and port alone.
        url = httpcore2.URL(
            scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path
        )
        pool = await self._pool_to(target)
        pairs = list({**sent, **headers}.items())
        limits = {} if read_s is None else {"timeout": {"read": read_s}}
        async with pool.stream(method, url, headers=pairs, content=body, extensions=limits) as response:
            yield response


def _pool(proxy: Proxy | None, backend: CheckedBackend) -> httpcore2.AsyncConnectionPool:
    limits: dict[str, Any] = {"max_connections": _MAX_CONNECTIONS, "keepalive_expiry": _IDLE_S}
    if proxy is None:
        return httpcore2.AsyncConnectionPool(network_backend=backend, **limits)
    return httpcore2.AsyncHTTPProxy(proxy.origin, proxy.login, network_backend=backend, **limits)


class _TooLarge(Exception):
    pass


class _Encoded(Exception):
    pass


def _headers(response: httpcore2.Response) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}


def _check_encoding(headers: Mapping[str, str]) -> None:
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise _Encoded


def _origin(target: httpx2.URL) -> str:
    return f"{target.scheme}://{target.netloc.decode('ascii')}"


def _redirected(
    target: httpx2.URL, location: str, sent: Mapping[str, str]
) -> tuple[httpx2.URL, dict[str, str]]:
    """Target of a redirect, and the headers that are sent there."""
    try:
        to = _parse(str(target.join(location).copy_with(fragment=None)))
    except (ValueError, httpx2.InvalidURL) as error:
        message = f"{_origin(target)} redirected to nowhere: {error}"
        raise Unavailable(message, reason="HTTP_BAD_URL") from None
    if target.scheme == "https" and to.scheme != "https":
        message = f"{_origin(target)} redirected to {_origin(to)}, which is without TLS"
        raise Unavailable(message, reason="HTTP_REDIRECT_REFUSED")
    is_same = _origin(to) == _origin(target)
    return to, {name: value for name, value in sent.items() if is_same or name.lower() != "authorization"}


def _target(url: str) -> httpx2.URL:
    try:
        return _parse(url)
    except ValueError as error:
        raise Unavailable(f"no request can be sent: {error}", reason="HTTP_BAD_URL") from None


def _parse(url: str) -> httpx2.URL:
    try:
        target = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"not a URL: {error}") from None
    if target.scheme not in _SCHEMES or not target.host:
        raise ValueError("a URL begins with https:// or http:// and a host")
    if target.port is not None and not 0 < target.port < 1 << 16:
        raise ValueError("the port of a URL is 1 to 65535")
    if target.userinfo or target.fragment:
        raise ValueError("a URL here has no user, password or fragment")
    return target
