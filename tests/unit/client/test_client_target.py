"""Which gateways a client calls, and with which key."""

from __future__ import annotations

import pytest

from inferflux.client import InvalidArgument
from inferflux.client.target import Target, resolve

ENV = {"INFERFLUX_ENDPOINT": "one:1, two:2,", "INFERFLUX_API_KEY": "ifx_env"}


def test_arguments_come_before_the_environment() -> None:
    assert resolve("", "", ENV) == Target(("one:1", "two:2"), "ifx_env")
    assert resolve("three:3", "ifx_own", ENV) == Target(("three:3",), "ifx_own")
    assert resolve(["a:1", "[::1]:2"], "", ENV) == Target(("a:1", "[::1]:2"), "ifx_env")


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("dns:///gateways.acme:50051", ("dns:///gateways.acme:50051",)),
        ("dns://10.0.0.2/gateways:50051, two:2", ("dns://10.0.0.2/gateways:50051", "two:2")),
        ("ipv4:10.0.0.1:1,10.0.0.2:2", ("ipv4:10.0.0.1:1,10.0.0.2:2",)),
        ("ipv6:[::1]:1,[::2]:2", ("ipv6:[::1]:1,[::2]:2",)),
        (["ipv4:10.0.0.1:1,10.0.0.2:2", "far:1"], ("ipv4:10.0.0.1:1,10.0.0.2:2", "far:1")),
    ],
)
def test_a_target_of_grpc_may_mean_several_gateways(
    given: str | list[str], addresses: tuple[str, ...]
) -> None:
    assert resolve(given, "ifx_own", {}).addresses == addresses


WRONG = ["host", "host:", ":1", "host:port", "host:70000", "host:0", "host:-1"]
WRONG_TARGETS = ["dns:///host", "dns:///:1", "ipv4:10.0.0.1:1,10.0.0.2", "ipv6:"]
NO_NUMBERS = [
    "ipv4:host:1",
    "ipv4:999.0.0.1:1",
    "ipv4:10.0.0.1:1,[::1]:2",
    "ipv6:10.0.0.1:1",
    "xds:///host:1",
]


@pytest.mark.parametrize("address", [*WRONG, *WRONG_TARGETS, *NO_NUMBERS])
def test_an_address_that_cannot_be_is_refused_by_name(address: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve(address, "ifx_own", {})
    assert caught.value.field == "addresses"


def test_a_url_is_told_from_an_address() -> None:
    with pytest.raises(InvalidArgument, match="is a URL: name the gateway's gRPC port"):
        resolve("http://127.0.0.1:8080", "ifx_own", {})


@pytest.mark.parametrize(
    ("addresses", "key", "field"),
    [("", "k", "addresses"), ([], "k", "addresses"), ("a:1", "", "api_key"), ("a:1", "k\n", "api_key")],
)
def test_what_is_missing_is_named(addresses: str | list[str], key: str, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve(addresses, key, {})
    assert caught.value.field == field
