"""Events that a worker tells the scheduler at once: finished, descheduled and lost requests."""

from __future__ import annotations

from collections.abc import Iterable

from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import Unavailable
from inferflux.common.process import logs
from inferflux.v1 import engine_pb2, scheduler_pb2

from .residents import Resident
from .worker_state import WorkerState

log = logs.get("worker.events")


class WorkerEvents:
    """Publishes events. One that NATS does not take is made up for by the next heartbeats."""

    def __init__(self, bus: Bus, state: WorkerState) -> None:
        self._bus = bus
        self._state = state

    async def finished(self, ended: engine_pb2.EngineFinished, resident: Resident) -> None:
        """A request has had its terminal chunk."""
        event = self._event()
        report = event.request_finished
        report.request_id = resident.request_id
        report.epoch = ended.epoch
        report.tenant = resident.tenant
        report.outcome = ended.outcome
        report.usage.prompt_tokens = ended.prompt_tokens
        report.usage.cached_prompt_tokens = ended.cached_prompt_tokens
        report.usage.cached_prompt_tier = ended.cached_prompt_tier
        report.usage.completion_tokens = ended.completion_tokens
        report.time_to_first_token_ms = ended.time_to_first_token_ms
        await self._publish(event)

    async def descheduled(self, moved: engine_pb2.EngineResidence, resident: Resident) -> None:
        """A request does not run any more, and stays resident."""
        event = self._event()
        report = event.request_yielded
        report.request_id = resident.request_id
        report.tenant = resident.tenant
        report.epoch = moved.epoch
        report.reason = moved.reason
        report.residence = moved.residence
        report.run = moved.run
        report.generated_tokens = moved.generated_tokens
        await self._publish(event)

    async def engine_died(self, lost: Iterable[Resident], why: str, *, killer_id: str = "") -> None:
        """The engine is gone with all of its requests.

        Args:
            killer_id: of the image that it crashed over; "" where there is none.
        """
        event = self._event()
        event.engine_died.killer_image_id = killer_id
        event.engine_died.message = why
        event.engine_died.residents.extend(resident.identity() for resident in lost)
        await self._publish(event)

    async def left(self, residents: Iterable[Resident]) -> None:
        """The worker leaves; these requests have had no terminal chunk."""
        event = self._event()
        event.worker_left.residents.extend(resident.identity() for resident in residents)
        await self._publish(event)

    async def state_taken(self, news: scheduler_pb2.StateTaken) -> None:
        """State that was to be fetched is here, or will not come."""
        event = self._event()
        event.state_taken.CopyFrom(news)
        await self._publish(event)

    def _event(self) -> scheduler_pb2.WorkerEvent:
        return scheduler_pb2.WorkerEvent(worker_id=self._state.worker_id, incarnation=self._state.incarnation)

    async def _publish(self, event: scheduler_pb2.WorkerEvent) -> None:
        try:
            await self._bus.publish(subjects.SCHEDULER_EVENTS, event.SerializeToString())
        except Unavailable as error:
            log.warning("event not published", kind=event.WhichOneof("event"), error=str(error))
