"""Engine reports out to the world: token chunks to their readers, endings to the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import time

from inferflux.common import logs, subjects
from inferflux.common.bus import Bus
from inferflux.common.errors import DeadlineExceeded, InferFluxError, Unavailable
from inferflux.common.tasks import cancel_all
from inferflux.v1 import engine_pb2, scheduler_pb2

from . import request_log
from .residents import Resident, ResidentTable
from .spans import WorkerSpans

log = logs.get("worker.emit")

# Between NATS refusing messages and asking whether it takes them again.
_REFUSED_WAIT_S = 1.0
# A stream takes messages in a moment after NATS has confirmed them.
_TAKEN_IN_S = 0.05
# Chunks wait no longer than this for those before them, once NATS is there.
_BEHIND_LIMIT_S = 2.0
# Requests of which is asked at the same time what the stream holds: chunks wait meanwhile.
_REPLAYS_AT_ONCE = 16


class Emitter:
    """Publishes what the engine emits.

    A chunk that cannot be sent because NATS is away or takes no more is not lost: every chunk of a request is
    kept until half a minute after its end. After a reconnect, or once NATS takes messages again, those that
    the stream does not hold are published. What is emitted meanwhile waits for them, so that the stream has
    each chunk once and in order.
    """

    def __init__(
        self, bus: Bus, table: ResidentTable, spans: WorkerSpans, worker_id: str, incarnation: str
    ) -> None:
        self._bus = bus
        self._table = table
        self._spans = spans
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._heard = asyncio.Event()
        self._refused = asyncio.Event()
        # Whether chunks wait for earlier ones: these, by subject, since the others were last looked at.
        self._is_behind = False
        self._waiting: list[tuple[str, bytes]] = []
        self._connected_since_s = 0.0

    def on_disconnect(self) -> None:
        """What has not been sent would come before what the stream has lost."""
        self._bus.discard_unsent(subjects.TOKENS_PREFIX)
        self._fall_behind()

    def _fall_behind(self) -> None:
        """The connection broke, or NATS refused a chunk: what follows waits for `republish`."""
        self._is_behind = True
        self._connected_since_s = 0.0

    async def on_step(self, step: engine_pb2.StepReport) -> None:
        self._spans.on_step(step)
        for emission in step.emissions:
            resident = self._table.get(emission.key)
            if resident is None or resident.epoch != emission.epoch:
                continue
            resident.emitted(emission)
            if self._must_wait():
                self._waiting.append((resident.subject, emission.chunk))
            elif not await self._publish(resident.subject, emission.chunk):
                self._fall_behind()
        for prefilled in step.prefilled:
            self._table.prefilled(prefilled)
        for moved in step.residences:
            resident = self._table.moved(moved)
            is_yielded = moved.residence != scheduler_pb2.RESIDENCE_RUNNING
            if resident is not None and is_yielded and moved.run == resident.run:
                request_log.yielded(resident, moved.reason)
                await self._tell_yielded(moved, resident)
        for ended in step.ended:
            resident = self._table.end(ended.key, ended.epoch, time.monotonic())
            if resident is not None:
                request_log.finished(resident, ended)
                await self._tell_ended(ended, resident)
        self._heard.set()

    async def until_none_runs(self) -> None:
        """Return when nothing runs: what is resident makes no progress by itself."""
        while self._table.has_running:
            self._heard.clear()
            await self._heard.wait()

    async def repeat_refused(self) -> None:
        """Publish everything again, for ever, whenever NATS has refused something and then takes it again."""
        while True:
            await self._refused.wait()
            await asyncio.sleep(_REFUSED_WAIT_S)
            with contextlib.suppress(InferFluxError):
                await self._bus.flush()
                await self.republish()

    async def republish(self) -> None:
        """Publish what the stream misses of the requests that are here and of those that ended lately.

        Raises:
            InferFluxError: NATS does not take it; `repeat_refused` will try again.
        """
        self._refused.clear()
        self._waiting.clear()  # all of it is kept with its request, and looked at now
        records = self._table.all() + self._table.ended_lately(time.monotonic())
        kept = {record.subject: list(record.chunks) for record in records if record.chunks}
        try:
            await self._bus.flush()
            lost = await self._lost(kept)
            for subject, chunks in lost.items():
                for chunk in chunks:
                    await self._publish(subject, chunk)
                await self._bus.flush()
        except InferFluxError:
            self._refused.set()
            raise
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            for subject, chunk in waiting:
                await self._publish(subject, chunk)
        self._is_behind = self._refused.is_set()
        if lost:
            log.info("published again", requests=len(lost))

    async def _lost(self, kept: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
        """What the stream does not hold of these chunks by subject, having had the time to take them in."""
        try:
            lost = await self._not_held(kept)
            if not lost:
                return lost
            await asyncio.sleep(_TAKEN_IN_S)
            return await self._not_held(lost)
        except (Unavailable, DeadlineExceeded) as error:
            log.warning("the token stream cannot be read", reason=error.reason)
            return kept

    async def _not_held(self, kept: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
        lost: dict[str, list[bytes]] = {}
        left = iter(kept.items())

        async def look() -> None:
            for subject, chunks in left:  # each of them is taken by one look
                held = set(await self._bus.replay(subject))
                if missing := [chunk for chunk in chunks if chunk not in held]:
                    lost[subject] = missing

        looks = [asyncio.create_task(look()) for _ in range(min(len(kept), _REPLAYS_AT_ONCE))]
        try:
            await asyncio.gather(*looks)
        finally:
            await cancel_all(looks)
        return lost

    def _must_wait(self) -> bool:
        """Whether a chunk has to wait for earlier ones. Readers wait with it, so not for long."""
        if not self._is_behind:
            return False
        if not self._bus.is_connected:
            return True
        now = time.monotonic()
        self._connected_since_s = self._connected_since_s or now
        return now - self._connected_since_s < _BEHIND_LIMIT_S

    async def tell_engine_died(self, lost: list[Resident], message: str) -> None:
        self._heard.set()
        event = self._event()
        event.engine_died.message = message
        event.engine_died.on_board.extend(_identity(r) for r in lost)
        await self._publish(subjects.SCHEDULER_EVENTS, event.SerializeToString())

    async def tell_leaving(self, left: list[Resident]) -> None:
        event = self._event()
        event.worker_left.on_board.extend(_identity(r) for r in left)
        await self._publish(subjects.SCHEDULER_EVENTS, event.SerializeToString())

    async def _tell_ended(self, ended: engine_pb2.EngineEnded, resident: Resident) -> None:
        event = self._event()
        told = event.request_ended
        told.request_id = resident.request_id
        told.epoch = ended.epoch
        told.tenant = resident.tenant
        told.outcome = ended.outcome
        told.usage.prompt_tokens = ended.prompt_tokens
        told.usage.completion_tokens = ended.completion_tokens
        told.time_to_first_token_ms = ended.time_to_first_token_ms
        await self._publish(subjects.SCHEDULER_EVENTS, event.SerializeToString())

    async def _tell_yielded(self, yielded: engine_pb2.EngineResidence, resident: Resident) -> None:
        event = self._event()
        told = event.request_yielded
        told.request_id = resident.request_id
        told.tenant = resident.tenant
        told.epoch = yielded.epoch
        told.reason = yielded.reason
        told.residence = yielded.residence
        told.generated_tokens = yielded.generated_tokens
        await self._publish(subjects.SCHEDULER_EVENTS, event.SerializeToString())

    async def _publish(self, subject: str, payload: bytes) -> bool:
        """False when NATS does not take it."""
        try:
            await self._bus.publish(subject, payload)
        except Unavailable as error:
            if not self._refused.is_set():
                log.warning("not published yet, nor what follows", subject=subject, error=str(error))
            self._refused.set()
            return False
        return True

    def _event(self) -> scheduler_pb2.WorkerEvent:
        return scheduler_pb2.WorkerEvent(worker_id=self._worker_id, incarnation=self._incarnation)


def _identity(resident: Resident) -> scheduler_pb2.EndedRequest:
    return scheduler_pb2.EndedRequest(
        request_id=resident.request_id, epoch=resident.epoch, tenant=resident.tenant
    )
