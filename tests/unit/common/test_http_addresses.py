"""Which addresses the HTTP client may connect to."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import Unavailable
from inferflux.common.http.http_addresses import is_in, is_public, parse_address, parse_networks
from inferflux.common.http.http_client import HttpClient, check_url


@pytest.mark.parametrize("text", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_addresses_of_the_internet_are_public(text: str) -> None:
    assert is_public(parse_address(text))


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0",  # noqa: S104
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.8",
        "192.168.1.1",
        "192.88.99.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2001:0:7f00:1::",
        "2001:db8::1",
        "2002:7f00:1::",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_addresses_of_hosts_links_sites_and_other_protocols_are_not_public(text: str) -> None:
    assert not is_public(parse_address(text))


def test_an_address_is_in_a_network_however_it_is_written() -> None:
    networks = parse_networks(["127.0.0.0/8", "fd00::/8", "10.1.2.3"])
    assert all(is_in(parse_address(t), networks) for t in ("127.0.0.1", "::ffff:127.0.0.1", "fd00::1"))
    assert is_in(parse_address("10.1.2.3"), networks)
    assert not any(is_in(parse_address(t), networks) for t in ("10.1.2.4", "::1", "8.8.8.8"))


@pytest.mark.parametrize("text", ["10.0.0.1/8", "localhost", "10.0.0.0/33", "*"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_networks([text])


@pytest.mark.parametrize(
    "url",
    [
        "",
        "idp.example.com",
        "ftp://idp.example.com/",
        "file:///etc/passwd",
        "https://",
        "https:///path",
        "https://user:password@idp.example.com/",
        "https://idp.example.com@10.0.0.1/",
        "https://idp.example.com/#part",
        "https://idp.example.com:99999/",
        "https://idp.example.com/\r\nX-Header: 1",
        "gopher://127.0.0.1:6379/_FLUSHALL",
    ],
)
async def test_what_is_no_url_to_ask_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        check_url(url)
    client = HttpClient()
    with pytest.raises(Unavailable) as caught:
        await client.get(url)
    assert caught.value.reason == "HTTP_BAD_URL"
    assert "password" not in url or "user:" not in caught.value.message
    await client.aclose()
