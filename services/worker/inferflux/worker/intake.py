"""What reaches a worker over NATS: batches and commands from the scheduler, cancel notices from gateways."""

from __future__ import annotations

import time

from google.protobuf.message import DecodeError

from inferflux.common import logs, subjects
from inferflux.common.bad_messages import BadMessages
from inferflux.common.bus import Bus, Message
from inferflux.common.cancel_notices import parse_cancel
from inferflux.common.errors import InvalidArgument
from inferflux.v1 import engine_pb2, scheduler_pb2, worker_pb2

from . import request_log
from .checks import check_batch, check_command, check_item
from .engine_host import EngineHost
from .presence import Presence
from .residents import Refused, ResidentTable, request_key
from .spans import WorkerSpans

log = logs.get("worker.intake")


class Intake:
    """Checks what arrives against the table, answers, and passes on to the engine."""

    def __init__(
        self,
        bus: Bus,
        table: ResidentTable,
        spans: WorkerSpans,
        host: EngineHost,
        presence: Presence,
        bad: BadMessages,
    ) -> None:
        self._bus = bus
        self._table = table
        self._spans = spans
        self._host = host
        self._presence = presence
        self._bad = bad

    async def listen(self) -> None:
        worker_id = self._presence.worker_id
        await self._bus.serve(subjects.worker_batch(worker_id), self.on_batch)
        await self._bus.serve(subjects.worker_command(worker_id), self.on_command)
        await self._bus.serve(subjects.CANCEL_ALL, self.on_cancel)
        await self._bus.serve(subjects.SCHEDULER_LEADER, self.on_leader)

    async def on_batch(self, message: Message) -> None:
        try:
            batch = worker_pb2.RequestBatch.FromString(message.data)
            check_batch(batch)
        except (DecodeError, InvalidArgument) as error:
            self._bad.note("batch", error, subject=message.subject)
            raise InvalidArgument(str(error), reason="BAD_BATCH") from None
        answer = worker_pb2.BatchAccepted(batch_id=batch.batch_id)
        try:
            self._check_sender(batch)
        except Refused as refusal:
            for item in batch.items:
                _refuse(answer, item, refusal)
        else:
            self._act_on(batch, answer)
        await message.respond(answer.SerializeToString())

    def _check_sender(self, batch: worker_pb2.RequestBatch) -> None:
        if batch.incarnation != self._presence.incarnation:
            raise Refused(worker_pb2.REFUSAL_REASON_WRONG_INCARNATION, "this worker has been restarted")
        if not self._presence.accepts(batch.term):
            message = f"term {batch.term} does not count, {self._presence.term} has begun"
            raise Refused(worker_pb2.REFUSAL_REASON_OLD_TERM, message)

    def _act_on(self, batch: worker_pb2.RequestBatch, answer: worker_pb2.BatchAccepted) -> None:
        for preemption in batch.preemptions:
            self._deschedule(preemption)
        take = self._resume if batch.phase == worker_pb2.PHASE_DECODE else self._take_up
        for item in batch.items:
            try:
                _check(item)
                take(item)
            except Refused as refusal:
                _refuse(answer, item, refusal)
            else:
                answer.accepted_request_ids.append(item.request.request_id)

    def _take_up(self, item: worker_pb2.BatchItem) -> None:
        self._check_model(item)
        if self._presence.state != scheduler_pb2.WORKER_STATE_READY:
            raise Refused(worker_pb2.REFUSAL_REASON_NOT_READY, "this worker is loading or draining")
        resident, replaced = self._table.admit(item)
        if replaced is not None:
            self._spans.gave_up(replaced, "dropped")
            request_log.left(replaced, "replaced")
            self._cancel(resident.key, is_silent=True)
        self._spans.take_up(resident, item)
        request_log.taken_up(resident)
        self._host.send(engine_pb2.EngineCommand(start=item))

    def _resume(self, item: worker_pb2.BatchItem) -> None:
        self._check_model(item)
        resident = self._table.resume(item)
        self._spans.resumed(resident, item.slot)
        request_log.resumed(resident)
        resume = engine_pb2.EngineResume(
            key=resident.key,
            epoch=resident.epoch,
            slot=item.slot,
            token_budget=item.token_budget,
            rank=item.rank,
            run=resident.run,
        )
        self._host.send(engine_pb2.EngineCommand(resume=resume))

    def _deschedule(self, preemption: worker_pb2.Preemption) -> None:
        resident = self._table.find(preemption)
        if resident is not None:
            deschedule = engine_pb2.EngineDeschedule(key=resident.key, epoch=resident.epoch)
            self._host.send(engine_pb2.EngineCommand(deschedule=deschedule))

    def _check_model(self, item: worker_pb2.BatchItem) -> None:
        if item.request.model != self._presence.card.name:
            raise Refused(worker_pb2.REFUSAL_REASON_UNKNOWN_MODEL, f"only {self._presence.card.name} is here")

    async def on_command(self, message: Message) -> None:
        try:
            command = worker_pb2.WorkerCommand.FromString(message.data)
            check_command(command)
        except (DecodeError, InvalidArgument) as error:
            self._bad.note("command", error, subject=message.subject)
            return
        if not self._presence.accepts(command.term):
            log.warning("command of a wrong term", term=command.term, latest=self._presence.term)
            return
        match command.WhichOneof("command"):
            case "drop":
                key = request_key(command.drop.tenant, command.drop.request_id)
                if (dropped := self._table.drop(key, command.drop.epoch)) is not None:
                    self._spans.gave_up(dropped, "dropped")
                    request_log.left(dropped, "dropped")
                    self._cancel(key, is_silent=True)
            case "drain":
                await self._presence.drain()
            case "undrain":
                await self._presence.undrain()
            case _:
                log.warning("unknown command")

    async def on_leader(self, message: Message) -> None:
        try:
            notice = worker_pb2.LeaderNotice.FromString(message.data)
        except DecodeError:
            log.error("leader notice could not be decoded", size=len(message.data))
            return
        is_ours = not notice.models or self._presence.card.name in notice.models
        if is_ours and self._presence.accepts(notice.term):
            await self._presence.beat()

    async def on_cancel(self, message: Message) -> None:
        try:
            notice = parse_cancel(message.data, message.subject)
        except InvalidArgument as error:
            self._bad.note("cancel", error, subject=message.subject)
            return
        key = request_key(notice.tenant, notice.request_id)
        resident = self._table.cancel(key, notice.attempt_id, time.monotonic())
        if resident is not None:
            self._cancel(resident.key, is_silent=False)

    def _cancel(self, key: str, *, is_silent: bool) -> None:
        cancel = engine_pb2.EngineCancel(key=key, is_silent=is_silent)
        self._host.send(engine_pb2.EngineCommand(cancel=cancel))


def _check(item: worker_pb2.BatchItem) -> None:
    """Raises Refused when an item cannot be what a scheduler sends."""
    try:
        check_item(item)
    except InvalidArgument as error:
        raise Refused(worker_pb2.REFUSAL_REASON_INVALID, error.message) from None


def _refuse(answer: worker_pb2.BatchAccepted, item: worker_pb2.BatchItem, refusal: Refused) -> None:
    request_log.refused(item, refusal)
    answer.refused.add(request_id=item.request.request_id, reason=refusal.reason, message=str(refusal))
