"""The table of workers, their sequence slots and KV cells (pure).

A sequence slot is free, running or parked, and has at most one owner: a request in one epoch. A swapped
request is on board without a slot. At most `slots` requests run at once; a worker has more sequence slots
than that, so that parked requests can stay beside those that run. When every slot is taken, a new owner may
be given that of the least urgent parked one, which the worker then swaps out.

What a worker has that is none of the table's own (from before a restart of the scheduler, or given up while
the worker was out of reach) is a stray: it takes its slot and its cells until the worker does not report it
any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from inferflux.common.kv_cells import committed_cells
from inferflux.v1 import scheduler_pb2

from .jobs import RequestKey


class Residence(Enum):
    """Where a request on board is."""

    RUNNING = scheduler_pb2.RESIDENCE_RUNNING
    # In its slot, waiting for its turn.
    PARKED = scheduler_pb2.RESIDENCE_PARKED
    # In host memory, or to be computed again; it has no slot.
    SWAPPED = scheduler_pb2.RESIDENCE_SWAPPED

    @classmethod
    def of(cls, reported: scheduler_pb2.Residence.ValueType) -> Residence:
        return cls(reported or scheduler_pb2.RESIDENCE_RUNNING)


@dataclass(slots=True)
class Owner:
    """A request on board, and how sure it is that the worker knows."""

    key: RequestKey
    epoch: int
    # None when swapped.
    slot: int | None
    cells: int
    # Lower is more urgent.
    rank: float = 0.0
    residence: Residence = Residence.RUNNING
    is_accepted: bool = False
    # The worker has said that it does not run: only then may it be told to go on.
    is_confirmed: bool = False
    # Heartbeats in a row, since its acceptance, that did not list it.
    missed: int = 0
    # Heartbeats in a row that say otherwise about whether it runs.
    disputed: int = 0

    @property
    def is_running(self) -> bool:
        return self.residence is Residence.RUNNING


@dataclass(frozen=True, slots=True)
class Stray:
    """Something a worker has that the table has not given it, and since when that is known."""

    key: RequestKey
    epoch: int
    slot: int | None
    since_s: float
    residence: Residence = Residence.RUNNING
    cells: int = 0


@dataclass(slots=True)
class Reconciled:
    """What a heartbeat says beyond what the table knew."""

    # Known to be there now, though the worker's answer to the batch has not come yet.
    confirmed: list[Owner] = field(default_factory=list)
    ended: list[tuple[RequestKey, int]] = field(default_factory=list)
    # Accepted, but neither there nor ended any more.
    vanished: list[Owner] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)
    # Run, although the table says that they wait for their turn.
    going_on: list[Owner] = field(default_factory=list)
    # Do not run, although the table says so; and where they are.
    stopped: list[tuple[Owner, Residence]] = field(default_factory=list)


OnBoard = Mapping[RequestKey, scheduler_pb2.RunningRequest]


class WorkerSlots:
    """One worker: what it said last, and who has its slots."""

    def __init__(self, status: scheduler_pb2.WorkerStatus, now: float) -> None:
        self.worker_id: str = status.worker_id
        self.incarnation: str = status.incarnation
        self.last_seen_s = now
        # It refused or did not answer: nothing new until it has spoken again.
        self.is_held = False
        # Whether it was asked for a sign of life since it was heard.
        self.was_asked = False
        # A request parked here waits for cells: for the rest of a plan, nobody else gets them.
        self.is_kept = False
        # Batches it has not answered: what it says meanwhile may be from before them.
        self.unanswered = 0
        self.owners: dict[RequestKey, Owner] = {}
        self.strays: dict[RequestKey, Stray] = {}
        self.stray_cells = 0
        # Of running requests; what is parked gives way.
        self.owned_cells = 0
        self.status = status
        # A suspect that runs here, and nothing else may run beside it.
        self._alone: RequestKey | None = None
        # Kept free of everything but suspects, while any wait.
        self.is_reserved = False
        self._n_running = 0
        self._n_strays_running = 0
        self._free: list[int] = []
        self._take_status(status)
        self._count_free()

    @property
    def free_cells(self) -> int:
        return self.kv_cells - self.owned_cells - self.stray_cells

    @property
    def load(self) -> int:
        """Tokens that running requests may have to hold."""
        return self.owned_cells + self.stray_cells

    @property
    def is_isolated(self) -> bool:
        """Whether a suspect runs here alone."""
        return self._alone is not None

    def is_alone(self, key: RequestKey) -> bool:
        """Whether this is the suspect that runs here alone."""
        return self._alone == key

    def may_compute(self, key: RequestKey) -> bool:
        """Whether the engine may be at work for a request. Raises KeyError if it is not resident."""
        owner = self.owners[key]
        return owner.is_running or not owner.is_confirmed

    @property
    def n_running(self) -> int:
        """Requests that run here, unowned ones among them."""
        return self._n_running + self._n_strays_running

    @property
    def can_isolate(self) -> bool:
        """Whether a suspect would run alone here."""
        is_up = self.state == scheduler_pb2.WORKER_STATE_READY and not (self.is_held or self.is_kept)
        is_idle = not self.n_running and all(owner.is_confirmed for owner in self.owners.values())
        return is_up and is_idle and self.has_slot

    @property
    def _is_shut(self) -> bool:
        return self.is_held or self.is_kept or self.is_reserved or self._alone is not None

    @property
    def has_turn(self) -> bool:
        """Whether one more request may run, were it there."""
        return not self._is_shut and self._n_running + self._n_strays_running < self.slots

    @property
    def has_slot(self) -> bool:
        """Whether there is a sequence slot for one more."""
        return bool(self._free) or self._displaceable() is not None

    @property
    def has_parked(self) -> bool:
        """Whether requests on board wait for their turn."""
        return any(not owner.is_running for owner in self.owners.values())

    @property
    def is_open(self) -> bool:
        """Whether it takes new requests."""
        return self.takes_new and self.has_turn and self.has_slot

    @property
    def takes_new(self) -> bool:
        """Whether it would take new requests if there were room."""
        return self.state == scheduler_pb2.WORKER_STATE_READY and not self._is_shut

    @property
    def can_resume(self) -> bool:
        """Whether what is parked on it may go on; also while it drains."""
        is_up = self.state in (scheduler_pb2.WORKER_STATE_READY, scheduler_pb2.WORKER_STATE_DRAINING)
        return is_up and self.has_turn

    @property
    def strays_running(self) -> int:
        return self._n_strays_running

    @property
    def free_slots(self) -> int:
        """How many more requests may run."""
        return max(0, min(self.slots - self._n_running - self._n_strays_running, self.slots))

    def can_adopt(self, stray: Stray) -> bool:
        """Not while its slot has been given to another request, which the worker is about to refuse."""
        return stray.slot is None or all(
            o.slot != stray.slot or o.key == stray.key for o in self.owners.values()
        )

    def assign(
        self, key: RequestKey, epoch: int, cells: int, rank: float = 0.0, *, is_alone: bool = False
    ) -> Owner:
        """Have a new request run here.

        Args:
            is_alone: nothing else may run beside it.

        Raises:
            IndexError: there is no slot for it.
        """
        if is_alone:
            self._admit_no_others(key)
        return self._own(Owner(key, epoch, self._take_slot(), cells, rank))

    def adopt(self, stray: Stray, cells: int, rank: float = 0.0) -> Owner:
        """Make a stray the table's own: its job has come."""
        del self.strays[stray.key]
        if stray.residence is Residence.RUNNING:
            self._n_strays_running -= 1
            self.stray_cells -= stray.cells
        return self._own(
            Owner(
                stray.key,
                stray.epoch,
                stray.slot,
                cells,
                rank,
                stray.residence,
                is_accepted=True,
                is_confirmed=stray.residence is not Residence.RUNNING,
            )
        )

    def park(self, key: RequestKey, residence: Residence = Residence.PARKED, *, is_confirmed: bool) -> None:
        """Take note that a request does not run, or not any more."""
        owner = self.owners[key]
        self.admit_others(key)
        if owner.is_running:
            self._n_running -= 1
            self.owned_cells -= owner.cells
        owner.is_confirmed |= is_confirmed
        owner.disputed = 0
        if owner.residence is not Residence.SWAPPED:
            owner.residence = residence
        if residence is Residence.SWAPPED:
            self._give_slot_back(owner)

    def resume(self, key: RequestKey, cells: int, rank: float = 0.0, *, is_alone: bool = False) -> Owner:
        """Have a request that is on board run again; it gets a slot if it has none.

        Args:
            is_alone: nothing else may come to run beside it.

        Raises:
            IndexError: there is no slot for it.
        """
        owner = self.owners[key]
        if owner.slot is None:
            owner.slot = self._take_slot()
        if is_alone:
            self._admit_no_others(key)
        owner.cells, owner.rank, owner.residence = cells, rank, Residence.RUNNING
        owner.is_confirmed, owner.disputed = False, 0
        self._n_running += 1
        self.owned_cells += cells
        return owner

    def grow(self, owner: Owner, cells: int) -> None:
        """A running request may come to hold so many cells."""
        if owner.is_running:
            self.owned_cells += cells - owner.cells
            owner.cells = cells

    def release(self, key: RequestKey) -> None:
        """Take a request off board. Raises KeyError if it is not there."""
        owner = self.owners.pop(key)
        self.admit_others(key)
        if owner.is_running:
            self._n_running -= 1
            self.owned_cells -= owner.cells
        self._give_slot_back(owner)

    def _admit_no_others(self, key: RequestKey) -> None:
        if self._alone is None:
            self._alone = key

    def admit_others(self, key: RequestKey) -> None:
        """A request need not run alone, or does not any more."""
        if self._alone == key:
            self._alone = None

    def reconcile(self, status: scheduler_pb2.WorkerStatus, now: float, insist_after: int) -> Reconciled:
        """Take a heartbeat in.

        Args:
            status: of this worker in this incarnation.
            insist_after: heartbeats in a row that must contradict the table before they count: one may have
                been on its way when the table changed.

        Returns:
            What it says. Nobody is released or parked here: that is for whoever decides what becomes of the
            jobs.
        """
        self.last_seen_s = max(self.last_seen_s, now)
        self.is_held = self.was_asked = False
        self._take_status(status)
        on_board = {RequestKey(r.tenant, r.request_id): r for r in status.running}
        found = Reconciled()
        found.ended = [(RequestKey(e.tenant, e.request_id), e.epoch) for e in status.ended]
        gone = set(found.ended)
        for owner in self.owners.values():
            if (owner.key, owner.epoch) in gone:
                continue
            report = on_board.get(owner.key)
            if report is not None and report.epoch == owner.epoch:
                self._compare(owner, report, found, insist_after)
            elif owner.is_accepted:
                owner.missed += 1
                if owner.missed >= insist_after:
                    found.vanished.append(owner)
        found.strays = self._take_strays(on_board, now)
        self._count_free()
        return found

    def _compare(
        self, owner: Owner, report: scheduler_pb2.RunningRequest, found: Reconciled, insist_after: int
    ) -> None:
        said = Residence.of(report.residence)
        if not owner.is_accepted:
            found.confirmed.append(owner)
        owner.missed, owner.is_accepted = 0, True
        is_running = said is Residence.RUNNING
        if is_running is owner.is_running:
            owner.disputed = 0
            if is_running:
                if report.residence:  # else its engine has not reported yet where it is
                    self._follow_slot(owner, report.slot)
            else:
                self.park(owner.key, said, is_confirmed=True)
            return
        owner.disputed = 0 if self.unanswered else owner.disputed + 1
        if owner.disputed >= insist_after:
            if is_running:
                found.going_on.append(owner)
            else:
                found.stopped.append((owner, said))

    def _follow_slot(self, owner: Owner, slot: int) -> None:
        """It runs in this one, whichever it was to have: the end of its turn and the next one may have
        crossed. While the table has given the slot to another, that one is about to be refused."""
        if owner.slot == slot or self.unanswered:
            return
        if all(other.slot != slot for other in self.owners.values()):
            owner.slot = slot

    def _take_status(self, status: scheduler_pb2.WorkerStatus) -> None:
        self.state: scheduler_pb2.WorkerState.ValueType = status.state
        if not status.slots:  # loading again: as before, as far as is known
            old = self.status
            status.slots, status.kv_cells, status.sequences = old.slots, old.kv_cells, old.sequences
        self.status = status
        # Most requests that run at once.
        self.slots: int = status.slots
        self.sequences: int = max(status.sequences, status.slots)
        # In all; 0 until the engine is ready for the first time.
        self.kv_cells: int = status.kv_cells
        # By model name; 0 where it is not known yet.
        self.context_lengths = {card.name: card.context_length for card in status.models}

    def _own(self, owner: Owner) -> Owner:
        self.owners[owner.key] = owner
        if owner.is_running:
            self._n_running += 1
            self.owned_cells += owner.cells
        return owner

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        parked = self._displaceable()
        if parked is None or parked.slot is None:
            raise IndexError("no sequence slot is free")
        slot = parked.slot
        parked.slot, parked.residence = None, Residence.SWAPPED
        return slot

    def _displaceable(self) -> Owner | None:
        """The least urgent parked request that keeps a slot."""
        parked = (o for o in self.owners.values() if o.residence is Residence.PARKED)
        return max(parked, key=lambda o: o.rank, default=None)

    def _give_slot_back(self, owner: Owner) -> None:
        slot, owner.slot = owner.slot, None
        if slot is not None and all(stray.slot != slot for stray in self.strays.values()):
            self._free.append(slot)

    def _take_strays(self, on_board: OnBoard, now: float) -> list[Stray]:
        known, self.strays = self.strays, {}
        for key, report in on_board.items():
            owner = self.owners.get(key)
            if owner is None or owner.epoch != report.epoch:
                old = known.get(key)
                since_s = old.since_s if old is not None and old.epoch == report.epoch else now
                residence = Residence.of(report.residence)
                slot = None if residence is Residence.SWAPPED else report.slot
                cells = committed_cells(report.prompt_tokens, report.generated_tokens)
                self.strays[key] = Stray(key, report.epoch, slot, since_s, residence, cells)
        running = [s.cells for s in self.strays.values() if s.residence is Residence.RUNNING]
        self._n_strays_running, self.stray_cells = len(running), sum(running)
        return list(self.strays.values())

    def _count_free(self) -> None:
        taken = {o.slot for o in self.owners.values()} | {s.slot for s in self.strays.values()}
        self._free = [slot for slot in range(self.sequences - 1, -1, -1) if slot not in taken]


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
        return [w for w in self.workers.values() if now - w.last_seen_s > dead_after_s]

    def reset_liveness(self, until_s: float) -> None:
        """Count no worker's silence before `until_s`: it could not be heard."""
        for worker in self.workers.values():
            worker.last_seen_s = max(worker.last_seen_s, until_s)
