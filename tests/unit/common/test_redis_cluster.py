"""A Redis Cluster: its URL, its map, and where a command goes."""

from __future__ import annotations

import pytest
from redis.crc import key_slot
from redis.exceptions import RedisClusterException

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.redis import store
from inferflux.common.redis.redis_cluster import url as cluster
from inferflux.common.redis.redis_cluster.routing import Command, slot_of, units
from inferflux.common.redis.redis_cluster.slots import SlotMap, read_map

NODES = b"""\
aa 10.0.0.1:6379@16379 myself,master - 0 0 3 connected 0-5460
bb 10.0.0.2:6379@16379 master - 0 1 7 connected 5461-16383 [93-<-aa]
cc 10.0.0.3:6379@16379 slave,fail bb 0 1 7 disconnected
dd 10.0.0.4:6379@16379 master - 0 1 0 connected
"""
LOST = b"ee 10.0.0.5:6379@16379 master,fail - 0 1 2 disconnected\n"
SLOTS = [
    [5461, 16383, [b"10.0.0.2", 6379, b"bb", []]],
    [0, 5460, [b"", 6379, b"aa", []]],
]


def test_a_url_names_servers_and_how_each_of_the_cluster_is_called() -> None:
    url = cluster.parse("rediss-cluster://policy:p%40ss@a:1,b,[::1]:3/0?protocol=3")
    assert url.seeds == (("a", 1), ("b", 6379), ("::1", 3))
    assert url.of_server(("c", 5)) == "rediss://policy:p%40ss@c:5/0?protocol=3"
    assert url.of_server(("::1", 3)) == "rediss://policy:p%40ss@[::1]:3/0?protocol=3"
    assert cluster.parse("redis-cluster://a").of_server(("a", 6379)) == "redis://a:6379/0"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis-cluster://", "a server is not host:port"),
        ("redis-cluster://a:1,", "a server is not host:port"),
        ("redis-cluster://a:70000", "a server is not host:port"),
        ("redis-cluster://a:1/3", "the database 0 alone"),
        ("redis-cluster://a:1?unknown=x", "unknown is no option"),
        ("redis+cluster://a:1", "redis-cluster://"),
    ],
)
def test_what_is_wrong_is_said_by_name(url: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as caught:
        store.connect(url)
    assert caught.value.field == "INFERFLUX_REDIS_URL"


def test_a_password_that_was_not_escaped_is_not_told() -> None:
    for url in ("redis-cluster://u:secr/et@a:1", "redis-cluster://u:secr?et@a:1"):
        with pytest.raises(InvalidArgument) as caught:
            store.connect(url)
        assert "secr" not in caught.value.message


def test_a_map_says_who_has_a_slot_and_whether_a_replica_may_take_it() -> None:
    found = read_map(SLOTS, NODES, asked=("10.0.0.1", 6379))
    first, second = found.range_of(0), found.range_of(16383)
    assert first is not None
    assert second is not None
    # What names no host is on the server that was asked. A replica that is away is one all the same.
    assert (first.primary, first.has_replicas) == (("10.0.0.1", 6379), False)
    assert (second.primary, second.has_replicas) == (("10.0.0.2", 6379), True)
    assert found.epoch == 7
    assert found.addresses == found.primaries == [("10.0.0.1", 6379), ("10.0.0.2", 6379)]


def test_a_primary_that_was_replaced_may_come_back_as_a_replica_of_any() -> None:
    found = read_map(SLOTS, NODES + LOST, asked=("10.0.0.1", 6379))
    assert [each.has_replicas for each in found.ranges] == [True, True]


def test_a_slot_that_is_not_served_has_no_range() -> None:
    found = read_map(SLOTS[:1], NODES, asked=("a", 1))
    assert found.range_of(5460) is None
    assert found.range_of(5461) is not None
    assert SlotMap().range_of(0) is None


@pytest.mark.parametrize("answers", [(None, NODES), (SLOTS, b"nothing"), (SLOTS, None), ([[0, 1]], NODES)])
def test_what_is_no_map_is_refused(answers: tuple[object, object]) -> None:
    with pytest.raises(ValueError, match="not one of a cluster"):
        read_map(*answers, asked=("a", 1))


def test_a_command_goes_where_its_keys_are() -> None:
    of_keys = key_slot(b"{keys}")
    assert slot_of(("HGETALL", "inferflux:{keys}:x")) == of_keys
    assert slot_of(("EVALSHA", "sha", 2, b"inferflux:{keys}:x", "inferflux:{keys}:y", "{other}")) == of_keys
    assert slot_of(("DEL", "{keys}:x", "{keys}:y")) == of_keys


@pytest.mark.parametrize(
    "words",
    [
        ("DEL", "{keys}:x", "{limits}:y"),
        ("EVALSHA", "sha", 2, "{keys}:x", "{limits}:y"),
        ("EVALSHA", "sha", 0, "x"),
        ("MEMORY USAGE", "x"),
        ("INFO", "memory"),
        ("SCAN", "0"),
    ],
)
def test_a_command_without_one_place_is_refused(words: tuple[object, ...]) -> None:
    with pytest.raises(RedisClusterException, match=str(words[0])):
        slot_of(words)


def test_a_wait_stays_with_the_write_before_it() -> None:
    write: Command = (("SET", "a", 1), {})
    wait: Command = (("WAIT", 1, 100), {})
    assert units([write, wait, write]) == [[write, wait], [write]]
    with pytest.raises(RedisClusterException, match="WAIT"):
        units([wait])
