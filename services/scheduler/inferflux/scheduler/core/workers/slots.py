"""One worker and its slots (pure).

A slot is a place to run, in [0, slots): it is free, or has one running request. The table assigns slots. A
resident request that waits to resume has none. Where it lies, in the KV cache or outside, is the engine's
affair: the table stores what the worker reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto

from inferflux.common.contract import epochs
from inferflux.common.contract.requests import worker_pools
from inferflux.common.contract.requests.kv_cells import reserved_cells
from inferflux.common.contract.requests.worker_roles import Role
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.v1 import device_pb2, scheduler_pb2

from .assignments import Assignment, Reconciled, Residence, UnownedRequest
from .pools import PREFILL, role_of

_GPUS = (
    device_pb2.DEVICE_KIND_GPU,
    device_pb2.DEVICE_KIND_INTEGRATED_GPU,
    device_pb2.DEVICE_KIND_GROUP,
)
_UP = (scheduler_pb2.WORKER_STATE_READY, scheduler_pb2.WORKER_STATE_DRAINING)


def _is_near(rank: device_pb2.ExpertPlacement) -> bool:
    """True if experts are on GPUs of the worker's machine."""
    return rank.kind in _GPUS and not rank.endpoint


class Start(Enum):
    """Kind of start of a request on a worker."""

    # It comes from the queue.
    NEW = auto()
    # It is resident, and waits to resume.
    RESUME = auto()
    # It is a suspect from the queue: nothing else may run beside it.
    ALONE = auto()


Reports = Mapping[RequestKey, scheduler_pb2.ResidentRequest]


