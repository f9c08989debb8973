"""For which hosts a proxy may be asked."""

from __future__ import annotations

import pytest

from inferflux.common.http_proxies import may_ask_for


@pytest.mark.parametrize("host", ["example.org", "huggingface.co.", "8.8.8.8", "[2606:4700::1111]"])
def test_a_proxy_is_asked_for_names_and_public_addresses(host: str) -> None:
    assert may_ask_for(host, ())


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "a.localhost", "127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "10.1.2.3"),
        "[::ffff:10.0.0.1]",
    ],
)
def test_no_proxy_is_asked_for_a_private_address_however_it_is_spelt(host: str) -> None:
    assert not may_ask_for(host, ())
