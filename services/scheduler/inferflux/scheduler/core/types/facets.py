"""Facets of a job: fields that few decisions read, each changed by its own methods alone (pure).

Times are seconds since the Unix epoch, unless they are how long something took.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from inferflux.v1 import tokens_pb2

TerminalEvent = tokens_pb2.Finished | tokens_pb2.Failed


class RequeueReason(Enum):
    """Reason why a worker does not have a request any more, or may not have it."""

    WORKER_DEAD = "worker_dead"
    WORKER_RESTARTED = "worker_restarted"
    WORKER_LEFT = "worker_left"
    ENGINE_DIED = "engine_died"
    NO_ANSWER = "no_answer"
    VANISHED = "vanished"
    # It was to resume where it is not any more.
    NOT_RESIDENT = "not_resident"
    # No progress for too long.
    STUCK = "stuck"
    # Another worker is to go on with it, sooner.
    MOVED = "moved"

    @property
    def is_death(self) -> bool:
        """True if the process that had it is dead."""
        deaths = (RequeueReason.WORKER_DEAD, RequeueReason.WORKER_RESTARTED, RequeueReason.ENGINE_DIED)
        return self in deaths

    @property
    def leaves_state(self) -> bool:
        """True if the process that had it may leave what it has computed to others."""
        return self.is_death or self in (RequeueReason.WORKER_LEFT, RequeueReason.MOVED)

    @property
    def counts(self) -> bool:
        """True if it is one of the limited retries: what happens in good order costs none. Deaths of engines
        are limited by `suspects`."""
        uncounted = (
            RequeueReason.WORKER_LEFT,
            RequeueReason.MOVED,
            RequeueReason.NOT_RESIDENT,
            RequeueReason.ENGINE_DIED,
        )
        return self not in uncounted


@dataclass(slots=True, eq=False)
class Wait:
    """Wait in the queue."""

    queued_s: float = 0.0
    # In which it was last told its position.
    announced_epoch: int = 0
    # The worker that it waits for, since that has its prefix; until when it may, 0 if it has not. See
    # `prefix_waits`.
    holder_id: str | None = None
    until_s: float = 0.0

    def begin(self, now: float) -> None:
        self.queued_s = now

    def announce(self, epoch: int) -> None:
        self.announced_epoch = epoch

    def allow(self, until_s: float) -> None:
        """Let it wait for a worker that has its prefix."""
        self.until_s = until_s

    def wait_for(self, holder_id: str | None) -> None:
        """Have it wait for this worker; None: for any."""
        self.holder_id = holder_id


@dataclass(frozen=True, slots=True)
class Retries:
    """Dispatches that came to nothing. They are rare: each makes a new value, and most jobs share one."""

    # Those that are limited, since it was last cleared of suspicion.
    counted: int = 0
    refusals: int = 0
    # Engines, and whole workers, that died while it ran there.
    engine_deaths: int = 0
    worker_deaths: int = 0
    # Where it was lost: any other worker is tried before.
    avoids: str | None = None
    # The exchange in which the process that had it last may have left its state; empty: in none.
    left_in: str = ""

    def after_loss(self, worker_id: str | None, reason: RequeueReason, left_in: str = "") -> Retries:
        """A worker has it no more."""
        counted = self.counted + reason.counts
        return replace(self, counted=counted, avoids=worker_id, left_in=left_in)

    def seeks_state(self, exchange: str) -> bool:
        """True if a worker with this exchange may find what the one before had computed."""
        return bool(exchange) and exchange == self.left_in

    def after_refusal(self) -> Retries:
        return replace(self, refusals=self.refusals + 1)

    def after_engine_death(self) -> Retries:
        return replace(self, engine_deaths=self.engine_deaths + 1)

    def after_worker_death(self) -> Retries:
        return replace(self, worker_deaths=self.worker_deaths + 1)

    def cleared(self) -> Retries:
        return replace(self, counted=0)


NO_RETRIES = Retries()


@dataclass(frozen=True, slots=True)
class Replay:
    """Epochs and tokens of it that readers may have, and the reading of them from the token stream. A change
    makes a new value: most jobs are never read, and share one."""

    # It was queued before this scheduler started: it may run, or have run, in an epoch unknown here.
    is_inherited: bool = False
    # An earlier scheduler's dispatch, taken over: its epoch may not be the latest that readers have seen.
    is_adopted: bool = False
    # It may have emitted something.
    is_due: bool = False
    # Tells the answer to the latest read from answers to older ones.
    read_id: int = 0
    # Set while READING to end the job rather than to dispatch it.
    terminal_event: TerminalEvent | None = None
    # The highest epoch that readers are known to have seen, or may see first.
    readers_epoch: int = 1

    def begun(self) -> Replay:
        """A read begins: earlier ones do not count."""
        return replace(self, read_id=self.read_id + 1)

    def ended(self, seen_epoch: int) -> Replay:
        """Readers have seen this epoch, and what was emitted is known."""
        epoch = max(self.readers_epoch, seen_epoch)
        return replace(self, readers_epoch=epoch, is_due=False, is_inherited=False)

    def due(self, *, is_due: bool) -> Replay:
        return replace(self, is_due=is_due)

    def finishing_with(self, terminal_event: TerminalEvent) -> Replay:
        return replace(self, terminal_event=terminal_event)

    def adopted(self) -> Replay:
        """A worker has it: no read is waited for."""
        return replace(
            self, read_id=self.read_id + 1, terminal_event=None, is_inherited=False, is_adopted=True
        )

    def in_next_epoch(self) -> Replay:
        """Chunks of the last epoch must be read."""
        is_inherited = self.is_inherited or self.is_adopted
        return replace(self, is_due=True, is_inherited=is_inherited, is_adopted=False)


NO_REPLAY = Replay()
INHERITED = Replay(is_inherited=True, is_due=True)


@dataclass(slots=True, eq=False)
class Stay:
    """Stay on a worker: its runs there, what the worker reports, and the waits to resume."""

    dispatched_s: float = 0.0
    # When it last made progress, or was scheduled to run.
    progressed_s: float = 0.0
    # Since when it waits to resume, and how long it has before, in all.
    parked_s: float = 0.0
    waited_s: float = 0.0
    # On its way to where it is resident already.
    is_resuming: bool = False
    # As the worker reports it: tokens generated, prompt tokens computed.
    seen_tokens: int = 0
    seen_computed: int = 0

    def begin(self) -> None:
        """It is bound to a worker that does not have it."""
        self.waited_s = 0.0

    def dispatch(self, now: float) -> None:
        self.dispatched_s = now

    def adopt(self, now: float) -> None:
        """A worker was found to have it, dispatched by an earlier scheduler."""
        self.dispatched_s = self.dispatched_s or now

    def run(self, now: float) -> None:
        self.is_resuming = False
        self.progressed_s = now

    def park(self, now: float) -> None:
        self.parked_s = now

    def stop_resuming(self) -> None:
        self.is_resuming = False

    def resume(self, now: float) -> float:
        """It is to run again. Returns how long it has waited for that, in seconds."""
        waited_s = now - self.parked_s
        self.is_resuming = True
        self.waited_s += waited_s
        self.parked_s = now  # should it have to wait on
        return waited_s

    def report_computed(self, computed: int, now: float) -> None:
        self.progressed_s = now
        self.seen_computed = computed

    def report_tokens(self, generated: int) -> None:
        self.seen_tokens = max(self.seen_tokens, generated)

    def end(self) -> None:
        """No worker has it any more."""
        self.is_resuming = False
        self.seen_tokens = self.seen_computed = 0


@dataclass(slots=True, eq=False)
class Charged:
    """Tokens that its tenant has been charged."""

    # Less than the prompt when a worker was thought to have some of it cached; None before it had a place.
    prompt: int | None = None
    generated: int = 0

    def charge_prompt(self, tokens: int) -> None:
        self.prompt = tokens

    def charge_generated(self, known: int) -> int:
        """Charge what is generated, as far as is known. Returns how much that is beyond what was charged."""
        owed = max(0, known - self.generated)
        self.generated += owed
        return owed
