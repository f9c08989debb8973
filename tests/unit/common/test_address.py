"""Addresses, as settings and gRPC have them."""

from __future__ import annotations

import pytest

from inferflux.common.contract.address import host_of_peer, place_of


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:192.0.2.7:41234", "192.0.2.7"),
        ("ipv6:%5B2001:db8::1%5D:5000", "2001:db8::1"),
        ("ipv6:[::1]:5000", "::1"),
        ("unix:/run/gateway.sock", ""),
        ("", ""),
    ],
)
def test_who_calls_over_grpc_has_an_address_without_its_port(peer: str, host: str) -> None:
    assert host_of_peer(peer) == host


@pytest.mark.parametrize(
    ("listen", "place"),
    [
        ("0.0.0.0:50051", "rack-3:50051"),
        ("[::]:50051", "rack-3:50051"),
        (":50051", "rack-3:50051"),
        ("10.0.0.1:50051", "10.0.0.1:50051"),
    ],
)
def test_gateways_at_every_interface_are_told_apart_by_their_hosts(listen: str, place: str) -> None:
    assert place_of(listen, "rack-3") == place
