"""The table of workers, their sequence slots and KV cells (pure).

A slot is free or running. A running one has exactly one owner: a request in one epoch. What a worker runs
that is none of the table's own (from before a restart of the scheduler, or given up while the worker was out
of reach) is a stray: it takes its slot and its cells until the worker does not report it any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inferflux.v1 import scheduler_pb2

from .jobs import RequestKey


@dataclass(slots=True)
class Owner:
    """The request that has a slot, and how sure it is that the worker knows."""

    key: RequestKey
    epoch: int
    slot: int
    cells: int
    is_accepted: bool = False
    # Heartbeats in a row, since its acceptance, that did not list it.
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Stray:
    """Something a worker runs that the table has not given it, and since when that is known."""

    key: RequestKey
    epoch: int
    slot: int
    since_s: float


@dataclass(slots=True)
class Reconciled:
    """What a heartbeat says beyond what the table knew."""

    # Known to run now, though the worker's answer to the batch has not come yet.
    confirmed: list[Owner] = field(default_factory=list)
    ended: list[tuple[RequestKey, int]] = field(default_factory=list)
    # Accepted, but neither running nor ended any more.
    vanished: list[Owner] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)


Running = Mapping[RequestKey, scheduler_pb2.RunningRequest]


class WorkerSlots:
    """One worker: what it said last, and who has its slots."""

    def __init__(self, status: scheduler_pb2.WorkerStatus, now: float) -> None:
        self.worker_id: str = status.worker_id
        self.incarnation: str = status.incarnation
        self.heard_s = now
        # It refused or did not answer: nothing new until it has spoken again.
        self.is_held = False
        self.owners: dict[RequestKey, Owner] = {}
        self.strays: dict[RequestKey, Stray] = {}
        self.stray_cells = 0
        self.owned_cells = 0
        self.status = status
        self._ids: set[str] = set()
        self._free: list[int] = []
        self._take_status(status)
        self._count_free()

    @property
    def free_cells(self) -> int:
        return self.kv_cells - self.owned_cells - self.stray_cells

    @property
    def load(self) -> int:
        """Tokens it may have to hold."""
        return self.owned_cells + self.stray_cells

    @property
    def is_open(self) -> bool:
        """Whether it takes new requests."""
        return self.state == scheduler_pb2.WORKER_STATE_READY and not self.is_held and bool(self._free)

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def is_id_taken(self, key: RequestKey) -> bool:
        """Whether another tenant's request of the same id is here: a worker knows requests by id alone."""
        if key.request_id in self._ids and key not in self.owners:
            return True
        return any(s.request_id == key.request_id and s.tenant != key.tenant for s in self.strays)

    def resolve(self, tenant: str, request_id: str) -> RequestKey:
        """A worker that does not name the tenant means the one request of this id that it has."""
        if not tenant and request_id in self._ids:
            return next(key for key in self.owners if key.request_id == request_id)
        return RequestKey(tenant, request_id)

    def can_adopt(self, stray: Stray) -> bool:
        """Not while its slot has been given to another request, which the worker is about to refuse."""
        return all(o.slot != stray.slot or o.key == stray.key for o in self.owners.values())

    def assign(self, key: RequestKey, epoch: int, cells: int) -> Owner:
        """Give a free slot away. Raises IndexError when there is none."""
        return self._own(Owner(key, epoch, self._free.pop(), cells))

    def adopt(self, stray: Stray, cells: int) -> Owner:
        """Make a stray the table's own: its job has come."""
        del self.strays[stray.key]
        self.stray_cells = max(0, self.stray_cells - cells) if self.strays else 0
        return self._own(Owner(stray.key, stray.epoch, stray.slot, cells, is_accepted=True))

    def release(self, key: RequestKey) -> None:
        """Take a slot back. Raises KeyError if the request has none here."""
        owner = self.owners.pop(key)
        self.owned_cells -= owner.cells
        self._ids.discard(key.request_id)
        if all(stray.slot != owner.slot for stray in self.strays.values()):
            self._free.append(owner.slot)

    def reconcile(self, status: scheduler_pb2.WorkerStatus, now: float, vanish_after: int) -> Reconciled:
        """Take a heartbeat in.

        Args:
            status: of this worker in this incarnation.
            vanish_after: heartbeats in a row that must not know an accepted request before it counts as
                lost: one may have been on its way when it was accepted.

        Returns:
            What it says. Nothing is released here: that is for whoever decides what becomes of the jobs.
        """
        self.heard_s = max(self.heard_s, now)
        self.is_held = False
        self._take_status(status)
        running = {RequestKey(r.tenant, r.request_id): r for r in status.running}
        found = Reconciled()
        found.ended = [(self.resolve(e.tenant, e.request_id), e.epoch) for e in status.ended]
        gone = set(found.ended)
        for owner in self.owners.values():
            report = running.get(owner.key)
            if report is not None and report.epoch == owner.epoch:
                if not owner.is_accepted:
                    found.confirmed.append(owner)
                owner.missed, owner.is_accepted = 0, True
            elif owner.is_accepted and (owner.key, owner.epoch) not in gone:
                owner.missed += 1
                if owner.missed >= vanish_after:
                    found.vanished.append(owner)
        found.strays = self._take_strays(running, now)
        self._count_free()
        self._count_stray_cells(running)
        return found

    def _take_status(self, status: scheduler_pb2.WorkerStatus) -> None:
        self.state: scheduler_pb2.WorkerState.ValueType = status.state
        if not status.slots:  # loading again: as before, as far as is known
            status.slots, status.kv_cells = self.status.slots, self.status.kv_cells
        self.status = status
        self.slots: int = status.slots
        # In all; 0 until the engine is ready for the first time.
        self.kv_cells: int = status.kv_cells
        # By model name; 0 where it is not known yet.
        self.context_lengths = {card.name: card.context_length for card in status.models}

    def _own(self, owner: Owner) -> Owner:
        self.owners[owner.key] = owner
        self.owned_cells += owner.cells
        self._ids.add(owner.key.request_id)
        return owner

    def _take_strays(self, running: Running, now: float) -> list[Stray]:
        known, self.strays = self.strays, {}
        for key, report in running.items():
            owner = self.owners.get(key)
            if owner is None or owner.epoch != report.epoch:
                old = known.get(key)
                since_s = old.since_s if old is not None and old.epoch == report.epoch else now
                self.strays[key] = Stray(key, report.epoch, report.slot, since_s)
        return list(self.strays.values())

    def _count_free(self) -> None:
        taken = {o.slot for o in self.owners.values()} | {s.slot for s in self.strays.values()}
        self._free = [slot for slot in range(self.slots - 1, -1, -1) if slot not in taken]

    def _count_stray_cells(self, running: Running) -> None:
        """Only the worker's own sum tells what strays have reserved."""
        listed = sum(owner.cells for key, owner in self.owners.items() if key in running)
        self.stray_cells = max(0, self.status.kv_cells_reserved - listed) if self.strays else 0


class SlotTable:
    """Every worker that lives."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerSlots] = {}

    def get(self, worker_id: str, incarnation: str | None = None) -> WorkerSlots | None:
        """The worker, if it lives and is still the one of that incarnation."""
        worker = self.workers.get(worker_id)
        if worker is None or (incarnation is not None and worker.incarnation != incarnation):
            return None
        return worker

    def silent(self, now: float, dead_after_s: float) -> list[WorkerSlots]:
        """Workers not heard of for too long."""
        return [w for w in self.workers.values() if now - w.heard_s > dead_after_s]

    def excuse(self, until_s: float) -> None:
        """Count no worker's silence before `until_s`: it could not be heard."""
        for worker in self.workers.values():
            worker.heard_s = max(worker.heard_s, until_s)
