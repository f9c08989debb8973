"""Does what the core decides, in its order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from inferflux.common.bus import Bus, Job
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import Unavailable
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background
from inferflux.scheduler import request_log
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.actions import Action
from inferflux.scheduler.core.types.jobs import Attempt
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.scheduler.spans import SchedulerSpans
from inferflux.v1 import scheduler_pb2

from . import cancel, host_commands
from .dispatch import dispatch, probe
from .guard import GuardedCore
from .prefix_hints import Hints
from .replay import end_lost, read_replayed

LookUp = Callable[[Sequence[scheduler_pb2.InferenceRequest]], Awaitable[list[Hints]]]

log = logs.get("scheduler")

_FULL_WAIT_S = 0.05
# Replays read at the same time.
_READERS = 32
# Longest wait for a worker to answer a batch.
_DISPATCH_LIMIT_S = 2.0


class Performer:
    """Sends in order what is only sent; batches and replays wait for their answers beside it.

    Args:
        look_up: finds which workers have cached prompts.
        has_all: whether the core has every job of the work queue.
        on_failure: told of a defect: an exception that nothing was prepared for.
    """

    def __init__(
        self,
        bus: Bus,
        guard: GuardedCore,
        metrics: SchedulerMetrics,
        spans: SchedulerSpans,
        *,
        look_up: LookUp,
        has_all: Callable[[], Awaitable[bool]],
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._look_up = look_up
        self._has_all = has_all
        self._bus = bus
        self._guard = guard
        self._metrics = metrics
        self._spans = spans
        self._outbox: deque[Action] = deque()
        self._wake = asyncio.Event()
        self._readers = asyncio.Semaphore(_READERS)
        self._background = Background(on_failure)

    def perform(self, todo: Iterable[Action]) -> None:
        """Start doing; returns at once."""
        for action in todo:
            self._spans.note(action)
            request_log.note(action)
            match action:
                case actions.Dispatch():
                    self._observe(action)
                    self._background.start(self._dispatch(action))
                case actions.Probe():
                    asked = probe(self._bus, action, self._guard, timeout_s=_DISPATCH_LIMIT_S)
                    self._background.start(asked)
                case actions.CommandHost():
                    asked = host_commands.perform(self._bus, action, self._guard, self._metrics)
                    self._background.start(asked)
                case actions.EndLost():
                    self._background.start(self._end_lost(action.attempt))
                case actions.ReadReplay():
                    self._background.start(self._read(action))
                case (
                    actions.PublishChunk()
                    | actions.SendCommand()
                    | actions.TellCancel()
                    | actions.Ack()
                    | actions.Hold()
                ):
                    self._outbox.append(action)
                    self._wake.set()
                case _:
                    self._count(action)

    def _count(self, action: Action) -> None:
        match action:
            case actions.CountUnread():
                self._metrics.unread.inc()
            case actions.CountRetry():
                self._metrics.retries.labels(action.cause).inc()
            case actions.CountRefusal():
                self._metrics.refusals.labels(action.reason).inc()
            case actions.Yielded():
                self._metrics.yields.labels(action.reason).inc()
            case actions.Preempted():
                self._metrics.preemptions.inc()
            case actions.Resumed():
                self._metrics.resumes.labels(action.residence).inc()
                self._metrics.resume_wait.observe(max(0.0, action.waited_s))
            case actions.PrefixWaited():
                self._metrics.prefix_waits.labels("met" if action.is_there else "over").inc()
            case actions.CountSplit():
                self._metrics.splits.labels(action.decision).inc()
            case actions.MoveEnded():
                self._metrics.moves.labels(action.move.why.value, action.move.outcome).inc()
            case actions.CountTokens():
                self._metrics.tokens.labels(action.priority).inc(action.tokens)
            case actions.CountFirstToken():
                first_token = self._metrics.first_token.labels(action.model, action.priority)
                first_token.observe(action.seconds)

    async def run(self) -> None:
        """Empty the outbox, for ever. While NATS takes nothing more, everything waits."""
        while True:
            await self._wake.wait()
            while self._outbox:
                try:
                    await self._send(self._outbox[0])
                except Unavailable as error:
                    log.debug("cannot send yet", reason=error.reason)
                    await asyncio.sleep(_FULL_WAIT_S)
                else:
                    self._outbox.popleft()
            self._wake.clear()

    async def close(self) -> None:
        """Give up what has no answer yet."""
        await self._background.close()

    @property
    def is_idle(self) -> bool:
        """True if everything has been sent."""
        return not self._outbox

    async def _send(self, action: Action) -> None:
        match action:
            case actions.PublishChunk():
                await self._bus.publish(subjects.tokens(*action.key), action.chunk.SerializeToString())
            case actions.SendCommand():
                subject = subjects.worker_command(action.worker_id)
                await self._bus.publish(subject, action.command.SerializeToString())
            case actions.TellCancel():
                await self._bus.publish(*cancel.notice(action.key, action.attempt_id))
            case actions.Ack(handle=Job() as job):
                await job.ack()
                self._metrics.count_end(action.outcome)
            case actions.Hold(handle=Job() as job):
                await job.in_progress()

    def _observe(self, action: actions.Dispatch) -> None:
        self._metrics.batch_size.observe(len(action.batch.items))
        self._metrics.batch_tokens.observe(action.batch.prefill_tokens)
        for wait_s in action.waits_s:
            self._metrics.queue_time.labels(action.model).observe(max(0.0, wait_s))

    async def _dispatch(self, action: actions.Dispatch) -> None:
        with self._metrics.answer_time.time():
            await dispatch(self._bus, action, self._guard, timeout_s=_DISPATCH_LIMIT_S)

    async def _end_lost(self, attempt: Attempt) -> None:
        async with self._readers:
            is_lost = partial(self._guard.ask, "a lost job", lambda core, _now: core.cancels.is_lost(attempt))
            if await end_lost(self._bus, attempt, self._has_all, is_lost):
                self._metrics.lost.inc()

    async def _read(self, action: actions.ReadReplay) -> None:
        logs.bind_request(**logs.of_request(action.key.request_id, action.key.tenant))
        async with self._readers:
            replayed = await read_replayed(self._bus, action.key)
        hints: Hints | None = None
        if action.request is not None and not replayed.outcome:
            request = scheduler_pb2.InferenceRequest()
            request.CopyFrom(action.request)
            del request.generated_token_ids[:]
            request.generated_token_ids.extend(replayed.token_ids)
            (hints,) = await self._look_up([request])
        self._guard.decide(
            "a replay", lambda core, now: core.on_replay(action.key, action.read_id, replayed, now, hints)
        )
