"""The one HTTP client of InferFlux's services, for servers that a setting or a document names.

A URL may have come from elsewhere, such as a discovery document. So the client holds to rules:

- A host's name is resolved once, and the client connects to an address that was checked. Private, loopback,
  link-local, multicast and reserved addresses are refused unless they are in `allowed_networks`.
- `http://` is for these networks alone; everywhere else it is `https://`, with a certificate that is checked.
- Redirects are not followed, no proxy of the environment is used, no cookie is kept.
- A request has one time limit, from the name's look-up to the last byte. A body has a size limit. A
  compressed body is not taken.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpcore2
import httpx2

from inferflux.common.errors import Unavailable
from inferflux.common.http_addresses import Network
from inferflux.common.http_connecting import AddressRefused, CheckedBackend, Resolve, resolve

ALLOWED_NETWORKS = "INFERFLUX_HTTP_ALLOWED_NETWORKS"
TIMEOUT_S = 5.0
MAX_BODY_BYTES = 1 << 20
_MAX_CONNECTIONS = 32
_IDLE_S = 30.0
_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a server answered, whatever its status: a redirect is one too.

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


def check_url(url: str) -> None:
    """Raises:
    ValueError: it is no URL of `http` or `https` with a host, or it has a user, a password or a fragment.
    """
    _parse(url)


class HttpClient:
    """Asks HTTP servers. Every method raises Unavailable where no whole answer came; its reason says why.

    | reason | |
    |---|---|
    | `HTTP_BAD_URL` | not a URL of `http` or `https`, or one with a password |
    | `HTTP_ADDRESS_REFUSED` | the host has no address that may be connected to |
    | `HTTP_TIMEOUT` | the time is over |
    | `HTTP_TOO_LARGE` | the body is larger than it may be |
    | `HTTP_ENCODED` | the body is compressed |
    | `HTTP_UNREACHABLE` | no connection, a certificate that is not trusted, or no HTTP |

    Args:
        allowed_networks: that may be connected to beside public addresses, and over `http`.
        tls: for `https`, called for each connection; by default with the system's public CAs.
        timeout_s: for a request, unless it has its own.
        max_body_bytes: of an answer, unless a request has its own.
        networks_variable: the setting of `allowed_networks`, for errors.
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
    ) -> None:
        self._networks_variable = networks_variable
        self._timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes
        self._pools = {
            scheme: httpcore2.AsyncConnectionPool(
                max_connections=_MAX_CONNECTIONS,
                keepalive_expiry=_IDLE_S,
                network_backend=CheckedBackend(
                    allowed_networks, is_public_allowed=scheme == "https", tls=tls, resolve=resolve
                ),
            )
            for scheme in _SCHEMES
        }

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
        try:
            target = _parse(url)
        except ValueError as error:
            raise Unavailable(f"no request can be sent: {error}", reason="HTTP_BAD_URL") from None
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        most = self._max_body_bytes if max_body_bytes is None else max_body_bytes
        where = f"{target.scheme}://{target.netloc.decode('ascii')}"
        try:
            async with asyncio.timeout(limit_s):
                return await self._exchange(method, target, body, headers, most)
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
        except TimeoutError:
            message = f"{where} did not answer within {limit_s:g} s"
            raise Unavailable(message, reason="HTTP_TIMEOUT") from None
        except (
            httpcore2.NetworkError,
            httpcore2.TimeoutException,
            httpcore2.ProtocolError,
            OSError,
        ) as error:
            message = f"{where} cannot be reached: {error or type(error).__name__}"
            raise Unavailable(message, reason="HTTP_UNREACHABLE") from None

    async def _exchange(
        self, method: str, target: httpx2.URL, body: bytes | None, headers: Mapping[str, str], most: int
    ) -> HttpResponse:
        sent = {
            "host": target.netloc.decode("ascii"),
            "accept": "application/json",
            "accept-encoding": "identity",
        }
        # A port is part of the origin: connections are shared by requests to the same name and port alone.
        url = httpcore2.URL(
            scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path
        )
        pool = self._pools[target.scheme]
        pairs = list({**sent, **headers}.items())
        async with pool.stream(method, url, headers=pairs, content=body) as response:
            got = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers
            }
            if got.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
                raise _Encoded
            taken = bytearray()
            async for part in response.aiter_stream():
                taken += part
                if len(taken) > most:
                    raise _TooLarge
            return HttpResponse(response.status, got, bytes(taken))


class _TooLarge(Exception):
    pass


class _Encoded(Exception):
    pass


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
