"""A worker on a real bus that does what the test says, when it says so."""

from __future__ import annotations

import asyncio
import uuid

from google.protobuf.message import DecodeError

from inferflux.common.bus import Bus, Message
from inferflux.common.contract import partitions, subjects
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2

MODEL = "demo"
DIGEST = "d" * 64


class ScriptedWorker:
    """Accepts batches and heartbeats every `interval_s`; tokens are emitted by `emit` alone.

    Token `i` is `i`, its text `i` and a space.
    """

    def __init__(
        self, bus: Bus, worker_id: str, *, slots: int = 2, kv_cells: int = 1000, model: str = MODEL
    ) -> None:
        self.bus = bus
        self.model = model
        self.worker_id = worker_id
        self.incarnation = uuid.uuid4().hex
        self.slots = slots
        self.kv_cells = kv_cells
        self.items: dict[str, worker_pb2.BatchItem] = {}
        self.emitted: dict[str, int] = {}
        self.ended: list[scheduler_pb2.RequestEpoch] = []
        self.dropped: list[str] = []
        self.taken = asyncio.Event()
        # The latest lease term seen, and those of every batch that came, and of those refused.
        self.term = 0
        self.batch_terms: list[int] = []
        self.refused_terms: list[int] = []
        self.role = scheduler_pb2.WORKER_ROLE_UNSPECIFIED
        self.is_mute = False
        self.is_draining = False
        self._subscriptions: list[object] = []
        self._beating: asyncio.Task[None] | None = None

    async def start(self, interval_s: float = 0.3) -> None:
        self._subscriptions = [
            await self.bus.serve(subjects.worker_batch(self.worker_id), self._on_batch),
            await self.bus.serve(subjects.worker_probe(self.worker_id), self._on_probe),
            await self.bus.serve(subjects.worker_command(self.worker_id), self._on_command),
            await self.bus.serve(subjects.CANCEL_ALL, self._on_cancel),
            await self.bus.serve(subjects.SCHEDULER_LEADER, self._on_leader),
        ]
        await self.bus.flush()
        self._beating = asyncio.create_task(self._beat_for_ever(interval_s))

    async def vanish(self) -> None:
        """As if killed: silent from now on."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
            self._beating = None
        for subscription in self._subscriptions:
            await subscription.close()  # type: ignore[attr-defined]
        self._subscriptions = []

    def status(self) -> scheduler_pb2.WorkerStatus:
        status = scheduler_pb2.WorkerStatus(
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            state=(
                scheduler_pb2.WORKER_STATE_DRAINING if self.is_draining else scheduler_pb2.WORKER_STATE_READY
            ),
            role=self.role,
            slots=self.slots,
            kv_cells=self.kv_cells,
            term=self.term,
            finished=self.ended,
        )
        status.models.add(name=self.model, digest=DIGEST, context_length=512)
        for item in self.items.values():
            status.residents.add(
                request_id=item.request.request_id,
                tenant=item.request.tenant,
                epoch=item.request.epoch,
                run=item.run,
                residence=scheduler_pb2.RESIDENCE_RUNNING,
                slot=item.slot,
            )
        return status

    async def has(self, request_id: str, timeout_s: float = 10.0) -> worker_pb2.BatchItem:
        """Wait until the request is resident."""
        async with asyncio.timeout(timeout_s):
            while request_id not in self.items:
                self.taken.clear()
                await self.taken.wait()
        return self.items[request_id]

    async def emit(self, request_id: str, tokens: int, *, is_last: bool = False) -> None:
        item = self.items[request_id]
        first = self.emitted.get(request_id, len(item.request.generated_token_ids))
        ids = range(first, first + tokens)
        chunk = tokens_pb2.TokenChunk(
            request_id=request_id,
            epoch=item.request.epoch,
            offset=first,
            token_ids=ids,
            text="".join(f"{i} " for i in ids),
        )
        self.emitted[request_id] = first + tokens
        if is_last:
            chunk.finished.reason = generation_pb2.FINISH_REASON_STOP
        await self._publish(item.request, chunk)
        if is_last:
            await self._end(item.request, "stop")

    async def tell(self, event: scheduler_pb2.WorkerEvent) -> None:
        event.worker_id, event.incarnation = self.worker_id, self.incarnation
        await self.bus.publish(subjects.SCHEDULER_EVENTS, event.SerializeToString())

    async def die_engine(self, killer_image_id: str = "") -> None:
        event = scheduler_pb2.WorkerEvent()
        event.engine_died.killer_image_id = killer_image_id
        event.engine_died.message = "killed by the test"
        for item in self.items.values():
            event.engine_died.residents.add(
                request_id=item.request.request_id, tenant=item.request.tenant, epoch=item.request.epoch
            )
        self.items.clear()
        self.emitted.clear()
        await self.tell(event)

    async def _end(self, request: scheduler_pb2.InferenceRequest, outcome: str) -> None:
        del self.items[request.request_id]
        generated = self.emitted.pop(request.request_id, 0)
        self.ended.append(
            scheduler_pb2.RequestEpoch(
                request_id=request.request_id, tenant=request.tenant, epoch=request.epoch
            )
        )
        if not self.is_mute:
            event = scheduler_pb2.WorkerEvent()
            event.request_finished.request_id = request.request_id
            event.request_finished.tenant = request.tenant
            event.request_finished.epoch = request.epoch
            event.request_finished.outcome = outcome
            event.request_finished.usage.completion_tokens = generated
            await self.tell(event)

    async def _publish(self, request: scheduler_pb2.InferenceRequest, chunk: tokens_pb2.TokenChunk) -> None:
        subject = subjects.tokens(request.tenant, request.request_id)
        await self.bus.publish(subject, chunk.SerializeToString())

    async def _beat_for_ever(self, interval_s: float) -> None:
        while True:
            await self._beat()
            await asyncio.sleep(interval_s)

    async def _beat(self) -> None:
        subject = subjects.worker_status(self.worker_id)
        await self.bus.publish(subject, self.status().SerializeToString())

    async def _on_leader(self, message: Message) -> None:
        notice = worker_pb2.LeaderNotice.FromString(message.data)
        if not partitions.parse(notice.partition).has(self.model):
            return
        self.term = max(self.term, notice.term)
        await self._beat()

    async def _on_probe(self, message: Message) -> None:
        await message.respond(b"")

    async def _on_batch(self, message: Message) -> None:
        batch = worker_pb2.RequestBatch.FromString(message.data)
        answer = worker_pb2.BatchAccepted(batch_id=batch.batch_id)
        is_old = batch.term < self.term
        (self.refused_terms if is_old else self.batch_terms).append(batch.term)
        self.term = max(self.term, batch.term)
        for item in batch.items:
            request_id = item.request.request_id
            if is_old:
                reason = worker_pb2.REFUSAL_REASON_OLD_TERM
                answer.refused.add(request_id=request_id, reason=reason, message="old term")
                continue
            self.items[request_id] = item
            answer.accepted_request_ids.append(request_id)
        self.taken.set()
        await message.respond(answer.SerializeToString())

    async def _on_command(self, message: Message) -> None:
        command = worker_pb2.WorkerCommand.FromString(message.data)
        if command.HasField("drop"):
            self.dropped.append(command.drop.request_id)
            self.items.pop(command.drop.request_id, None)
        if command.HasField("drain") or command.HasField("undrain"):
            self.is_draining = command.HasField("drain")

    async def _on_cancel(self, message: Message) -> None:
        notice = scheduler_pb2.CancelNotice()
        try:
            notice.ParseFromString(message.data)
        except DecodeError:
            return
        item = self.items.get(notice.request_id)
        if item is not None and item.request.tenant == notice.tenant:
            chunk = tokens_pb2.TokenChunk(
                request_id=notice.request_id,
                epoch=item.request.epoch,
                offset=self.emitted.get(notice.request_id, 0),
            )
            chunk.finished.reason = generation_pb2.FINISH_REASON_CANCELLED
            await self._publish(item.request, chunk)
            await self._end(item.request, "cancelled")
