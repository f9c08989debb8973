"""A world of workers with roles, and what each request met with in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from benchmarks.sim.traffic import Arrival
from benchmarks.sim.world import START_S, Setup, World
from benchmarks.traces.request import BLOCK_TOKENS, TraceRequest
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.v1 import scheduler_pb2

from .blocks import BlockIndex
from .links import Links, Network
from .worker import RoleWorker

_TENANT = "clients"
# A thousand workers of thirty requests: twice as long as by default.
_BEAT_S = 2.0
_PREFILL, _DECODE = scheduler_pb2.WORKER_ROLE_PREFILL, scheduler_pb2.WORKER_ROLE_DECODE
_UNIFIED = scheduler_pb2.WORKER_ROLE_UNIFIED


@dataclass(frozen=True, slots=True)
class RolesSetup(Setup):
    """Workers, of which the first `prefill` compute prompts alone, and the others answers.

    Attributes:
        prefill: 0: all workers are unified.
        network: None: no worker fetches anything from another.
    """

    prefill: int = 0
    network: Network | None = field(default_factory=Network)

    def role_of(self, worker_id: str) -> scheduler_pb2.WorkerRole.ValueType:
        if not self.prefill:
            return _UNIFIED
        return _PREFILL if int(worker_id[1:]) < self.prefill else _DECODE


@dataclass(slots=True, eq=False)
class Met:
    """What a request met with.

    Attributes:
        request: of the trace; None once that is not needed any more.
        computed: tokens that were computed before its next new one, by whichever workers.
        gaps: times between its tokens, and how many are as long.
    """

    request: TraceRequest
    arrival: Arrival
    computed: int = 0
    last_s: float = 0.0
    gaps: list[tuple[float, int]] = field(default_factory=list)

    def add(self, tokens: int, now: float, every_s: float) -> None:
        """It has this many more tokens, the last of them now."""
        begin_s = now - every_s * (tokens - 1)
        if self.last_s:
            self.gaps.append((begin_s - self.last_s, 1))
        if tokens > 1:
            self.gaps.append((every_s, tokens - 1))
        self.last_s = now

    @property
    def slow_gap_s(self) -> float:
        """Mean of the longest tenth of the gaps between its tokens so far; 0 if there are none."""
        left = most = math.ceil(sum(n for _, n in self.gaps) / 10)
        total = 0.0
        for gap_s, n in sorted(self.gaps, reverse=True):
            taken = min(n, left)
            total += gap_s * taken
            left -= taken
            if not left:
                break
        return total / most if most else 0.0


class RolesWorld(World):
    """Runs for some time, whatever is left then.

    Args:
        requests: of a trace, in order of time.
        on_second: told of each simulated second that has passed; true ends it all.
    """

    setup: RolesSetup

    def __init__(
        self,
        setup: RolesSetup,
        requests: Iterable[TraceRequest],
        *,
        on_second: Callable[[float], bool] = lambda _s: False,
    ) -> None:
        self.index = BlockIndex()
        self.ends: dict[str, RoleWorker] = {}
        self._idle: dict[str, scheduler_pb2.WorkerStatus] = {}
        self.met: dict[RequestKey, Met] = {}
        self._on_second = on_second
        self._is_over = False
        super().__init__(setup, (self._arrival(n, one) for n, one in enumerate(requests)))

    def run_for(self, seconds: float) -> RolesWorld:
        """Let it all happen, for so much simulated time."""
        self._schedule_next_arrival()
        self._events.at(self.now, self._tick)
        self._events.after(1.0, self._look_at_the_time)
        while self.now - START_S < seconds and not self._is_over and self._events.step():
            pass
        return self

    @cached_property
    def links(self) -> Links | None:
        network = self.setup.network
        return None if network is None else Links(self._events, network, self.ends.get, self._follow)

    def _look_at_the_time(self) -> None:
        self._is_over = self._on_second(self.now - START_S)
        self._events.after(1.0, self._look_at_the_time)

    def _arrival(self, number: int, request: TraceRequest) -> Arrival:
        arrival = Arrival(
            name=f"r{number}",
            tenant=_TENANT,
            priority=0,
            at_s=START_S + request.at_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            max_tokens=request.output_tokens,
        )
        self.met[RequestKey(_TENANT, arrival.name)] = Met(request, arrival)
        return arrival

    def _add_worker(self, worker_id: str) -> None:
        self.workers[worker_id] = self.ends[worker_id] = RoleWorker(
            worker_id,
            self.setup.model_of(worker_id),
            role=self.setup.role_of(worker_id),
            blocks_of=lambda key: self.met[key].request.blocks,
            index=self.index,
            links=self.links,
            on_computed=self._on_computed,
            output_of=lambda key: self.requests[key].output_tokens,
            readers=self,
        )
        self._wake_s[worker_id] = None
        # They do not come together.
        self._events.after(_BEAT_S * int(worker_id[1:]) / self.setup.workers, self._beat, worker_id)

    def _beat(self, worker_id: str) -> None:
        worker = self.ends[worker_id]
        status = self._idle.get(worker_id)
        if status is None or not worker.is_idle:  # one that says what the last one said is the same object
            status = worker.beat(self.now)
            self._follow(worker_id)
            if worker.is_idle:
                self._idle[worker_id] = status
            else:
                self._idle.pop(worker_id, None)
        self._on_heartbeat(status)
        self._events.after(_BEAT_S, self._beat, worker_id)

    def _on_computed(self, key: RequestKey, tokens: int) -> None:
        self.met[key].computed += tokens

    def _hints(self, request: scheduler_pb2.InferenceRequest) -> dict[str, int]:
        met = self.met[RequestKey(request.tenant, request.request_id)]
        found = self.index.longest(met.request.blocks)
        return {worker_id: min(n * BLOCK_TOKENS, met.request.prompt_tokens) for worker_id, n in found.items()}

    def on_tokens(
        self, key: RequestKey, epoch: int, offset: int, tokens: int, now: float, every_s: float = 0.0
    ) -> None:
        before = self.requests[key].generated
        super().on_tokens(key, epoch, offset, tokens, now)
        new = self.requests[key].generated - before
        if new:
            self.met[key].add(new, now, every_s)
