"""Addresses as people write them in settings, host:port, and as gRPC says them."""

from __future__ import annotations

from urllib.parse import unquote

from .errors import InvalidArgument


def is_address(address: str) -> bool:
    """True if `split` can take it apart."""
    _, colon, port = address.rpartition(":")
    return bool(colon) and port.isascii() and port.isdigit() and int(port) <= 65535


def split(address: str, variable: str) -> tuple[str, int]:
    """Host and port of "host:port", "[::1]:port" or ":port" (every interface).

    Raises:
        InvalidArgument: it is none of these; names `variable`.
    """
    host, _, port = address.rpartition(":")
    if not is_address(address):
        raise InvalidArgument(f"{variable}: {address!r} is not host:port", field=variable)
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104


def place_of(address: str, hostname: str) -> str:
    """An address that is listened at, as people tell several hosts apart: every interface is the host."""
    host, _, port = address.rpartition(":")
    return f"{hostname}:{port}" if host.strip("[]") in ("", "0.0.0.0", "::") else address  # noqa: S104


def host_of_peer(peer: str) -> str:
    """The address of who calls over gRPC; "" for one without, as of a Unix socket.

    Args:
        peer: as gRPC says it: `ipv4:127.0.0.1:5000`, `ipv6:%5B::1%5D:5000`.
    """
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    return unquote(rest).rpartition(":")[0].strip("[]")
