"""Events seen in a simulated fleet, kept to be judged afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.sim.traffic import Arrival
from inferflux.common.contract.partitions import WHOLE, Partition


@dataclass(slots=True)
class Ask(Arrival):
    """A request and what its reader saw.

    Attributes:
        ends: terminal chunks that the reader did not drop.
        acks: how often it was taken off the work queue.
        dispatches: batches that had it, and were accepted.
        cut_s: since when its stream stands still because its zone was lost.
        pause_s: how long it stood still for that; None if its zone was not lost while it had tokens.
        recomputed: tokens that were computed again for that.
        wrongs: what its reader must not see.
    """

    partition: Partition = WHOLE
    sequence: int = 0
    ends: int = 0
    acks: int = 0
    dispatches: int = 0
    cut_s: float | None = None
    pause_s: float | None = None
    recomputed: int = 0
    wrongs: list[str] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        """Tokens that its answer has."""
        return min(self.output_tokens, self.max_tokens)


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A batch that a worker accepted."""

    sent_s: float
    worker_id: str
    incarnation: str
    model: str
    partition: Partition
    term: int
    scheduler: str


@dataclass(slots=True)
class Lead:
    """The time in which one scheduler led a partition.

    Attributes:
        known_s: when it has all jobs of before; None if it never had.
        sent_s: when its first batch went out; None if none did.
        end: why it leads no more.
    """

    partition: Partition
    term: int
    scheduler: str
    from_s: float
    known_s: float | None = None
    sent_s: float | None = None
    to_s: float | None = None
    end: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """Schedulers came or went: the part of the models that another one is to lead."""

    what: str
    schedulers: int
    part: float


@dataclass(frozen=True, slots=True)
class Served:
    """Service of tenants in the second that ended `at_s`, in prompt tokens and generated ones."""

    at_s: float
    tokens: Mapping[str, float]


@dataclass(slots=True)
class History:
    """`waiting` are requests that wait at the end of each second, `is_stuck` why they did not all end."""

    asks: list[Ask] = field(default_factory=list)
    dispatches: list[Dispatched] = field(default_factory=list)
    leads: list[Lead] = field(default_factory=list)
    moves: list[Moved] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    waiting: list[tuple[float, int]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    is_stuck: str = ""
