"""Connecting of the HTTP client: a name is resolved once, and only a checked address is connected to."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

import httpcore2

from .http_addresses import Address, Network, is_in, is_public, parse_address

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, by name and port. Raises OSError where there are none."""

# A name's look-up before a proxy is asked for it.
_RESOLVE_S = 2.0


class AddressRefused(Exception):
    """No address of the host may be connected to."""


async def resolve(host: str, port: int) -> list[str]:
    """The host's addresses, as the system finds them, each once.

    Raises:
        OSError: it has none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to addresses in `allowed`, and to public ones where `is_public_allowed`.

    Certificates are checked against the name of the URL all the same.

    Args:
        tls: what a connection that speaks TLS uses, whatever its pool has: certificates may have changed.
    """

    def __init__(
        self,
        allowed: Collection[Network],
        *,
        is_public_allowed: bool,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        resolve: Resolve = resolve,
    ) -> None:
        self._allowed = allowed
        self._is_public_allowed = is_public_allowed
        self._tls = tls
        self._resolve = resolve
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raises:
        AddressRefused: all of its addresses are refused.
        httpcore2.ConnectError: it has no address, or none answers.
        """
        found = await self._addresses_of(host, port)
        passed = [address for address in found if self._may_connect(address)]
        if not passed:
            raise AddressRefused
        for i, address in enumerate(passed):
            try:
                stream = await self._inner.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
                return _Connected(stream, self._tls)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if i == len(passed) - 1:
                    raise
        raise AssertionError("there is an address")

    async def check_proxied(self, host: str, port: int) -> None:
        """Check a host that a proxy is to be asked for. The proxy resolves it again, and takes any address.

        A name that this machine cannot resolve may be asked for where public addresses may be connected to:
        networks with a proxy often know no names of the internet.

        Raises:
            AddressRefused: one of its addresses is refused.
            httpcore2.ConnectError: it has no address here.
        """
        try:
            async with asyncio.timeout(_RESOLVE_S):
                found = await self._addresses_of(host, port)
        except (httpcore2.ConnectError, TimeoutError) as error:
            if host.rstrip(".").lower().endswith("localhost"):
                raise AddressRefused from error
            if not self._is_public_allowed:
                raise
            return
        if not all(self._may_connect(address) for address in found):
            raise AddressRefused

    async def _addresses_of(self, host: str, port: int) -> list[Address]:
        try:
            return [parse_address(text) for text in await self._resolve(host.strip("[]"), port)]
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(str(error)) from error

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)

    def _may_connect(self, address: Address) -> bool:
        return is_in(address, self._allowed) or (self._is_public_allowed and is_public(address))


class _Connected(httpcore2.AsyncNetworkStream):
    """A connection that may go on to speak TLS."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream, tls: Callable[[], ssl.SSLContext]) -> None:
        self._inner = inner
        self._tls = tls

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,  # noqa: ARG002  (of the pool)
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        context = self._tls()
        context.set_alpn_protocols(["http/1.1"])
        return await self._inner.start_tls(context, server_hostname, timeout)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
