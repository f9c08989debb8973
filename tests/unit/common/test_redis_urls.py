"""What is wrong with a URL of Redis is said by its part, whatever it names."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.redis import store


def _refusal(url: str) -> str:
    with pytest.raises(InvalidArgument) as caught:
        store.connect(url)
    assert caught.value.field == "INFERFLUX_REDIS_URL"
    return caught.value.message


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "it must begin with redis://"),
        ("a:6379", "it must begin with redis://"),
        ("valkey://a:1", "it must begin with redis://"),
        ("sentinel://a:1/store", "sentinels are named by redis+sentinel://"),
        ("redis-sentinel://a:1/store", "sentinels are named by redis+sentinel://"),
        ("redis+cluster://a:1", "a Redis Cluster is named by redis-cluster://"),
        ("redis://a:x/0", "the server is not host:port"),
        ("redis://a:70000/0", "the server is not host:port"),
        ("redis://a:1 ", "the server is not host:port"),
        ("redis://a:1,b:2/0", "it names one server: several are behind sentinels"),
        ("redis://a:1/zero", "the number of a database"),
        ("redis://a:1/0/1", "the number of a database"),
        ("redis://a:1?socket_timeout=soon", "a value of an option: Invalid value for 'socket_timeout'"),
        ("redis-cluster://a:1?db=1", "db is no option of redis-cluster://"),
        ("redis://a:1?ssl_ca_certs=ca.pem", "ssl_ca_certs is no option of redis:// without TLS"),
    ],
)
def test_the_wrong_part_is_named(url: str, why: str) -> None:
    assert why in _refusal(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:p@a:1/0",
        "rediss://a:1",
        "redis+sentinel://u:p@a:1/store",
        "rediss+sentinel://a:1/store",
        "redis-cluster://a:1",
        "rediss-cluster://u:p@a:1",
        "unix:///tmp/redis.sock",
    ],
)
@pytest.mark.parametrize("option", ["nonsense=1", "retry=3", "connection_class=x"])
def test_an_option_that_is_unknown_is_named_with_those_there_are(url: str, option: str) -> None:
    scheme, name = url.partition("://")[0], option.partition("=")[0]
    told = _refusal(f"{url}?{option}")
    assert f"{name} is no option of {scheme}://" in told
    assert "socket_timeout" in told  # one of those there are


@pytest.mark.parametrize(
    "place", ["redis://{}@a:1/0", "redis+sentinel://{}@a:1/store", "redis-cluster://{}@a:1"]
)
@pytest.mark.parametrize("login", ["u:my/gem", "u:my?gem", "u:my#gem", "u:12?my=gem", "u:1@my/gem"])
def test_what_is_not_escaped_is_said_and_not_told(place: str, login: str) -> None:
    told = _refusal(place.format(login))
    assert "%2F" in told or "%23" in told
    assert not [part for part in ("my", "12", "gem") if part in told]


def test_what_is_escaped_is_taken() -> None:
    for url in (
        "redis://u:my%2Fwo%40rd@a:1/0?client_name=a%40b",
        "redis+sentinel://a:1/store?sentinel_password=my@word",
        "unix:///tmp/a@b.sock?db=1",
        "redis://",
        "redis://:6380/1",
        "redis://[::1]:6380",
    ):
        store.connect(url)
