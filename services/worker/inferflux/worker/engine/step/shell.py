"""Shell of an engine: resident requests and their slots, epochs, deadlines and reports.

The engines of llama.cpp, of embeddings and without a model have it in common. What they compute differs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from inferflux.common.contract.errors import DeadlineExceeded, InferFluxError, to_failed
from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2

from .clock import Clock
from .report import Report, Reported

# A deadline may be farther away than a process can wait.
_LONGEST_WAIT_S = 60.0

_PREEMPTED = scheduler_pb2.YIELD_REASON_PREEMPTED


class Resident(Reported, Protocol):
    """A request that an engine has.

    Attributes:
        slot: in which it runs; None: it waits to resume.
        run: counts how often it was scheduled to run.
    """

    slot: int | None
    run: int

    @property
    def deadline_s(self) -> float:
        """By the monotonic clock."""

    def resume(self, *, run: int, urgency_key: float, token_budget: int) -> None:
        """Go on, for `token_budget` new tokens; 0 for as many as it takes."""


R = TypeVar("R", bound=Resident)
R_contra = TypeVar("R_contra", bound=Resident, contravariant=True)


class Chunks(Protocol[R_contra]):
    """What is told of a resident: a module of functions."""

    def empty(self, resident: R_contra, /) -> tokens_pb2.TokenChunk:
        """A chunk after all that was generated."""

    def finish(
        self,
        resident: R_contra,
        chunk: tokens_pb2.TokenChunk,
        reason: generation_pb2.FinishReason.ValueType,
        now_s: float,
        /,
    ) -> str:
        """Make `chunk` the terminal one of a generation that went well; returns the outcome."""

    def close(self, resident: R_contra, chunk: tokens_pb2.TokenChunk, /) -> None:
        """Say in a terminal chunk what it ends."""

    def ended(self, resident: R_contra, outcome: str, /) -> engine_pb2.EngineFinished:
        """Return the message that tells the worker of its end."""


class Shell(ABC, Generic[R]):
    """Residents of an engine, by key and by slot, and the report of what happens to them.

    Args:
        chunks: tells of residents.
        doing: names what a deadline ends.
        clock: the system's if none is given.

    Attributes:
        residents: by key. running: those that have a slot, by slot.
    """

    def __init__(self, chunks: Chunks[R], doing: str, clock: Clock | None) -> None:
        self._chunks = chunks
        self._doing = doing
        self._clock = clock or Clock()
        self.residents: dict[str, R] = {}
        self.running: dict[int, R] = {}
        self._arrivals = 0
        self._next_deadline_s = math.inf
        self._report = Report()

    @abstractmethod
    def _new(self, item: worker_pb2.BatchItem) -> R:
        """Make a resident of a request that the worker has checked against slots, cells and vocabulary."""

    @abstractmethod
    def step(self) -> None:
        """Compute what is next of those that run."""

    @abstractmethod
    def _write_stats(self, step: engine_pb2.StepReport) -> None:
        """Write what a report says beside what happened to residents."""

    @property
    def has_news(self) -> bool:
        """True if there is something to report."""
        return self._report.has_news

    def take_report(self) -> engine_pb2.EngineReport | None:
        """Return the report of what happened since the last call; None if nothing did."""
        if not self.has_news:
            return None
        self._write_stats(self._report.step)
        return self._report.take()

    def idle_s(self) -> float | None:
        """Seconds for which nothing is to be done unless a command comes: until the next deadline, for ever
        (None), or not at all (0) while residents run."""
        if self.running:
            return 0.0
        if self._next_deadline_s == math.inf:
            return None
        return min(max(self._next_deadline_s - self._clock.monotonic_s(), 0.0), _LONGEST_WAIT_S)

    def obey(self, command: engine_pb2.EngineCommand) -> None:
        """Do what the worker says."""
        match command.WhichOneof("command"):
            case "start":
                self.start(command.start)
            case "cancel":
                cancel = command.cancel
                self.cancel(cancel.key, is_silent=cancel.is_silent, leaves_state=cancel.leaves_state)
            case "deschedule":
                self.deschedule(command.deschedule)
            case "resume":
                self.resume(command.resume)
            case "clear_cache":
                self.clear_cache(command.clear_cache)

    def start(self, item: worker_pb2.BatchItem) -> None:
        """Take a request up."""
        self._arrivals += 1
        resident = self._new(item)
        self.residents[resident.key] = resident
        self._next_deadline_s = min(self._next_deadline_s, resident.deadline_s)
        self._schedule(resident, item.slot)
        self._begin(resident, item)

    def cancel(self, key: str, *, is_silent: bool, leaves_state: bool = False) -> None:  # noqa: ARG002
        """End a request; nothing if it is not resident.

        Args:
            leaves_state: another engine of this machine goes on with it. Here it computes it again.
        """
        resident = self.residents.get(key)
        if resident is None:
            return
        if is_silent:
            self._leave(resident)
        else:
            self._finish(resident, self._chunks.empty(resident), generation_pb2.FINISH_REASON_CANCELLED)

    def deschedule(self, command: engine_pb2.EngineDeschedule) -> None:
        """End a run, and report that it is over; nothing if this epoch of the request is not resident."""
        resident = self.residents.get(command.key)
        if resident is not None and resident.epoch == command.epoch:
            resident.run = command.run
            self._deschedule(resident, _PREEMPTED)

    def resume(self, command: engine_pb2.EngineResume) -> None:
        """Run a request again; nothing if this epoch of it is not resident."""
        resident = self.residents.get(command.key)
        if resident is not None and resident.epoch == command.epoch:
            resident.resume(
                run=command.run, urgency_key=command.urgency_key, token_budget=command.token_budget
            )
            self._schedule(resident, command.slot)

    def clear_cache(self, command: engine_pb2.EngineClearCache) -> None:
        """Give cached prefixes up, and report what that freed: here there are none."""
        self._report.step.cleared.add(id=command.id, cleared=scheduler_pb2.CacheCleared())
        self._report.has_news = True

    def _begin(self, resident: R, item: worker_pb2.BatchItem) -> None:
        """A resident was taken up."""

    def _schedule(self, resident: R, slot: int) -> None:
        """Run `resident` in `slot`. The scheduler's latest assignment counts: it deschedules any other."""
        other = self.running.get(slot)
        if other is not None and other is not resident:
            self._deschedule(other, _PREEMPTED)
        if resident.slot is not None:
            del self.running[resident.slot]
        resident.slot = slot
        self.running[slot] = resident
        self._report.residence(resident)

    def _deschedule(self, resident: R, reason: scheduler_pb2.YieldReason.ValueType) -> None:
        """Take a resident's slot; what is computed of it stays where it is."""
        if resident.slot is not None:
            del self.running[resident.slot]
            resident.slot = None
        self._report.residence(resident, reason)

    def _expire(self, now_s: float) -> None:
        """End those whose deadline has passed."""
        if now_s < self._next_deadline_s:
            return
        for late in [each for each in self.residents.values() if each.deadline_s <= now_s]:
            self._fail(late, DeadlineExceeded(f"the deadline passed while {self._doing}"))
        self._next_deadline_s = min((each.deadline_s for each in self.residents.values()), default=math.inf)

    def _finish(
        self, resident: R, chunk: tokens_pb2.TokenChunk, reason: generation_pb2.FinishReason.ValueType
    ) -> None:
        """The terminal chunk of a generation that ended as it should; `chunk` may carry its last token."""
        self._end(resident, chunk, self._chunks.finish(resident, chunk, reason, self._clock.monotonic_s()))

    def _fail(self, resident: R, error: InferFluxError) -> None:
        """The terminal chunk of a generation that failed."""
        chunk = self._chunks.empty(resident)
        self._end(resident, chunk, fail(chunk, error))

    def _end(self, resident: R, chunk: tokens_pb2.TokenChunk, outcome: str) -> None:
        self._chunks.close(resident, chunk)
        self._report.emit(resident, chunk.SerializeToString())
        self._report.step.finished.append(self._chunks.ended(resident, outcome))
        self._leave(resident)

    def _leave(self, resident: R) -> None:
        del self.residents[resident.key]
        if resident.slot is not None:
            del self.running[resident.slot]
        self._report.has_news = True


def fail(chunk: tokens_pb2.TokenChunk, error: InferFluxError) -> str:
    """Make `chunk`, which may carry the last tokens, the terminal one of a generation that failed.

    Returns:
        The outcome.
    """
    chunk.failed.CopyFrom(to_failed(error))
    return error.reason.lower()
