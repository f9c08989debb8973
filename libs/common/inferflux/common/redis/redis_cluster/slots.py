"""Map of a cluster's slots to its servers, as they report it. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

Address = tuple[str, int]
"""Host and port of a server."""

N_SLOTS = 16384


class SlotRange(NamedTuple):
    """Slots that a primary has.

    Attributes:
        last: the last one, inclusive.
        replicas: those that are well, which may become the primary.
        has_replicas: whether there are any at all.
    """

    first: int
    last: int
    primary: Address
    replicas: tuple[Address, ...]
    has_replicas: bool


@dataclass(frozen=True, slots=True)
class SlotMap:
    """All slots that are served.

    Attributes:
        ranges: by their first slot.
        epoch: of two maps, the one with the higher epoch knows of a later change.
    """

    ranges: tuple[SlotRange, ...] = ()
    epoch: int = -1

    def range_of(self, slot: int) -> SlotRange | None:
        """None where no server has the slot."""
        at = bisect_right(self.ranges, slot, key=lambda each: each.first) - 1
        return self.ranges[at] if at >= 0 and slot <= self.ranges[at].last else None

    @property
    def primaries(self) -> list[Address]:
        return list(dict.fromkeys(each.primary for each in self.ranges))

    @property
    def addresses(self) -> list[Address]:
        """Addresses of all servers that are well."""
        replicas = (address for each in self.ranges for address in each.replicas)
        return list(dict.fromkeys([*self.primaries, *replicas]))


class _Known(NamedTuple):
    """A server that another one knows, by its line of CLUSTER NODES."""

    identity: str
    is_primary: bool
    is_lost: bool
    primary_id: str
    epoch: int
    has_slots: bool

    @classmethod
    def read(cls, line: str) -> _Known:
        identity, _address, said, primary_id, _ping, _pong, epoch, _link, *slots = line.split(" ")
        flags = said.split(",")
        return cls(
            identity,
            "master" in flags,
            bool({"fail", "noaddr"} & {*flags}),
            primary_id,
            int(epoch),
            bool(slots),
        )


def read_map(slots: object, nodes: object, *, asked: Address) -> SlotMap:
    """The map that a server has.

    Args:
        slots: its answer to CLUSTER SLOTS, as it came.
        nodes: its answer to CLUSTER NODES. It alone tells of replicas that are away.
        asked: the server; what names no host is on the same one.

    Raises:
        ValueError: they are no such answers.
    """
    try:
        known = [_Known.read(line) for line in cast("bytes", nodes).decode().splitlines()]
        # A primary that was lost, and replaced, comes back as a replica; until then it is not told of which.
        may_be_of_any = any(each.is_primary and each.is_lost and not each.has_slots for each in known)
        with_replicas = (
            {each.identity for each in known} if may_be_of_any else {each.primary_id for each in known}
        )
        epoch = max((each.epoch for each in known if each.is_primary), default=0)
        rows = cast("list[list[object]]", slots)
        return SlotMap(tuple(sorted(_range(row, with_replicas, asked[0]) for row in rows)), epoch)
    except (IndexError, TypeError, AttributeError, ValueError) as error:
        raise ValueError("the server's answer is not one of a cluster") from error


def _range(row: Sequence[object], with_replicas: set[str], asked_host: str) -> SlotRange:
    first, last, *servers = row
    (primary, identity), *replicas = [_server(cast("Sequence[object]", each), asked_host) for each in servers]
    return SlotRange(
        cast("int", first),
        cast("int", last),
        primary,
        tuple(address for address, _ in replicas),
        has_replicas=identity in with_replicas,
    )


def _server(row: Sequence[object], asked_host: str) -> tuple[Address, str]:
    """(its address, its id)."""
    host, port, identity = row[:3]
    name = cast("bytes | None", host) or b""
    return (name.decode() or asked_host, cast("int", port)), cast("bytes", identity).decode()
