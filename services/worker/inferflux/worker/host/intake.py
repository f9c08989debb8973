"""Messages to a worker over NATS: batches and commands of the scheduler, cancel notices of gateways."""

from __future__ import annotations

import time

from inferflux.common.bus import Bus, Message, Subscription
from inferflux.common.contract import checks, partitions, subjects
from inferflux.common.contract.errors import InferFluxError, InvalidArgument
from inferflux.common.contract.messages.notices import parse_cancel
from inferflux.common.contract.request_times import set_clock
from inferflux.common.process import logs
from inferflux.common.process.bad_messages import BadMessages
from inferflux.common.process.tasks import Background
from inferflux.v1 import scheduler_pb2, worker_pb2
from inferflux.worker.model import request_log
from inferflux.worker.model.model_host import ModelHost
from inferflux.worker.model.residents import Refused
from inferflux.worker.model.worker_state import WorkerState
from inferflux.worker.transfer.transfers import Transfers

from .checks import check_batch, check_command, check_item
from .heartbeat import Heartbeat

log = logs.get("worker.intake")


class Intake:
    """Checks messages, answers them, and passes on to the model and to the worker's state."""

    def __init__(
        self,
        bus: Bus,
        state: WorkerState,
        model: ModelHost,
        heartbeat: Heartbeat,
        bad: BadMessages,
        transfers: Transfers | None = None,
    ) -> None:
        self._bus = bus
        self._state = state
        self._model = model
        self._heartbeat = heartbeat
        self._bad = bad
        self._transfers = transfers
        self._background = Background()
        self._subscriptions: list[Subscription] = []

    async def listen(self) -> None:
        worker_id = self._state.worker_id
        for subject, handler in (
            (subjects.worker_batch(worker_id), self.on_batch),
            (subjects.worker_probe(worker_id), self.on_probe),
            (subjects.worker_command(worker_id), self.on_command),
            (subjects.CANCEL_ALL, self.on_cancel),
            (subjects.SCHEDULER_LEADER, self.on_leader),
        ):
            self._subscriptions.append(await self._bus.serve(subject, handler))

    async def close(self) -> None:
        """Take no more messages."""
        for subscription in self._subscriptions:
            await subscription.close()
        await self._background.close()

    async def on_probe(self, message: Message) -> None:
        """The scheduler has received no heartbeat for a while."""
        await message.respond(b"")

    async def on_batch(self, message: Message) -> None:
        try:
            batch = checks.decode(worker_pb2.RequestBatch, message.data)
            check_batch(batch)
        except InvalidArgument as error:
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
        if batch.incarnation != self._state.incarnation:
            raise Refused(worker_pb2.REFUSAL_REASON_WRONG_INCARNATION, "this worker has been restarted")
        if not self._accepts(batch.term):
            message = f"term {batch.term} does not count, {self._state.term} has begun"
            raise Refused(worker_pb2.REFUSAL_REASON_OLD_TERM, message)

    def _act_on(self, batch: worker_pb2.RequestBatch, answer: worker_pb2.BatchAccepted) -> None:
        for wanted in batch.deschedule:
            self._model.deschedule(wanted)
        take = self._model.resume if batch.phase == worker_pb2.PHASE_DECODE else self._take_up
        now_ms = time.time_ns() // 1_000_000
        for item in batch.items:
            if batch.created_unix_ms:
                set_clock(item.request, theirs_ms=batch.created_unix_ms, ours_ms=now_ms)
            try:
                _check(item)
                self._check_model(item)
                take(item)
            except Refused as refusal:
                _refuse(answer, item, refusal)
            else:
                answer.accepted_request_ids.append(item.request.request_id)

    def _take_up(self, item: worker_pb2.BatchItem) -> None:
        if self._state.is_draining:
            raise Refused(worker_pb2.REFUSAL_REASON_NOT_READY, "this worker is draining")
        self._model.take_up(item)

    def _check_model(self, item: worker_pb2.BatchItem) -> None:
        if item.request.model != self._model.name:
            raise Refused(worker_pb2.REFUSAL_REASON_UNKNOWN_MODEL, f"only {self._model.name} is here")
        digest = item.request.model_digest
        if digest and digest != self._model.card.digest:
            message = f"{self._model.name} is of another file here"
            raise Refused(worker_pb2.REFUSAL_REASON_UNKNOWN_MODEL, message)

    async def on_command(self, message: Message) -> None:
        try:
            command = checks.decode(worker_pb2.WorkerCommand, message.data)
            check_command(command)
        except InvalidArgument as error:
            self._bad.note("command", error, subject=message.subject)
            return
        if not self._accepts(command.term):
            log.warning("command of a wrong term", term=command.term, latest=self._state.term)
            return
        match command.WhichOneof("command"):
            case "drop":
                self._model.drop(command.drop)
                if self._transfers is not None:
                    self._transfers.drop(command.drop)
            case "deschedule":
                self._model.deschedule(command.deschedule)
            case "take_state" if self._transfers is not None:
                self._transfers.take(command.take_state)
            case "drain":
                self._state.is_draining = True
                await self._heartbeat.beat()
            case "undrain":
                if self._state.undrain():
                    await self._heartbeat.beat()
            case "clear_cache":  # the engine answers between two steps: other commands do not wait for it
                self._background.start(self._clear_cache(message, command.clear_cache))
            case _:
                log.warning("unknown command")

    async def _clear_cache(self, message: Message, clear: scheduler_pb2.ClearCache) -> None:
        answer = scheduler_pb2.ClearedWorker(worker_id=self._state.worker_id)
        try:
            answer.cleared.CopyFrom(await self._model.clear_cache(clear))
        except InferFluxError as error:
            answer.error = error.message
        try:
            await message.respond(answer.SerializeToString())
        except InferFluxError as error:
            log.warning("could not say what was cleared", reason=error.reason)

    async def on_leader(self, message: Message) -> None:
        try:
            notice = checks.decode(worker_pb2.LeaderNotice, message.data)
            partition = partitions.parse(notice.partition)
        except InvalidArgument as error:
            self._bad.note("leader", error, subject=message.subject)
            return
        if partition.has(self._model.name) and self._accepts(notice.term):
            await self._heartbeat.beat()

    async def on_cancel(self, message: Message) -> None:
        try:
            notice = parse_cancel(message.data, message.subject)
        except InvalidArgument as error:
            self._bad.note("cancel", error, subject=message.subject)
            return
        self._model.cancel(notice, time.monotonic())

    def _accepts(self, term: int) -> bool:
        return self._state.accepts(term, time.time_ns() // 1_000_000)


def _check(item: worker_pb2.BatchItem) -> None:
    """Raises Refused when an item cannot be what a scheduler sends."""
    try:
        check_item(item)
    except InvalidArgument as error:
        raise Refused(worker_pb2.REFUSAL_REASON_INVALID, error.message) from None


def _refuse(answer: worker_pb2.BatchAccepted, item: worker_pb2.BatchItem, refusal: Refused) -> None:
    request_log.refused(item, refusal)
    answer.refused.add(request_id=item.request.request_id, reason=refusal.reason, message=str(refusal))
