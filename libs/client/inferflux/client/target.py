"""Target of a client: the gateways that it calls, and its key. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from inferflux.api.errors import InvalidArgument

ENDPOINT = "INFERFLUX_ENDPOINT"
API_KEY = "INFERFLUX_API_KEY"
# How targets of gRPC begin that may mean several addresses.
_OF_NAMES = "dns://"
_OF_NUMBERS = ("ipv4:", "ipv6:")


@dataclass(frozen=True, slots=True)
class Target:
    """Gateways, the preferred one first, and the key for them."""

    addresses: tuple[str, ...]
    api_key: str


def resolve(addresses: str | Sequence[str], api_key: str, env: Mapping[str, str]) -> Target:
    """Arguments before INFERFLUX_ENDPOINT and INFERFLUX_API_KEY. A text may list addresses between commas.

    An address may also be a target of gRPC that means several gateways: `dns:///host:port`, or
    `ipv4:host:port,host:port`, whose commas are its own.

    Raises:
        InvalidArgument: no address, one that is neither host:port nor such a target, or no key.
    """
    given = addresses or env.get(ENDPOINT, "")
    listed = _listed(given) if isinstance(given, str) else given
    cleaned = tuple(address.strip() for address in listed if address.strip())
    if not cleaned:
        raise InvalidArgument(f"no gateway is named: give addresses, or set {ENDPOINT}", field="addresses")
    for address in cleaned:
        _check(address)
    key = api_key or env.get(API_KEY, "")
    if not key:
        raise InvalidArgument(f"no API key: give api_key, or set {API_KEY}", field="api_key")
    if not key.isascii() or not key.isprintable():
        raise InvalidArgument("an API key has printable ASCII characters alone", field="api_key")
    return Target(cleaned, key)


def may_be_several(addresses: Sequence[str]) -> bool:
    """True if addresses may mean more gateways than one."""
    return len(addresses) > 1 or addresses[0].startswith((_OF_NAMES, *_OF_NUMBERS))


def _listed(text: str) -> list[str]:
    return [text] if text.startswith(_OF_NUMBERS) else text.split(",")


def _check(address: str) -> None:
    if address.startswith(("http://", "https://")):
        message = f"{address!r} is a URL: name the gateway's gRPC port as host:port, such as 127.0.0.1:50051"
        raise InvalidArgument(message, field="addresses")
    if address.startswith(_OF_NAMES):
        parts = [address.removeprefix(_OF_NAMES).rpartition("/")[2]]
    elif address.startswith(_OF_NUMBERS):
        parts = address.partition(":")[2].split(",")
    elif "://" in address:
        raise InvalidArgument(f"{address!r} is neither host:port nor dns:///host:port", field="addresses")
    else:
        parts = [address]
    for part in parts:
        _check_host_port(part, address)
        if address.startswith(_OF_NUMBERS):
            _check_number(part.rpartition(":")[0], address)


def _check_number(host: str, address: str) -> None:
    version = 4 if address.startswith("ipv4:") else 6
    try:
        is_number = ip_address(host.removeprefix("[").removesuffix("]")).version == version
    except ValueError:
        is_number = False
    if not is_number:
        message = f"{address!r} has {host!r}, which is no address of IPv{version}"
        raise InvalidArgument(message, field="addresses")


def _check_host_port(part: str, address: str) -> None:
    host, _, port = part.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
        raise InvalidArgument(f"{address!r} is not host:port", field="addresses")
