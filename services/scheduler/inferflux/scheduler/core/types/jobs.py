"""The states of one job (pure).

    NEW ──> QUEUED ──> READING ──> DISPATCHING ──> RUNNING ──> FINISHED
              ^           │         ^   │            │  │
              │           │         │   └── PARKED <─┘  │     descheduled: resident, and waits to resume
              └───────────┴─────────┴───────┴───────────┘     refused, discarded or lost: the queue again

PARKED requests wait in a list of their worker. They resume there, by a dispatch that carries no prompt, in
the same epoch. Only when another worker is to go on with one is it dropped there and queued.

READING is passed through only where the job may have run before: what it has emitted is read from the
token stream before it is dispatched, or ended, again. Whenever a worker may still have it, it goes on with a
higher epoch, so that nothing the old worker still says counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from inferflux.common.contract import epochs
from inferflux.v1 import scheduler_pb2, tokens_pb2

if TYPE_CHECKING:
    from .readers import Readers

# More than a request can get through, at once and in the long run.
_EPOCHS_AT_ONCE = 4
_EPOCHS_PER_S = 10

TerminalEvent = tokens_pb2.Finished | tokens_pb2.Failed


class RequestKey(NamedTuple):
    """Request ids are chosen by clients: unique within a tenant only."""

    tenant: str
    request_id: str


class Demand(NamedTuple):
    """Pools and model file that a request's workers must have.

    Attributes:
        pools: on workers of these; empty: on all.
        digest: on workers that have the model from this file; "": on all.
    """

    pools: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One submission of a request id, which may be used again; without an `attempt_id`, the present one."""

    key: RequestKey
    attempt_id: str = ""

    def is_of(self, job: Job) -> bool:
        return self.attempt_id in ("", job.attempt_id)


