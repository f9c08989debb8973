"""A simulated world: arrivals, workers and a network of constant delay around the scheduler's real core."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from inferflux.common.contract.callers.cache_scope import cache_scope_of
from inferflux.common.contract.requests.priority import AGING_S
from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.order.queue_policies import PolicyName
from inferflux.scheduler.core.order.running import ORDINARY_SHARE
from inferflux.scheduler.core.scheduler import SchedulerCore
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.scheduler.core.types.limits import Limits
from inferflux.scheduler.core.types.replayed import ReplayedTokens, outcome_of
from inferflux.v1 import scheduler_pb2, worker_pb2

from .events import Events
from .figures import OUTPUT_COST, Served
from .traffic import Arrival
from .worker import MODEL, ModelledWorker, WorkerModel

START_S = 1_000_000.0
_HOP_S = 0.0005
_BEAT_S = 1.0
_TICK_S = 0.25
_BLOCK_TOKENS = 16
# Before packed numbers, which are length-delimited.
_PROMPT_TAG = scheduler_pb2.InferenceRequest.PROMPT_TOKEN_IDS_FIELD_NUMBER << 3 | 2


@dataclass(frozen=True, slots=True)
class Setup:
    """A scheduler and its workers."""

    workers: int = 1
    model: WorkerModel = field(default_factory=WorkerModel)
    policy: PolicyName = "priority"
    aging_s: float = AGING_S
    weights: Mapping[str, float] = field(default_factory=dict)
    fairness: FairnessSettings = field(default_factory=FairnessSettings)
    ordinary_share: float = ORDINARY_SHARE
    # Whether the scheduler learns what workers have cached.
    has_hints: bool = False
    # Longest wait for the worker that has a prefix.
    prefix_wait_s: float = Limits().prefix_wait_s
    # Workers are in these in turn.
    zones: tuple[str, ...] = ("",)
    # Times as fast as `model` says workers are these in turn.
    speeds: tuple[float, ...] = (1.0,)

    def zone_of(self, worker_id: str) -> str:
        return self.zones[int(worker_id[1:]) % len(self.zones)]

    def model_of(self, worker_id: str) -> WorkerModel:
        return self.model.times(self.speeds[int(worker_id[1:]) % len(self.speeds)])


def new_core(setup: Setup, *, now: float) -> SchedulerCore:
    """A core that dispatches at once."""
    limits = Limits(settle_s=0.0, prefix_wait_s=setup.prefix_wait_s)
    return SchedulerCore(
        limits,
        now=now,
        policy=setup.policy,
        aging_s=setup.aging_s,
        fairness=setup.fairness,
        tenant_weights=setup.weights,
        ordinary_share=setup.ordinary_share,
    )


def to_request(arrival: Arrival) -> scheduler_pb2.InferenceRequest:
    """The job that a gateway would publish."""
    request = scheduler_pb2.InferenceRequest(
        request_id=arrival.name,
        tenant=arrival.tenant,
        model=arrival.model or MODEL,
        priority=arrival.priority,
        enqueued_unix_ms=int(arrival.at_s * 1000),
        epoch=1,
        zone=arrival.zone,
    )
    if arrival.tokens is not None:
        request.prompt_token_ids.extend(arrival.tokens[: arrival.prompt_tokens])
    else:
        request.MergeFromString(_equal_tokens(arrival.prompt_tokens))
    request.params.max_tokens = arrival.max_tokens
    return request


def _equal_tokens(n: int) -> bytes:
    """A prompt of n tokens, all 1, as it comes over the wire: a list of thousands takes far longer."""
    head, left = bytearray([_PROMPT_TAG]), n
    while left >= 128:
        head.append(left % 128 + 128)
        left //= 128
    head.append(left)
    return bytes(head) + b"\1" * n


def _tenant(arrival: Arrival) -> str:
    return arrival.tenant


class Stuck(Exception):
    """Some simulated requests never end."""


class World:
    """Runs until every request has ended.

    Args:
        arrivals: in order of time, from `START_S` on.
        group: of a request, for what `served` tells.
        next_of: what a client sends after a request that has ended, if anything.
    """

    def __init__(
        self,
        setup: Setup,
        arrivals: Iterable[Arrival],
        *,
        patience_s: float = 36_000.0,
        group: Callable[[Arrival], str] = _tenant,
        next_of: Callable[[Arrival], Arrival | None] = lambda _ended: None,
    ) -> None:
        self.setup = setup
        self._events = Events(START_S)
        self.core = new_core(setup, now=START_S)
        self.requests: dict[RequestKey, Arrival] = {}
        self.served: list[Served] = []
        self.counts: dict[str, int] = defaultdict(int)
        self.order: list[Arrival] = []
        # Wall-clock time spent in the core.
        self.core_s = 0.0
        self._arrivals = iter(arrivals)
        self._patience_s = patience_s
        self._group = group
        self._next_of = next_of
        # Requests that their clients are still to send.
        self._expected = 0
        self._is_plan_due = False
        self._open = 0
        self._is_arriving = True
        self._waiting: dict[str, int] = defaultdict(int)
        self._ever_dry: set[str] = set()
        self._tokens: dict[str, float] = defaultdict(float)
        self.workers: dict[str, ModelledWorker] = {}
        # When each worker is to be called next; older calls are skipped.
        self._wake_s: dict[str, float | None] = {}
        for number in range(setup.workers):
            self._add_worker(f"w{number:04d}")

    def run(self) -> World:
        """Let it all happen.

        Raises:
            Stuck: requests are left that nothing happens to, or that take too long.
        """
        self._schedule_next_arrival()
        self._events.at(self.now, self._tick)
        self._events.after(_BEAT_S, self._sample)
        while self._is_arriving or self._expected or self._open:
            if not self._events.step():
                raise Stuck(f"nothing happens, and {self._open} requests have not ended")
            if self.now - START_S > self._patience_s:
                raise Stuck(f"{self._open} requests have not ended after {self._patience_s:g} s")
        return self

    # Arrivals and time

    @property
    def now(self) -> float:
        return self._events.now

    def _schedule_next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            self._is_arriving = False
        else:
            self._events.at(arrival.at_s, self._arrive_in_turn, arrival)

    def _arrive_in_turn(self, arrival: Arrival) -> None:
        self._arrive(arrival)
        self._schedule_next_arrival()

    def _follow_up(self, arrival: Arrival) -> None:
        self._expected -= 1
        self._arrive(arrival)

    def _arrive(self, arrival: Arrival) -> None:
        key = RequestKey(arrival.tenant, arrival.name)
        self.requests[key] = arrival
        self._open += 1
        self._waiting[self._group(arrival)] += 1
        request = to_request(arrival)
        cached_on = self._hints(request) if self.setup.has_hints else None
        self._core(lambda: self.core.on_job(request, key, len(self.requests), self.now, cached_on))

    def _hints(self, request: scheduler_pb2.InferenceRequest) -> dict[str, int]:
        """Return the hints of the prefix index for a prompt: whole blocks."""
        scope, tokens = cache_scope_of(request), request.prompt_token_ids
        blocks = {
            worker_id: worker.cache.match(scope, tokens) // _BLOCK_TOKENS
            for worker_id, worker in self.workers.items()
        }
        return {worker_id: n * _BLOCK_TOKENS for worker_id, n in blocks.items() if n}

    def _tick(self) -> None:
        self._core(lambda: self.core.on_tick(self.now))
        self._events.after(_TICK_S, self._tick)

    def _sample(self) -> None:
        """Once a second: what was served to whom, and who has been waiting all along."""
        for worker_id, worker in self.workers.items():
            worker.look(self.now)
            self._follow(worker_id)
        backlogged = frozenset(g for g, n in self._waiting.items() if n and g not in self._ever_dry)
        self.served.append(Served(self.now, _BEAT_S, dict(self._tokens), backlogged))
        self._tokens.clear()
        self._ever_dry = {group for group, n in self._waiting.items() if not n}
        self._events.after(_BEAT_S, self._sample)

    # Workers

    def _add_worker(self, worker_id: str) -> None:
        self.workers[worker_id] = ModelledWorker(
            worker_id,
            self.setup.model_of(worker_id),
            output_of=lambda key: self.requests[key].output_tokens,
            answer_of=self._answer_of,
            readers=self,
        )
        self._wake_s[worker_id] = None
        self._beat(worker_id)

    def _answer_of(self, key: RequestKey) -> Iterable[int]:
        arrival = self.requests[key]
        return count() if arrival.tokens is None else arrival.tokens[arrival.prompt_tokens :]

    def _beat(self, worker_id: str) -> None:
        status = self.workers[worker_id].beat(self.now)
        status.zone = self.setup.zone_of(worker_id)
        self._follow(worker_id)
        self._events.after(_HOP_S, self._on_heartbeat, status)
        self._events.after(_BEAT_S, self._beat, worker_id)

    def _on_heartbeat(self, status: scheduler_pb2.WorkerStatus) -> None:
        self._core(lambda: self.core.on_heartbeat(status, self.now))

    def _follow(self, worker_id: str) -> None:
        """After anything done to a worker: carry its events, note when it is due."""
        worker = self.workers[worker_id]
        for event in worker.take_events():
            self._events.after(_HOP_S, self._on_event, event)
        due_s = worker.next_s
        if due_s is not None and due_s != self._wake_s[worker_id]:
            self._events.at(due_s, self._wake, worker_id, due_s)
        self._wake_s[worker_id] = due_s

    def _wake(self, worker_id: str, due_s: float) -> None:
        if self._wake_s[worker_id] != due_s:
            return
        self._wake_s[worker_id] = None
        self.workers[worker_id].look(self.now)
        self._follow(worker_id)

    def on_tokens(
        self,
        key: RequestKey,
        epoch: int,
        offset: int,
        tokens: int,
        now: float,
        every_s: float = 0.0,  # noqa: ARG002
    ) -> None:
        """Take what readers of the token stream are given; repeats are dropped, as they do."""
        arrival = self.requests[key]
        if offset > arrival.generated:
            raise Stuck(f"{key} lost its tokens {arrival.generated} to {offset}")
        new = max(0, offset + tokens - arrival.generated)
        arrival.generated += new
        arrival.epoch = max(arrival.epoch, epoch)
        self._tokens[self._group(arrival)] += OUTPUT_COST * new
        if arrival.first_token_s is None:
            arrival.first_token_s = now
            self._tokens[self._group(arrival)] += arrival.prompt_tokens

    def on_end(self, key: RequestKey, epoch: int, outcome: str) -> None:  # noqa: ARG002
        self.requests[key].outcome = outcome

    def _on_event(self, event: scheduler_pb2.WorkerEvent) -> None:
        if event.WhichOneof("event") == "request_yielded":
            reason = scheduler_pb2.YieldReason.Name(event.request_yielded.reason)
            self.counts[f"yield_{reason.removeprefix('YIELD_REASON_').lower()}"] += 1
        elif event.HasField("request_finished"):
            self._note_finished(event)
        self._core(lambda: self.core.on_event(event, self.now))

    def _note_finished(self, event: scheduler_pb2.WorkerEvent) -> None:
        finished = event.request_finished
        arrival = self.requests[RequestKey(finished.tenant, finished.request_id)]
        arrival.worker_id, arrival.cached = event.worker_id, finished.usage.cached_prompt_tokens

    # What the core decides

    def _core(self, tell: Callable[[], list[Action]]) -> None:
        began_s = time.perf_counter()
        todo = tell()
        self.core_s += time.perf_counter() - began_s
        self._perform(todo)
        if not self._is_plan_due and self.core.must_plan:
            self._is_plan_due = True
            self._events.at(self.now, self._plan)

    def _plan(self) -> None:
        self._is_plan_due = False
        self._core(lambda: self.core.plan(self.now))

    def _perform(self, todo: Iterable[Action]) -> None:
        for action in todo:
            match action:
                case actions.Dispatch():
                    self._events.after(_HOP_S, self._deliver, action.worker_id, action.batch)
                case actions.Ack():
                    self._end(action)
                case actions.PublishChunk():
                    self._note_chunk(action)
                case actions.ReadReplay():
                    self._events.after(_HOP_S, self._answer_replay, action)
                case actions.SendCommand():
                    self._events.after(_HOP_S, self._command, action)
                case actions.CountRetry():
                    self.counts[f"retry_{action.cause}"] += 1
                case actions.CountRefusal():
                    self.counts[f"refusal_{action.reason}"] += 1

    def _deliver(self, worker_id: str, batch: worker_pb2.RequestBatch) -> None:
        answer = self.workers[worker_id].take_batch(batch, self.now)
        accepted = set(answer.accepted_request_ids)
        self.counts["placements"] += len(accepted)
        for item in batch.items:
            if item.request.request_id in accepted:
                self._note_placed(RequestKey(item.request.tenant, item.request.request_id))
        self._follow(worker_id)
        self._events.after(_HOP_S, self._answer, answer)

    def _answer(self, answer: worker_pb2.BatchAccepted) -> None:
        self._core(lambda: self.core.on_batch_answer(answer, self.now))

    def _command(self, action: actions.SendCommand) -> None:
        self.workers[action.worker_id].take_command(action.command, self.now)
        self._follow(action.worker_id)

    def _answer_replay(self, action: actions.ReadReplay) -> None:
        arrival = self.requests[action.key]
        replayed = ReplayedTokens(
            list(range(arrival.generated)), epoch=arrival.epoch, outcome=arrival.outcome
        )
        self._core(lambda: self.core.on_replay(action.key, action.read_id, replayed, self.now))

    # What becomes of requests

    def _note_placed(self, key: RequestKey) -> None:
        arrival = self.requests[key]
        if arrival.placed_s is None:
            arrival.placed_s = self.now
            self.order.append(arrival)
            self._stop_waiting(arrival)

    def _stop_waiting(self, arrival: Arrival) -> None:
        group = self._group(arrival)
        self._waiting[group] -= 1
        if not self._waiting[group]:
            self._ever_dry.add(group)

    def _note_chunk(self, action: actions.PublishChunk) -> None:
        if outcome := outcome_of(action.chunk):
            self.requests[action.key].outcome = outcome

    def _end(self, ack: actions.Ack) -> None:
        key = ack.handle
        if not isinstance(key, RequestKey):
            raise TypeError(f"{key} is no request's key")
        arrival = self.requests[key]
        if arrival.ended_s is not None:
            raise Stuck(f"{key} ended twice")
        arrival.ended_s, arrival.outcome = self.now, ack.outcome
        self._open -= 1
        if arrival.placed_s is None:
            self._stop_waiting(arrival)
        if (following := self._next_of(arrival)) is not None:
            self._expected += 1
            self._events.at(following.at_s, self._follow_up, following)
