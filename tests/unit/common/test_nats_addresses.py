"""Addresses of nats-servers: which are taken, and what is told of one that is not."""

from __future__ import annotations

import pytest

from inferflux.common.bus.addresses import parse_servers, without_password
from inferflux.common.contract.errors import InvalidArgument


@pytest.mark.parametrize(
    "url", ["nats://u:se/cret@a:1", "nats://u:se,cret@a:1", "nats://u:se?cret@a:1", "nats://u:se#cret@a:1"]
)
def test_a_password_that_cuts_its_address_is_not_told(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"INFERFLUX_NATS_URL: .* cannot be in them") as caught:
        parse_servers(url)
    assert "cret" not in caught.value.message
    assert "u:se" not in caught.value.message


def test_an_address_without_a_password_is_told() -> None:
    with pytest.raises(InvalidArgument, match="'http://a:1' is not an address"):
        parse_servers("nats://b:1,http://a:1")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://u:p@a:1,tls://u:p@b:2", "nats://a:1,tls://b:2"),
        ("u:p@a:1,b:2", "a:1,b:2"),
        ("nats://u:p@ss@a:1", "nats://a:1"),
        ("nats://a:1", "nats://a:1"),
    ],
)
def test_logs_have_no_users_and_passwords(url: str, shown: str) -> None:
    assert without_password(url) == shown