class WorkerSlots:
    """One worker: what it reported last, and who has its slots.

    Args:
        on_change: called after every change that placement goes by.
    """

    def __init__(
        self,
        status: scheduler_pb2.WorkerStatus,
        now: float,
        on_change: Callable[[WorkerSlots], None] = lambda _worker: None,
    ) -> None:
        self.worker_id: str = status.worker_id
        self.incarnation: str = status.incarnation
        self.last_seen_s = now
        self._on_change = on_change
        # Whether it was probed since its last heartbeat.
        self.was_probed = False
        self.assignments: dict[RequestKey, Assignment] = {}
        self.unowned: dict[RequestKey, UnownedRequest] = {}
        # Of running requests; what waits to resume gives way.
        self.assigned_cells = 0
        self.unowned_cells = 0
        # It refused or did not answer: nothing starts until it has reported again.
        self.is_held = False
        # A request waits here for cells: for the rest of a plan, no newcomer gets them.
        self._reserves_cells = False
        # Kept free of everything but suspects, while any wait.
        self.is_reserved = False
        # Requests that are on their way here from another worker, and the cells that they will take.
        self.awaited: dict[RequestKey, int] = {}
        # A suspect that runs here, and nothing else may run beside it.
        self.alone: RequestKey | None = None
        # How many times slower than the fastest worker of a model it is; 1 where it is not in it.
        self.slowness: dict[str, float] = {}
        self._n_running = 0
        self._n_unowned_running = 0
        self._free: list[int] = []
        self.state: scheduler_pb2.WorkerState.ValueType = status.state
        self.status = status
        self._take_status(status)
        self._count_free()

    # What it can do

    @property
    def free_cells(self) -> int:
        return self.kv_cells - self.load

    @property
    def load(self) -> int:
        """Tokens that running requests may have to hold, those on their way here among them."""
        return self.assigned_cells + self.unowned_cells + sum(self.awaited.values())

    @property
    def is_prefill(self) -> bool:
        """True if it is meant for prompts: whole requests go to others, if they can."""
        return self.role == PREFILL

    @property
    def is_leaving(self) -> bool:
        """True if it ends, and says when what it has then goes to others."""
        return self.status.HasField("leaves_in_ms")

    @property
    def n_running(self) -> int:
        """Requests that run here, unowned ones among them."""
        return self._n_running + self._n_unowned_running

    @property
    def free_slots(self) -> int:
        """Number of requests that may run in addition."""
        return max(0, min(len(self._free), self.slots - self.n_running) - len(self.awaited))

    def admits(self, start: Start) -> bool:
        """True if such a request may start here, were there a slot and cells."""
        if self.is_held or self.alone is not None:
            return False
        if start is Start.RESUME:
            return self.state in _UP and not self.is_reserved
        if self.state != scheduler_pb2.WORKER_STATE_READY:
            return False
        if start is Start.ALONE:
            return not self.n_running and not any(a.residence.may_run for a in self.assignments.values())
        return not (self.is_reserved or self._reserves_cells)

    def has_slot_for(self, start: Start) -> bool:
        """True if such a request may start here, were there cells."""
        return self.free_slots > 0 and self.admits(start)

    @property
    def waiting(self) -> list[Assignment]:
        """Return the assignments that wait to resume here."""
        return [a for a in self.assignments.values() if not a.is_running]

    @property
    def has_waiting(self) -> bool:
        return self._n_running < len(self.assignments)

    # Changes

    def hold(self) -> None:
        """Give it nothing until it has reported again."""
        self.is_held = True
        self._changed()

    def reserve_cells(self, *, is_on: bool) -> None:
        """Give newcomers nothing, while one that waits here lacks cells alone."""
        self._reserves_cells = is_on
        self._changed()

    def reserve(self, *, is_on: bool) -> None:
        """Keep it free of everything but suspects."""
        self.is_reserved = is_on
        self._changed()

    def set_state(self, state: scheduler_pb2.WorkerState.ValueType) -> None:
        self.state = state
        self._changed()

    def await_request(self, key: RequestKey, cells: int | None) -> None:
        """Keep a slot and cells for a request that is on its way here; None: no more."""
        if cells is None:
            self.awaited.pop(key, None)
        else:
            self.awaited[key] = cells
        self._changed()

    def set_slowness(self, model: str, slowness: float) -> None:
        self.slowness[model] = slowness
        self._changed()

    def assign(self, key: RequestKey, epoch: int, cells: int, *, is_alone: bool = False) -> Assignment:
        """Have a new request run here.

        Args:
            is_alone: nothing else may run beside it.

        Raises:
            IndexError: there is no slot for it.
        """
        return self._start(Assignment(key, epoch, None, cells), is_alone=is_alone)

    def resume(self, key: RequestKey, cells: int, *, is_alone: bool = False) -> Assignment:
        """Have a resident request run again.

        Args:
            is_alone: nothing else may come to run beside it.

        Raises:
            IndexError: there is no slot for it.
        """
        assignment = self.assignments[key]
        assignment.cells = cells
        assignment.run = epochs.after(assignment.run)
        assignment.residence = Residence.UNKNOWN
        return self._start(assignment, is_alone=is_alone)

    def adopt(self, unowned: UnownedRequest, cells: int) -> Assignment:
        """Make an unowned request the table's own: its job has come."""
        del self.unowned[unowned.key]
        assignment = Assignment(
            unowned.key,
            unowned.epoch,
            unowned.slot,
            cells,
            unowned.run,
            unowned.residence,
            is_accepted=True,
        )
        self.assignments[unowned.key] = assignment
        if assignment.is_running:
            self._n_running += 1
            self.assigned_cells += cells
        self._count_unowned()
        self._count_free()
        self._changed()
        return assignment

    def can_adopt(self, unowned: UnownedRequest) -> bool:
        """Not before its engine has reported it, nor while its slot is assigned to another request: the
        worker is about to deschedule it."""
        if unowned.residence is Residence.RUNNING:
            taken = {a.slot for a in self.assignments.values() if a.key != unowned.key}
            return unowned.slot is not None and unowned.slot < self.slots and unowned.slot not in taken
        return unowned.residence is not Residence.UNKNOWN

    def deschedule(self, key: RequestKey) -> None:
        """A request does not run any more, or is to be told so: it waits to resume."""
        assignment = self.assignments[key]
        self._stop(assignment)
        self._changed()

    def release(self, key: RequestKey) -> None:
        """A request is not resident any more. Raises KeyError if it was not."""
        self._stop(self.assignments.pop(key))
        self._changed()

    def grow(self, assignment: Assignment, cells: int) -> None:
        """A running request may come to hold this many cells."""
        if assignment.is_running and assignment.cells != cells:
            self.assigned_cells += cells - assignment.cells
            assignment.cells = cells
            self._changed()

    def admit_others(self, key: RequestKey) -> None:
        """A request need not run alone, or does not any more."""
        if self.alone == key:
            self.alone = None
            self._changed()

    def is_idle_as(self, status: scheduler_pb2.WorkerStatus) -> bool:
        """True if a heartbeat is the very one that came last, and nothing has been done here since."""
        is_same = status is self.status and status.state == self.state
        return is_same and not (self.is_held or self.assignments or self.unowned)

    def note_alive(self, now: float) -> None:
        """Take in a heartbeat that changes nothing."""
        self.last_seen_s = max(self.last_seen_s, now)
        self.was_probed = False

    def reconcile(
        self, status: scheduler_pb2.WorkerStatus, now: float, mismatch_threshold: int
    ) -> Reconciled:
        """Take a heartbeat in.

        Args:
            status: of this worker in this incarnation.
            mismatch_threshold: heartbeats in a row that must lack an accepted request before that counts: one
                may have been on its way when it was accepted.

        Returns:
            What it says. Nothing is released or descheduled here: that is for the caller, which decides
            what becomes of the jobs.
        """
        self.note_alive(now)
        self.is_held = False
        self._take_status(status)
        reports = {RequestKey(r.tenant, r.request_id): r for r in status.residents}
        found = Reconciled()
        if self.assignments:  # no other request can end here, and the list is long
            own = {key.request_id for key in self.assignments}
            ended = (e for e in status.finished if e.request_id in own)
            found.ended = [(RequestKey(e.tenant, e.request_id), e.epoch) for e in ended]
        gone = set(found.ended)
        for assignment in self.assignments.values():
            if (assignment.key, assignment.epoch) in gone:
                continue
            report = reports.get(assignment.key)
            if report is not None and report.epoch == assignment.epoch:
                found.compare(assignment, report)
            elif assignment.is_accepted:
                assignment.mismatches += 1
                if assignment.mismatches >= mismatch_threshold:
                    found.vanished.append(assignment)
        self._take_unowned(reports, now)
        found.unowned = list(self.unowned.values())
        self._count_free()
        self._changed()
        return found

    def _start(self, assignment: Assignment, *, is_alone: bool) -> Assignment:
        if not self._free:
            raise IndexError("no slot is free")
        assignment.slot = self._free.pop()
        self.assignments[assignment.key] = assignment
        self._n_running += 1
        self.assigned_cells += assignment.cells
        if is_alone and self.alone is None:
            self.alone = assignment.key
        self._changed()
        return assignment

    def _stop(self, assignment: Assignment) -> None:
        if assignment.slot is None:
            return
        self.admit_others(assignment.key)
        self._n_running -= 1
        self.assigned_cells -= assignment.cells
        slot, assignment.slot = assignment.slot, None
        if slot < self.slots:  # also where an unowned request runs: the next one there takes its place
            self._free.append(slot)

    def _changed(self) -> None:
        self._on_change(self)

    def _take_status(self, status: scheduler_pb2.WorkerStatus) -> None:
        self.state = status.state
        if not status.slots:  # loading again: as before, as far as is known
            status.slots, status.kv_cells = self.status.slots, self.status.kv_cells
        self.status = status
        # Most requests that run at once.
        self.slots: int = status.slots
        # In all; 0 until the engine is ready for the first time.
        self.kv_cells: int = status.kv_cells
        # By model name; 0 where it is not known yet.
        self.context_lengths = {card.name: card.context_length for card in status.models}
        # Of the models' files, by name.
        self.digests = {card.name: card.digest for card in status.models}
        self.pool: str = status.pool or worker_pools.DEFAULT
        self.zone: str = status.zone
        # Workers of the same one hand the state of requests to each other; empty: it has none.
        self.exchange: str = status.exchange
        self.role: Role = role_of(status)
        # Whether requests can begin with what others have computed there.
        self.shares_prefixes = status.prefix_sharing != scheduler_pb2.PREFIX_SHARING_NONE
        # Models whose answers it constrains.
        self.constraining = frozenset(card.name for card in status.models if card.can_constrain)
        # Models of which some experts are in main memory, or on another machine.
        self.far_experts = frozenset(
            card.name for card in status.models if not all(map(_is_near, card.expert_ranks))
        )
        # Digests of the adapters of each.
        self.adapters = {card.name: frozenset(a.digest for a in card.adapters) for card in status.models}

    def _take_unowned(self, reports: Reports, now: float) -> None:
        known, self.unowned = self.unowned, {}
        for key, report in reports.items():
            assignment = self.assignments.get(key)
            if assignment is None or assignment.epoch != report.epoch:
                old = known.get(key)
                residence = Residence(report.residence)
                self.unowned[key] = UnownedRequest(
                    key,
                    report.epoch,
                    report.run,
                    report.slot if residence is Residence.RUNNING else None,
                    old.since_s if old is not None and old.epoch == report.epoch else now,
                    residence,
                    reserved_cells(report.prompt_tokens, report.generated_tokens),
                )
        self._count_unowned()

    def _count_unowned(self) -> None:
        running = [u.cells for u in self.unowned.values() if u.residence.may_run]
        self._n_unowned_running, self.unowned_cells = len(running), sum(running)

    def _count_free(self) -> None:
        taken = {a.slot for a in self.assignments.values()} | {u.slot for u in self.unowned.values()}
        self._free = [slot for slot in range(self.slots - 1, -1, -1) if slot not in taken]
