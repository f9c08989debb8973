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
from inferflux.v1 import scheduler_pb2

from .facets import NO_REPLAY, NO_RETRIES, Charged, Replay, Retries, Stay, Wait
from .moves import Move

if TYPE_CHECKING:
    from .readers import Readers

# More than a request can get through, at once and in the long run.
_EPOCHS_AT_ONCE = 4
_EPOCHS_PER_S = 10


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


@dataclass(slots=True, eq=False)
class Job:
    """A request the scheduler is responsible for until its terminal event.

    `handle` is what acknowledges it, opaque here. `arrival` counts jobs as they came, `sequence` is the
    job's place in the work queue. Times are seconds since the Unix epoch. The fields that most decisions
    read are its own; the others are in `facets`.
    """

    key: RequestKey
    request: scheduler_pb2.InferenceRequest
    handle: object
    sequence: int
    arrival: int
    enqueued_s: float
    deadline_s: float | None
    epoch: int
    state: JobState = JobState.NEW
    # From when its waiting counts: enqueued, or later where it has run a timeslice.
    since_s: float = 0.0
    # The worker that has it, or is about to.
    worker_id: str | None = None
    is_cancelled: bool = False
    # It may have killed its engine: it runs alone until it is cleared. See `suspects`.
    is_suspect: bool = False
    # By its policy, when it was given its place; lower is more urgent.
    urgency_key: float = 0.0
    # Its place among those that wait: the policy's urgency key then, and arrival.
    order: tuple[float, int] = (0.0, 0)
    # By worker id: prompt tokens that it has cached, as the prefix index said when the job came. Hints: a
    # worker may have evicted them since.
    cached_on: Mapping[str, int] = field(default_factory=dict)
    wait: Wait = field(default_factory=Wait)
    stay: Stay = field(default_factory=Stay)
    retries: Retries = NO_RETRIES
    replay: Replay = NO_REPLAY
    charged: Charged = field(default_factory=Charged)
    # It is to go on elsewhere, and its state is on the way there; None: it stays.
    move: Move | None = None
    # None for a job whose readers no gateway reports.
    readers: Readers | None = None

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
        return max(self.generated_tokens, self.stay.seen_tokens)

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
    def is_split(self) -> bool:
        """True if its worker has it for its prompt alone, and another goes on with it then."""
        return self.move is not None and self.move.is_split and not self.move.is_following

    def follows_to(self, worker_id: str | None) -> bool:
        """True if it follows its state to this worker."""
        return self.move is not None and self.move.is_following and self.move.to_id == worker_id

    @property
    def has_run(self) -> bool:
        return self.stay.dispatched_s > 0

    def is_expired(self, now: float) -> bool:
        return self.deadline_s is not None and now >= self.deadline_s

    def is_at(self, worker_id: str, epoch: int) -> bool:
        """True if this epoch of it is at, or on its way to, this worker."""
        return self.worker_id == worker_id and self.epoch == epoch

    def next_epoch(self) -> None:
        """Begin the next epoch: work that any worker still does for it no longer counts; the chunks it
        emitted must be read."""
        self.epoch = epochs.after(self.epoch)
        self.stay.end()
        self.replay = self.replay.in_next_epoch()

    def continue_from(self, token_ids: list[int], seen_epoch: int, now: float) -> None:
        """Take over what readers have been given so far.

        The epoch goes past every one seen. An earlier scheduler's epochs may not be seen (the replay buffer
        may have been lost as well): past those it goes by the request's age, which no retrying keeps up with.
        """
        if self.replay.is_inherited:
            passed = int(max(0.0, now - self.enqueued_s) * _EPOCHS_PER_S)
            self.epoch = max(epochs.after(self.epoch), min(_EPOCHS_AT_ONCE + passed, epochs.MAX_EPOCH))
        self.epoch = max(self.epoch, epochs.after(seen_epoch))
        self.replay = self.replay.ended(seen_epoch)
        del self.request.generated_token_ids[:]
        self.request.generated_token_ids.extend(token_ids)
