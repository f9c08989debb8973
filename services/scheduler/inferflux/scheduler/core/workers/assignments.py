"""Requests that a worker was given, and its reports of them (pure).

Each run of a request has a number. A worker ignores messages of earlier runs, and its reports name the run
they are of. So table and worker agree on what a report says, whatever was lost or came late.

What a worker has that the table has not assigned to it (from before a restart of the scheduler, or discarded
while the worker was out of reach) is an unowned request. It takes its slot and its cells until the worker
does not report it any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.v1 import scheduler_pb2


class Residence(Enum):
    """Place of a resident request, as its worker reports it."""

    # The worker has it, and its engine has not reported it yet.
    UNKNOWN = scheduler_pb2.RESIDENCE_UNSPECIFIED
    RUNNING = scheduler_pb2.RESIDENCE_RUNNING
    # In the KV cache, waiting to resume.
    PARKED = scheduler_pb2.RESIDENCE_PARKED
    # In host memory, or to be computed again.
    SWAPPED = scheduler_pb2.RESIDENCE_SWAPPED

    @property
    def may_run(self) -> bool:
        return self in (Residence.UNKNOWN, Residence.RUNNING)


@dataclass(slots=True)
class Assignment:
    """A request that a worker was given, and what the worker reports of it."""

    key: RequestKey
    epoch: int
    # Its place to run; None while it waits to resume.
    slot: int | None
    # KV cells that it may come to hold soon.
    cells: int
    # Counts its runs here: the first is 0.
    run: int = 0
    # As reported of this run; it may run until the worker reports that it stopped.
    residence: Residence = Residence.UNKNOWN
    is_accepted: bool = False
    # Heartbeats in a row, since its acceptance, that did not list it.
    mismatches: int = 0

    @property
    def is_running(self) -> bool:
        return self.slot is not None

    @property
    def may_compute(self) -> bool:
        """True if the engine may be at work for it."""
        return self.is_running or self.residence.may_run

    def report(self, run: int, residence: Residence) -> bool:
        """Take in what the worker says of a run. Returns whether that run has stopped, and had not before.

        A run that has stopped never goes on: what says otherwise is from before.
        """
        if run < self.run or residence is Residence.UNKNOWN:
            return False
        if run > self.run:  # an earlier leader started it
            self.run, self.residence = run, Residence.UNKNOWN
        if residence is Residence.RUNNING:
            if self.residence is Residence.UNKNOWN:
                self.residence = residence
            return False
        self.residence = residence
        return self.is_running


@dataclass(frozen=True, slots=True)
class UnownedRequest:
    """A request that a worker has and the table has not assigned, and since when that is known."""

    key: RequestKey
    epoch: int
    run: int
    slot: int | None
    since_s: float
    residence: Residence = Residence.RUNNING
    cells: int = 0


@dataclass(slots=True)
class Reconciled:
    """News of a heartbeat, beyond what the table knew."""

    # Known to be there, though the worker's answer to the batch may not have come yet.
    confirmed: list[Assignment] = field(default_factory=list)
    ended: list[tuple[RequestKey, int]] = field(default_factory=list)
    # Accepted, but neither there nor ended any more.
    vanished: list[Assignment] = field(default_factory=list)
    # Have stopped, although the table says that they run.
    stopped: list[Assignment] = field(default_factory=list)
    # Are to wait, and may still run: the worker has not followed.
    not_stopped: list[Assignment] = field(default_factory=list)
    unowned: list[UnownedRequest] = field(default_factory=list)

    def compare(self, assignment: Assignment, report: scheduler_pb2.ResidentRequest) -> None:
        """Take in what a heartbeat says of a request that the table has assigned."""
        assignment.mismatches, assignment.is_accepted = 0, True
        if report.run >= assignment.run:
            self.confirmed.append(assignment)
        if assignment.report(report.run, Residence(report.residence)):
            self.stopped.append(assignment)
        elif not assignment.is_running and assignment.residence.may_run:
            self.not_stopped.append(assignment)
