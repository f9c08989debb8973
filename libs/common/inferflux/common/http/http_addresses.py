"""Addresses that InferFlux's own HTTP client may connect to. No I/O."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Public IPv6 addresses; what is outside of these embeds IPv4 addresses, or is of one site, link or host.
_IPV6_PUBLIC = IPv6Network("2000::/3")
# Within the ranges that count as global: ways to reach IPv4 addresses, and addresses of protocols.
_NOT_PUBLIC: tuple[Network, ...] = (
    IPv6Network("2002::/16"),
    IPv6Network("2001::/23"),
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
)


def parse_address(text: str) -> Address:
    """The address; one of IPv4 that is written as IPv6 (`::ffff:10.0.0.1`) counts as what it is.

    Raises:
        ValueError: it is none.
    """
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def parse_networks(texts: Collection[str]) -> tuple[Network, ...]:
    """Networks such as `10.0.0.0/8`, or addresses.

    Raises:
        ValueError: one is none; says which.
    """
    return tuple(ip_network(text) for text in texts)


def is_public(address: Address) -> bool:
    """True if the internet has this address: no private, loopback, link-local or shared one, no multicast."""
    if not address.is_global or address.is_multicast:
        return False
    if isinstance(address, IPv6Address) and address not in _IPV6_PUBLIC:
        return False
    return not is_in(address, _NOT_PUBLIC)


def is_in(address: Address, networks: Collection[Network]) -> bool:
    return any(address in network for network in networks)
