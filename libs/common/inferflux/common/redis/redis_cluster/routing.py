"""Routing of a command to a slot of a cluster, by its keys. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis.crc import key_slot
from redis.exceptions import RedisClusterException

Command = tuple[Sequence[Any], dict[str, Any]]
"""Words of a command, and how its answer is read."""

EVERYWHERE = frozenset({"PING", "SCRIPT LOAD"})
"""Commands for every primary."""

_SCRIPTS = frozenset({"EVAL", "EVALSHA"})
# Those whose first word is a key. A command that is missing here is refused: the key of some is elsewhere.
_KEYED = frozenset({"EXPIRE", "GET", "PERSIST", "PTTL", "SET", "TTL", "TYPE"})
_KEYED |= {"HDEL", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HSCAN", "HSET"}
_KEYED |= {"SADD", "SISMEMBER", "SMEMBERS", "ZCARD", "ZRANGE", "ZSCORE"}
_ALL_KEYS = frozenset({"DEL", "EXISTS", "UNLINK"})


def slot_of(words: Sequence[Any]) -> int:
    """The slot of a command's keys.

    Raises:
        RedisClusterException: it has no key, or it is not known where; or its keys are of different slots.
    """
    name, *rest = words
    if name in _SCRIPTS:
        keys = rest[2 : 2 + int(rest[1])]
    elif name in _ALL_KEYS:
        keys = rest
    else:
        keys = rest[:1] if name in _KEYED else []
    slots = {key_slot(key.encode() if isinstance(key, str) else key) for key in keys}
    if len(slots) != 1:
        why = "its keys are of different slots" if slots else "it is not known which key it is about"
        raise RedisClusterException(f"{name} cannot be sent to a cluster: {why}")
    return slots.pop()


def units(commands: Iterable[Command]) -> list[list[Command]]:
    """Commands that stay together on one connection: WAIT goes with the one before it.

    Raises:
        RedisClusterException: there is none before it.
    """
    found: list[list[Command]] = []
    for command in commands:
        if command[0][0] != "WAIT":
            found.append([command])
        elif found:
            found[-1].append(command)
        else:
            raise RedisClusterException("WAIT is about a command before it, and there is none")
    return found