class JobState(Enum):
    NEW = auto()
    QUEUED = auto()
    READING = auto()
    DISPATCHING = auto()
    RUNNING = auto()
    PARKED = auto()
    FINISHED = auto()


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
class Job:
    """A request the scheduler is responsible for until its terminal event.

    `handle` is what acknowledges it, opaque here. `arrival` counts jobs as they came, `sequence` is the
    job's place in the work queue. Times are seconds since the Unix epoch.
    """

    key: RequestKey
    request: scheduler_pb2.InferenceRequest
    handle: object
    sequence: int
    arrival: int
    enqueued_s: float
    deadline_s: float | None
    epoch: int
    # It was queued before this scheduler started: it may run, or have run, in an epoch unknown here.
    is_inherited: bool = False
    # An earlier scheduler's dispatch, taken over: its epoch may not be the latest that readers have seen.
    is_adopted: bool = False
    # It may have emitted something.
    needs_replay: bool = False
    state: JobState = JobState.NEW
    queued_s: float = 0.0
    # From when its waiting counts: enqueued, or later where it has run a timeslice.
    since_s: float = 0.0
    dispatched_s: float = 0.0
    # When it last made progress, or was scheduled to run.
    progressed_s: float = 0.0
    # Since when it waits to resume on its worker, and how long it has before, in all.
    parked_s: float = 0.0
    waited_there_s: float = 0.0
    # The worker that has it, or is about to.
    worker_id: str | None = None
    # Where it was lost: any other worker is tried before.
    avoids: str | None = None
    # The process that had it last is dead.
    was_lost: bool = False
    # On its way to where it is resident already.
    is_resuming: bool = False
    # Set while READING to end the job rather than to dispatch it.
    terminal_event: TerminalEvent | None = None
    # Tells the answer to the latest read from answers to older ones.
    read_id: int = 0
    announced_epoch: int = 0
    # The highest epoch that readers are known to have seen, or may see first.
    readers_epoch: int = 1
    is_cancelled: bool = False
    retries: int = 0
    refusals: int = 0
    # Engines, and whole workers, that died while it ran there.
    engine_deaths: int = 0
    worker_deaths: int = 0
    # It may have killed its engine: it runs alone until it is cleared. See `suspects`.
    is_suspect: bool = False
    # Counted among its tenant's requests that have a place on a worker.
    has_place: bool = False
    # By its policy, when it was given its place; lower is more urgent.
    urgency_key: float = 0.0
    # Its place among those that wait: the policy's urgency key then, and arrival.
    order: tuple[float, int] = (0.0, 0)
    # As the worker reports it: tokens generated, prompt tokens computed.
    seen_tokens: int = 0
    seen_computed: int = 0
    # What its tenant has been charged.
    charged_tokens: int = 0
    is_prompt_charged: bool = False
    # Less than the prompt when a worker was thought to have some of it cached.
    charged_prompt_tokens: int = 0
    # None for a job whose readers no gateway reports.
    readers: Readers | None = None
    # By worker id: prompt tokens that it has cached, as the prefix index said when the job came. Hints: a
    # worker may have evicted them since.
    cached_on: Mapping[str, int] = field(default_factory=dict)
    # The worker that it waited for, since that has its prefix; until when it may, 0 if it has not. See
    # `prefix_waits`.
    waited_for: str | None = None
    waits_until_s: float = 0.0

    @property
    def attempt_id(self) -> str:
        return self.request.attempt_id

    @property
    def model(self) -> str:
        return self.request.model

    @property
    def demand(self) -> Demand:
        """Demand that the request makes on its workers."""
        return Demand(tuple(self.request.worker_pools), self.request.model_digest)

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def max_tokens(self) -> int:
        """Most new tokens, those of earlier epochs included; 0 when the request sets none."""
        return self.request.params.max_tokens

    @property
    def longest_text(self) -> int:
        """Tokens of the longest text that it embeds; 0 of one that generates."""
        return max(self.request.embedding.text_tokens, default=0)

    @property
    def is_constrained(self) -> bool:
        """True if its answer has to have a certain form."""
        return self.request.params.HasField("constraint")

    @property
    def adapter_digest(self) -> str:
        """Digest of the model's adapter that answers; empty: none."""
        return self.request.adapter_digest

    @property
    def worker_pools(self) -> Sequence[str]:
        """Pools of the workers that it may run on; empty: every worker."""
        return self.request.worker_pools

    @property
    def zone(self) -> str:
        """Zone of its readers; empty: not known."""
        return self.request.zone

    def is_far_from(self, zone: str) -> bool:
        """True if its readers are in another zone; what is not known is near."""
        return bool(self.zone and zone and zone != self.zone)

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def generated_tokens(self) -> int:
        """Number of generated tokens that go along when it is dispatched anew."""
        return len(self.request.generated_token_ids)

    @property
    def known_tokens(self) -> int:
        """Generated, as far as is known."""
        return max(self.generated_tokens, self.seen_tokens)

    @property
    def most_cached(self) -> int:
        """Prompt tokens that some worker has cached."""
        return max(self.cached_on.values(), default=0)

    def to_prefill_on(self, worker_id: str | None) -> int:
        """Tokens that a worker would compute before the next new one; the last of them is always computed."""
        cached = self.cached_on.get(worker_id or "", 0)
        return max(1, self.prompt_tokens + self.generated_tokens - cached)

    @property
    def is_queued(self) -> bool:
        """True if it is in the queue: no worker has it."""
        return self.state is JobState.QUEUED

    @property
    def has_run(self) -> bool:
        return self.dispatched_s > 0

    def is_expired(self, now: float) -> bool:
        return self.deadline_s is not None and now >= self.deadline_s

    def is_at(self, worker_id: str, epoch: int) -> bool:
        """True if this epoch of it is at, or on its way to, this worker."""
        return self.worker_id == worker_id and self.epoch == epoch

    def next_epoch(self) -> None:
        """Begin the next epoch: work that any worker still does for it no longer counts; the chunks it
        emitted must be read."""
        self.epoch = epochs.after(self.epoch)
        self.is_resuming = False
        self.seen_tokens = self.seen_computed = 0
        self.needs_replay = True
        self.is_inherited |= self.is_adopted
        self.is_adopted = False

    def continue_from(self, token_ids: list[int], seen_epoch: int, now: float) -> None:
        """Take over what readers have been given so far.

        The epoch goes past every one seen. An earlier scheduler's epochs may not be seen (the replay buffer
        may have been lost as well): past those it goes by the request's age, which no retrying keeps up with.
        """
        if self.is_inherited:
            passed = int(max(0.0, now - self.enqueued_s) * _EPOCHS_PER_S)
            self.epoch = max(epochs.after(self.epoch), min(_EPOCHS_AT_ONCE + passed, epochs.MAX_EPOCH))
        self.epoch = max(self.epoch, epochs.after(seen_epoch))
        self.readers_epoch = max(self.readers_epoch, seen_epoch)
        self.needs_replay = self.is_inherited = False
        del self.request.generated_token_ids[:]
        self.request.generated_token_ids.extend(token_ids)
