"""What reaches a worker over NATS: batches and commands from the scheduler, cancel notices from gateways."""

from __future__ import annotations

import time

from google.protobuf.message import DecodeError

from inferflux.common import logs, subjects
from inferflux.common.bus import Bus, Message
from inferflux.v1 import engine_pb2, scheduler_pb2, worker_pb2

from .engine_host import EngineHost
from .presence import Presence
from .running import Refused, RunningTable, request_key

log = logs.get("worker.intake")


class Intake:
    """Checks what arrives against the table, answers, and passes on to the engine."""

    def __init__(self, bus: Bus, table: RunningTable, host: EngineHost, presence: Presence) -> None:
        self._bus = bus
        self._table = table
        self._host = host
        self._presence = presence

    async def listen(self) -> None:
        worker_id = self._presence.worker_id
        await self._bus.serve(subjects.worker_batch(worker_id), self.on_batch)
        await self._bus.serve(subjects.worker_command(worker_id), self.on_command)
        await self._bus.serve(subjects.CANCEL_ALL, self.on_cancel)

    async def on_batch(self, message: Message) -> None:
        try:
            batch = worker_pb2.RequestBatch.FromString(message.data)
        except DecodeError:
            log.error("batch could not be decoded", size=len(message.data))
            return
        answer = worker_pb2.BatchAccepted(batch_id=batch.batch_id)
        for item in batch.items:
            try:
                self._take_up(item, batch.incarnation)
            except Refused as refusal:
                answer.refused.add(
                    request_id=item.request.request_id, reason=refusal.reason, message=str(refusal)
                )
            else:
                answer.accepted_request_ids.append(item.request.request_id)
        await message.respond(answer.SerializeToString())

    def _take_up(self, item: worker_pb2.BatchItem, incarnation: str) -> None:
        if incarnation != self._presence.incarnation:
            raise Refused(worker_pb2.REFUSAL_REASON_WRONG_INCARNATION, "this worker has been restarted")
        if self._presence.state != scheduler_pb2.WORKER_STATE_READY:
            raise Refused(worker_pb2.REFUSAL_REASON_NOT_READY, "this worker is loading or draining")
        if item.request.model != self._presence.card.name:
            raise Refused(worker_pb2.REFUSAL_REASON_UNKNOWN_MODEL, f"only {self._presence.card.name} is here")
        running, replaced = self._table.admit(item)
        if replaced is not None:
            self._cancel(running.key, is_silent=True)
        self._host.send(engine_pb2.EngineCommand(start=item))

    async def on_command(self, message: Message) -> None:
        try:
            command = worker_pb2.WorkerCommand.FromString(message.data)
        except DecodeError:
            log.error("command could not be decoded", size=len(message.data))
            return
        match command.WhichOneof("command"):
            case "drop":
                key = request_key(command.drop.tenant, command.drop.request_id)
                if self._table.drop(key, command.drop.epoch):
                    self._cancel(key, is_silent=True)
            case "drain":
                await self._presence.become(scheduler_pb2.WORKER_STATE_DRAINING)
            case _:
                log.warning("unknown command")

    async def on_cancel(self, message: Message) -> None:
        try:
            notice = scheduler_pb2.CancelNotice.FromString(message.data)
        except DecodeError:
            return
        running = self._table.cancel(request_key(notice.tenant, notice.request_id), time.monotonic())
        if running is not None:
            self._cancel(running.key, is_silent=False)

    def _cancel(self, key: str, *, is_silent: bool) -> None:
        cancel = engine_pb2.EngineCancel(key=key, is_silent=is_silent)
        self._host.send(engine_pb2.EngineCommand(cancel=cancel))
