"""The URL of Redis."""

from __future__ import annotations

import pytest
import redis.asyncio

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.redis import store


@pytest.mark.parametrize(
    "url",
    [
        *("foo", "redis://host:99999999", "redis://host/0?bogus=1", "redis://host?socket_timeout=abc"),
        *("redis://host?protocol=9", "unix:///tmp/redis.sock?bogus=1"),
    ],
)
def test_what_is_no_url_of_redis_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidArgument, match="INFERFLUX_REDIS_URL"):
        store.connect(url)


@pytest.mark.parametrize("url", ["redis://policy:sec/ret@host:6379", "redis://u:sec@host?protocol=9"])
def test_a_password_is_in_no_error(url: str) -> None:
    with pytest.raises(InvalidArgument, match="INFERFLUX_REDIS_URL") as caught:
        store.connect(url)
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://host", "rediss://host:6380/3", "unix:///tmp/redis.sock"])
def test_a_connection_can_be_made_for_every_kind_of_url(url: str) -> None:
    pool = store.connect(f"{url}?socket_timeout=3").connection_pool
    assert isinstance(pool, redis.asyncio.BlockingConnectionPool)
    assert pool.connection_class(**pool.connection_kwargs).encoder.decode_responses is False
