"""Engine reports out to the world: token chunks to their readers, endings to the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import time

from inferflux.common import logs, subjects
from inferflux.common.bus import Bus
from inferflux.common.errors import Unavailable
from inferflux.v1 import engine_pb2, scheduler_pb2

from .running import Running, RunningTable
from .spans import WorkerSpans

log = logs.get("worker.emit")

# Between NATS refusing messages and asking whether it takes them again.
_REFUSED_WAIT_S = 1.0


class Emitter:
    """Publishes what the engine emits.

    A chunk that cannot be sent because NATS is away or takes no more is not lost: everything published
    for a request is kept until half a minute after its end, and published again after a reconnect, or once
    NATS takes messages again. Readers drop what they have by its offset.
    """

    def __init__(
        self, bus: Bus, table: RunningTable, spans: WorkerSpans, worker_id: str, incarnation: str
    ) -> None:
        self._bus = bus
        self._table = table
        self._spans = spans
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._heard = asyncio.Event()
        self._refused = asyncio.Event()

    async def on_step(self, step: engine_pb2.StepReport) -> None:
        self._spans.on_step(step)
        for emission in step.emissions:
            running = self._table.get(emission.key)
            if running is None or running.epoch != emission.epoch:
                continue
            running.emitted(emission)
            await self._publish(running.subject, emission.chunk)
        for prefilled in step.prefilled:
            self._table.prefilled(prefilled)
        for yielded in step.yielded:
            running = self._table.yielded(yielded)
            if running is not None:
                await self._tell_yielded(yielded, running)
        for ended in step.ended:
            running = self._table.end(ended.key, ended.epoch, time.monotonic())
            if running is not None:
                await self._tell_ended(ended, running)
        self._heard.set()

    async def until_none_runs(self) -> None:
        """Return when it is nobody's turn: nothing on board gets on by itself any more."""
        while self._table.has_running:
            self._heard.clear()
            await self._heard.wait()

    async def repeat_refused(self) -> None:
        """Publish everything again, for ever, whenever NATS has refused something and then takes it again."""
        while True:
            await self._refused.wait()
            await asyncio.sleep(_REFUSED_WAIT_S)
            with contextlib.suppress(Unavailable):
                await self._bus.flush()
                await self.republish()

    async def republish(self) -> None:
        """Everything of what is on board and of what ended lately, once more.

        Raises:
            Unavailable: NATS does not take it; `repeat_refused` will try again.
        """
        self._refused.clear()
        records = self._table.all() + self._table.ended_lately(time.monotonic())
        for running in records:
            await self._republish_one(running)
        if records:
            log.info("published again", requests=len(records))

    async def tell_engine_died(self, lost: list[Running], message: str) -> None:
        self._heard.set()
        event = self._event()
        event.engine_died.message = message
        event.engine_died.on_board.extend(_identity(r) for r in lost)
        await self._publish(subjects.SCHEDULER_EVENTS, event.SerializeToString())

    async def tell_leaving(self, left: list[Running]) -> None:
        event = self._event()
        event.worker_left.on_board.extend(_identity(r) for r in left)
        await self._publish(subjects.SCHEDULER_EVENTS, event.SerializeToString())

    async def _tell_ended(self, ended: engine_pb2.EngineEnded, running: Running) -> None:
        event = self._event()
        told = event.request_ended
        told.request_id = running.request_id
        told.epoch = ended.epoch
        told.tenant = running.tenant
        told.outcome = ended.outcome
        told.usage.prompt_tokens = ended.prompt_tokens
        told.usage.completion_tokens = ended.completion_tokens
        told.time_to_first_token_ms = ended.time_to_first_token_ms
        await self._publish(subjects.SCHEDULER_EVENTS, event.SerializeToString())

    async def _tell_yielded(self, yielded: engine_pb2.EngineYielded, running: Running) -> None:
        event = self._event()
        told = event.request_yielded
        told.request_id = running.request_id
        told.tenant = running.tenant
        told.epoch = yielded.epoch
        told.reason = yielded.reason
        told.residence = yielded.residence
        told.generated_tokens = yielded.generated_tokens
        await self._publish(subjects.SCHEDULER_EVENTS, event.SerializeToString())

    async def _republish_one(self, running: Running) -> None:
        for chunk in list(running.chunks):
            await self._publish(running.subject, chunk)
        try:
            await self._bus.flush()
        except Unavailable:
            self._refused.set()
            raise

    async def _publish(self, subject: str, payload: bytes) -> None:
        try:
            await self._bus.publish(subject, payload)
        except Unavailable as error:
            if not self._refused.is_set():
                log.warning("not published yet, nor what follows", subject=subject, error=str(error))
            self._refused.set()

    def _event(self) -> scheduler_pb2.WorkerEvent:
        return scheduler_pb2.WorkerEvent(worker_id=self._worker_id, incarnation=self._incarnation)


def _identity(running: Running) -> scheduler_pb2.EndedRequest:
    return scheduler_pb2.EndedRequest(
        request_id=running.request_id, epoch=running.epoch, tenant=running.tenant
    )
