"""The network between modelled workers, over which KV state goes in pieces.

Each worker has one link of equal rate for what it sends, and one for what it is sent. Pieces go one after the
other, as they come, so that transfers of one worker share its link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from benchmarks.sim.events import Events
from inferflux.scheduler.core.types.jobs import RequestKey

# Tokens of a piece: fewer only at the end of what there is.
LEAST, MOST = 256, 2048
# A transfer has caught up when no more tokens than these are missing.
REST = 64
# A source that makes no steps is looked at again after this.
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Network:
    """What links can do, and what there is to send."""

    bytes_per_s: float = 12.5e9
    latency_s: float = 0.001
    bytes_per_token: int = 327_680


class Export(NamedTuple):
    """State of a request or a prefix that a worker could send now: of its first `tokens` tokens.

    Attributes:
        is_ahead: its prompt is computed: no more than a token a step comes.
        is_all: no more comes.
    """

    tokens: int
    is_ahead: bool
    is_all: bool


@dataclass(slots=True, eq=False)
class Fetch:
    """State on its way to a worker.

    Attributes:
        epoch: of the request at the source; 0: a prefix of its prompt.
        here: its first tokens whose state is at the worker, those that were there before among them.
        is_ordered: the scheduler is to be told once it has caught up, or will not come.
        error: why no more comes; empty: it goes on, or all is here.
        rate: of the latest piece, in bytes per second, its wait for the link included.
    """

    key: RequestKey
    epoch: int
    source_id: str
    incarnation: str
    here: int
    progressed_s: float
    is_ordered: bool = False
    has_caught_up: bool = False
    is_over: bool = False
    error: str = ""
    n_bytes: int = 0
    rate: float = 0.0


class End(Protocol):
    """A worker, as a link sees it."""

    worker_id: str
    incarnation: str

    @property
    def step_end_s(self) -> float | None: ...
    def look(self, now: float) -> None: ...
    def export(self, key: RequestKey, epoch: int) -> Export | None: ...
    def on_piece(self, fetch: Fetch) -> None: ...
    def on_fetch_over(self, fetch: Fetch, now: float) -> None: ...


@dataclass(slots=True)
class Links:
    """Carries what workers fetch.

    Args:
        end_of: the worker of this name, if it lives.
        follow: called after anything is done to a worker.
    """

    events: Events
    network: Network
    end_of: Callable[[str], End | None]
    follow: Callable[[str], None]
    # When the link of a worker is free, to send and to be sent.
    _sends_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _takes_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    # Fetches that wait for their source to go on, by its name.
    _idle: dict[tuple[str, RequestKey], list[tuple[End, Fetch]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def begin(self, taker: End, fetch: Fetch, limit_s: float) -> None:
        """Have a worker fetch state, until that is given up."""
        self.events.after(self.network.latency_s, self._go_on, taker, fetch)
        self.events.after(limit_s, self.give_up, taker, fetch, "timeout")

    def give_up(self, taker: End, fetch: Fetch, why: str) -> None:
        """No more of it is wanted; what is here stays."""
        if not fetch.is_over:
            self._end(taker, fetch, why)

    def touch(self, source_id: str, key: RequestKey) -> None:
        """A request has left a worker: what is fetched of it goes on, or ends, at once."""
        for taker, fetch in self._idle.pop((source_id, key), ()):
            self.events.after(0.0, self._go_on, taker, fetch)

    def _go_on(self, taker: End, fetch: Fetch) -> None:
        """Send the next piece, or wait for one."""
        if fetch.is_over:
            return
        source, now = self.end_of(fetch.source_id), self.events.now
        if source is None or source.incarnation != fetch.incarnation:
            self._end(taker, fetch, "source gone")
            return
        source.look(now)
        self.follow(source.worker_id)
        export = source.export(fetch.key, fetch.epoch)
        if export is None:
            self._end(taker, fetch, "no state")
            return
        missing = export.tokens - fetch.here
        if missing <= REST and (export.is_ahead or export.is_all):
            fetch.has_caught_up = True
        is_end = export.is_all or (export.is_ahead and not fetch.has_caught_up)
        if missing >= LEAST or (missing > 0 and is_end):
            self._send(taker, fetch, min(missing, MOST))
        elif export.is_all:
            self._end(taker, fetch, "")
        else:
            if fetch.has_caught_up:
                taker.on_piece(fetch)
                self.follow(taker.worker_id)
            self._idle[fetch.source_id, fetch.key].append((taker, fetch))
            if not export.is_ahead:
                due_s = source.step_end_s or now + _LOOK_S
                self.events.at(due_s, self.touch, source.worker_id, fetch.key)

    def _send(self, taker: End, fetch: Fetch, tokens: int) -> None:
        now, n_bytes = self.events.now, tokens * self.network.bytes_per_token
        begin_s = max(now, self._sends_s[fetch.source_id], self._takes_s[taker.worker_id])
        end_s = begin_s + n_bytes / self.network.bytes_per_s
        self._sends_s[fetch.source_id] = self._takes_s[taker.worker_id] = end_s
        arrives_s = end_s + self.network.latency_s
        self.events.at(arrives_s, self._arrive, taker, fetch, tokens, n_bytes / (arrives_s - now))

    def _arrive(self, taker: End, fetch: Fetch, tokens: int, rate: float) -> None:
        if fetch.is_over:
            return
        fetch.here += tokens
        fetch.n_bytes += tokens * self.network.bytes_per_token
        fetch.rate, fetch.progressed_s = rate, self.events.now
        taker.on_piece(fetch)
        self.follow(taker.worker_id)
        self._go_on(taker, fetch)

    def _end(self, taker: End, fetch: Fetch, error: str) -> None:
        fetch.is_over, fetch.error = True, error
        taker.on_fetch_over(fetch, self.events.now)
        self.follow(taker.worker_id)
