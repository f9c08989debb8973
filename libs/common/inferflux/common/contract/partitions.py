"""Parts that models are divided into, so that several schedulers lead at once (pure).

A model belongs to one of `SHARDS` shards, by a hash of its name, and the subject of its jobs has the shard.
So what a gateway publishes does not depend on how many partitions there are: partition i of n has the shards
that leave i when divided by n.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import InvalidArgument

SHARDS = 64
"""Largest number of partitions."""
VARIABLE = "INFERFLUX_SCHEDULER_PARTITIONS"
"""Says how many partitions there are."""
ALL = "all"
"""The name of the one partition of models that are not divided."""
OTHER_PARTITION = "OTHER_PARTITION"
"""The reason with which a leader refuses what is for another one."""
UNKNOWN_WORKER = "UNKNOWN_WORKER"
"""That with which it refuses what is about a worker that it does not know: another one may."""
UNKNOWN_REQUEST = "UNKNOWN_REQUEST"
"""The same of a request."""
_NAME = re.compile(r"(0|[1-9]\d?)-of-([1-9]\d?)")


def shard_of(model: str) -> int:
    """The shard of a model, by the CRC-32 of its name: in [0, SHARDS)."""
    return zlib.crc32(model.encode()) % SHARDS


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """Models that are led together.

    Args:
        index: from 0, below `count`.
        count: of all partitions; from 1 to SHARDS.
    """

    index: int = 0
    count: int = 1

    @property
    def name(self) -> str:
        """Name in keys, names of consumers, and messages."""
        return ALL if self.is_whole else f"{self.index}-of-{self.count}"

    @property
    def is_whole(self) -> bool:
        """True if it has all models."""
        return self.count == 1

    @property
    def shards(self) -> range:
        return range(self.index, SHARDS, self.count)

    def has(self, model: str) -> bool:
        return shard_of(model) % self.count == self.index


WHOLE = Partition()
"""All models."""


def divide(count: int) -> list[Partition]:
    """All of `count` partitions."""
    return [Partition(index, count) for index in range(count)]


def indexes_of(models: Iterable[str], count: int) -> set[int]:
    """Indexes of the partitions, of `count`, that these models are in. A single one has all models, named
    or not."""
    return {0} if count == 1 else {shard_of(model) % count for model in models}


def parse(name: str, field: str = "partition") -> Partition:
    """The partition of a name; of an empty one, that of all models.

    Raises:
        InvalidArgument: no partition is called so.
    """
    if name in ("", ALL):
        return WHOLE
    if (found := _NAME.fullmatch(name)) is not None:
        index, count = int(found[1]), int(found[2])
        if index < count and 1 < count <= SHARDS:
            return Partition(index, count)
    raise InvalidArgument(f"no partition is called {name[:32]!r}", field=field)
