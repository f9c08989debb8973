"""A scheduler process: who lives, which partitions it is to lead, and the lease of each.

The deciding code is real (`core/lease/`). Around it is what `membership.py`, `leadership.py` and
`candidate.py` do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferflux.common.contract.partitions import Partition
from inferflux.scheduler.core.lease.lease import Lease, LeaseTimes, Read, Role, Write
from inferflux.scheduler.core.lease.ownership import Handover, Members

from .leading import Leader

if TYPE_CHECKING:
    from .world import FleetWorld

# A lease is renewed, and schedulers publish that they live, this often in the time of a lease.
_PER_LEASE = 3


@dataclass(slots=True, eq=False)
class Seat:
    """One partition: this process leads it, or stands by.

    Attributes:
        is_asking: the bucket has not answered yet.
        wake_s: when the lease is looked at next; older calls are skipped.
        why: what ends its lead, if anything does.
    """

    partition: Partition
    lease: Lease
    leader: Leader | None = None
    is_asking: bool = False
    wake_s: float = -1.0
    why: str = "another leads"


class SchedulerProcess:
    """One process from its start to its end."""

    def __init__(self, world: FleetWorld, name: str, incarnation: int) -> None:
        fleet = world.fleet
        self.name = name
        self.is_alive = True
        self._world = world
        self._interval_s = fleet.lease_s / _PER_LEASE
        self._members = Members(name, self._interval_s, world.now)
        self._handover = Handover(fleet.lease_s)
        self._is_leaving = False
        times = LeaseTimes(fleet.lease_s)
        self._seats = [
            Seat(partition, Lease(name, f"{name}-{incarnation}", times)) for partition in fleet.all_partitions
        ]
        self._by_partition = {seat.partition: seat for seat in self._seats}

    def start(self) -> None:
        self._tell()
        for seat in self._seats:
            self._drive(seat)

    def kill(self, why: str) -> None:
        """It is gone, without a word."""
        self.is_alive = False
        for seat in self._seats:
            self._stop(seat, why)

    def leave(self) -> None:
        """It ends in order: it gives up each lease, and says so."""
        self._is_leaving = True
        for seat in self._seats:
            seat.why = "left"
            seat.lease.leave(self._world.now, claim_from_s=math.inf)
            self._follow(seat)
            self._drive(seat)
        self._world.tell_alive(self.name, is_leaving=True)

    # Who lives

    def on_alive(self, name: str, *, is_leaving: bool) -> None:
        """Another scheduler publishes that it lives, or leaves."""
        if not self.is_alive or self._is_leaving:
            return
        if is_leaving:
            self._members.on_left(name)
        else:
            self._members.on_alive(name, self._world.now)
        self._decide()

    def _tell(self) -> None:
        if not self.is_alive or self._is_leaving:
            return
        self._world.tell_alive(self.name, is_leaving=False)
        self._decide()
        self._world.events.after(self._interval_s, self._tell)

    def _decide(self) -> None:
        now = self._world.now
        for seat in self._seats:
            name = seat.partition.name
            seat.lease.want(self._members.is_owner(name, now))
            has_better = seat.leader is not None and self._members.has_better_owner(name, now)
            if self._handover.is_due(name, now, is_outweighed=has_better):
                seat.why = "gave it back"
                seat.lease.leave(now, claim_from_s=now + self._handover.pause_s)
                self._follow(seat)
                self._drive(seat)

    # Leases

    def on_term(self, partition: Partition, term: int) -> None:
        """A worker has seen this term."""
        seat = self._by_partition[partition]
        seat.lease.on_term(term, self._world.now)
        self._follow(seat)

    def _drive(self, seat: Seat) -> None:
        """Read or write the lease, if that is due; else come back when it is."""
        is_done = self._is_leaving and seat.lease.role is Role.STANDBY
        if not self.is_alive or seat.is_asking or is_done:
            return
        now = self._world.now
        todo = seat.lease.next(now, int(now * 1000))
        if todo is None:
            if seat.wake_s != seat.lease.due_s:
                seat.wake_s = seat.lease.due_s
                self._world.events.at(seat.wake_s, self._wake, seat, seat.wake_s)
            return
        seat.is_asking = True
        self._world.send(self._ask, seat, todo)

    def _wake(self, seat: Seat, wake_s: float) -> None:
        if seat.wake_s == wake_s:
            seat.wake_s = -1.0
            self._drive(seat)

    def _ask(self, seat: Seat, todo: Read | Write) -> None:
        """At the bucket: what was sent before a kill is done."""
        key = f"lease.{seat.partition.name}"
        match todo:
            case Read():
                self._world.send(self._on_read, seat, *self._world.bucket.get(key))
            case Write(record, over):
                written = self._world.bucket.write(key, record.encode(), over)
                self._world.send(self._on_written, seat, written)

    def _on_read(self, seat: Seat, value: bytes | None, revision: int) -> None:
        seat.lease.on_read(value, revision, self._world.now)
        self._go_on(seat)

    def _on_written(self, seat: Seat, revision: int | None) -> None:
        seat.lease.on_written(revision, self._world.now)
        self._go_on(seat)

    def _go_on(self, seat: Seat) -> None:
        seat.is_asking = False
        if self.is_alive:
            self._follow(seat)
            self._drive(seat)

    def _follow(self, seat: Seat) -> None:
        """Lead while the lease says so."""
        leads = seat.lease.role is Role.LEADER
        if leads and seat.leader is None:
            seat.why = "another leads"
            seat.leader = Leader(self._world, self.name, seat.partition, seat.lease)
            self._world.begin_lead(self, seat.leader)
        elif not leads:
            self._stop(seat, seat.why)

    def _stop(self, seat: Seat, why: str) -> None:
        if seat.leader is not None:
            self._world.end_lead(self, seat.leader, why)
            seat.leader = None
