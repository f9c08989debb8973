"""Decisions of the core, which the I/O edge carries out in this order (pure).

Actions from `CountUnread` on change nothing: they are counted, logged and traced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from inferflux.v1 import host_pb2, scheduler_pb2, tokens_pb2, worker_pb2

from .jobs import Attempt, RequestKey
from .moves import Move

V = TypeVar("V", bound=int)


def reason_of(name: Callable[[V], str], value: V, *, prefix: str) -> str:
    """Name of an enum's value in an action: `unknown` if a worker of a later version said it."""
    try:
        return name(value).removeprefix(prefix).lower()
    except ValueError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Ask a worker to take a batch; the core must be told the answer, or that there was none."""

    worker_id: str
    batch: worker_pb2.RequestBatch
    model: str
    # What each item waited, in seconds; only those dispatched for the first time.
    waits_s: tuple[float, ...]
    # The handles of its items, which carry the clients' trace context.
    handles: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """Find out whether a silent worker is there; the core must be told if it does not answer."""

    worker_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class ReadReplay:
    """Find out what readers of a request have been given; the core must be told, with `read_id`.

    A request that is to go on is looked up in the prefix index as well, with the tokens that were generated.
    """

    key: RequestKey
    read_id: int
    # None: it ends, or follows its state to a worker.
    request: scheduler_pb2.InferenceRequest | None = None


@dataclass(frozen=True, slots=True)
class PublishChunk:
    key: RequestKey
    chunk: tokens_pb2.TokenChunk


@dataclass(frozen=True, slots=True)
class SendCommand:
    worker_id: str
    command: worker_pb2.WorkerCommand


@dataclass(frozen=True, slots=True)
class TellCancel:
    """Publish a cancel notice: the worker may not have had the request when an earlier one came, or there was
    none."""

    key: RequestKey
    attempt_id: str


@dataclass(frozen=True, slots=True)
class Ack:
    """The job is done for: take it off the work queue."""

    key: RequestKey
    handle: object
    model: str
    # stop, length, cancelled, or the reason of a failure.
    outcome: str


@dataclass(frozen=True, slots=True)
class Hold:
    """The job is still waiting or running: its acknowledgement may take longer."""

    handle: object


@dataclass(frozen=True, slots=True)
class CountUnread:
    """A request is cancelled because it has no reader."""

    key: RequestKey
    handle: object


@dataclass(frozen=True, slots=True)
class CountRetry:
    """A request goes back to the queue because of `cause`."""

    key: RequestKey
    cause: str
    handle: object = None


@dataclass(frozen=True, slots=True)
class CountRefusal:
    """A worker refused a request."""

    key: RequestKey
    handle: object
    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Yielded:
    """A request stopped running."""

    key: RequestKey
    handle: object
    worker_id: str
    # timeslice, memory or preempted, by the worker; unreported when only heartbeats show it.
    reason: str


@dataclass(frozen=True, slots=True)
class Preempted:
    """A request gives way to `by`."""

    key: RequestKey
    handle: object
    worker_id: str
    by: RequestKey


@dataclass(frozen=True, slots=True)
class Resumed:
    """A request resumes where it is resident."""

    key: RequestKey
    handle: object
    worker_id: str
    # How long it waited, in seconds.
    waited_s: float
    # parked or swapped.
    residence: str


@dataclass(frozen=True, slots=True)
class PrefixWaited:
    """A request has its place that had waited for the worker with its prefix.

    Attributes:
        is_there: whether that worker has it now.
    """

    key: RequestKey
    handle: object
    is_there: bool


@dataclass(frozen=True, slots=True)
class CountSplit:
    """A request has its place, and could have been split: see `split.Decision`."""

    decision: str


@dataclass(frozen=True, slots=True)
class Follows:
    """A request leaves its worker, and follows its state to another."""

    key: RequestKey
    handle: object
    move: Move


@dataclass(frozen=True, slots=True)
class MoveEnded:
    """A request runs on the other worker, or does not move any more."""

    key: RequestKey
    handle: object
    move: Move


@dataclass(frozen=True, slots=True)
class CountTokens:
    """Tokens were generated."""

    priority: int
    tokens: int


@dataclass(frozen=True, slots=True)
class CountFirstToken:
    """A request had its first token this many seconds after it was enqueued."""

    model: str
    priority: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CommandHost:
    """A host is to load a model, or to unload it. `on_host_answer` is told what it answers.

    Attributes:
        kind: load or unload.
        why: wanted; room or idle.
    """

    host_id: str
    model: str
    command: host_pb2.HostCommand
    kind: str
    why: str


@dataclass(frozen=True, slots=True)
class EndLost:
    """Gateways read this, and its job does not come: to be ended if the work queue has no more to give."""

    attempt: Attempt


Action = (
    Dispatch
    | CommandHost
    | Probe
    | ReadReplay
    | PublishChunk
    | SendCommand
    | TellCancel
    | Ack
    | Hold
    | CountUnread
    | EndLost
    | CountRetry
    | CountRefusal
    | Yielded
    | Preempted
    | Resumed
    | PrefixWaited
    | CountSplit
    | Follows
    | MoveEnded
    | CountTokens
    | CountFirstToken
)
