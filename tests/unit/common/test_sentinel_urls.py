"""URLs of sentinels: what they say, and what is refused."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.redis import sentinel, store


def test_a_url_names_sentinels_and_what_they_watch() -> None:
    url = sentinel.parse("redis+sentinel://a:1,b,[::1]:3,[::2]/policy-store")
    assert url.sentinels == (("a", 1), ("b", 26379), ("::1", 3), ("::2", 26379))
    assert (url.service, url.server_url) == ("policy-store", "redis://primary/0?")
    assert (url.login, url.has_tls) == ({}, False)


def test_passwords_of_servers_and_of_sentinels_are_told_apart() -> None:
    url = sentinel.parse(
        "rediss+sentinel://policy:p%40ss@a:1/store/3?sentinel_password=s%2Fs&sentinel_username=u&protocol=3"
    )
    assert url.server_url == "rediss://policy:p%40ss@primary/3?protocol=3"
    assert url.login == {"username": "u", "password": "s/s"}
    assert url.has_tls


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+sentinel://a:1", "the name of the service"),
        ("redis+sentinel://a:1/", "the name of the service"),
        ("redis+sentinel:///store", "a sentinel is not host:port"),
        ("redis+sentinel://a:1,/store", "a sentinel is not host:port"),
        ("redis+sentinel://a:70000/store", "a sentinel is not host:port"),
        ("redis+sentinel://a:1/store/x", "the number of a database"),
        ("redis+sentinel://[::1/store", "a sentinel is not host:port"),
        ("redis+sentinel://a:1:2/store", "a sentinel is not host:port"),
        ("redis+sentinel://a:1//0", "the name of the service"),
        ("redis+sentinel://a:1/store?sentinel_pass=x", "sentinel_pass is no option"),
        ("redis+sentinel://a:1/store?unknown=x", "unknown is no option"),
    ],
)
def test_what_is_wrong_is_said_by_name(url: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as caught:
        store.connect(url)
    assert caught.value.field == "INFERFLUX_REDIS_URL"


def test_a_password_that_was_not_escaped_is_not_told() -> None:
    for url in ("redis+sentinel://u:secr/et@a:1/store", "redis+sentinel://u:secr?et@a:1/store"):
        with pytest.raises(InvalidArgument) as caught:
            store.connect(url)
        assert "secr" not in caught.value.message
