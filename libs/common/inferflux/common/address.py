"""Addresses as people write them in settings: host:port."""

from __future__ import annotations

from inferflux.common.errors import InvalidArgument


def is_address(address: str) -> bool:
    """Whether `split` can take it apart."""
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
