"""Plays the scheduler towards administrators: keeps what it is asked, and says what a test wants said."""

from __future__ import annotations

from inferflux.common.bus import Bus, Message
from inferflux.common.bus.serving import Subscription
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import Aborted, InferFluxError, InvalidArgument, NotFound
from inferflux.v1 import model_pb2, scheduler_pb2


class ScriptedAdmin:
    """One worker and its fairness settings. `close` it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._served: Subscription | None = None
        self.requests: list[scheduler_pb2.SchedulerAdminRequest] = []
        self.worker_id = "worker-1"
        self.fairness = scheduler_pb2.Fairness(high_priority_threshold=5, version=1)
        self.progress = scheduler_pb2.DrainProgress(state=scheduler_pb2.WORKER_STATE_READY)
        self.cleared = scheduler_pb2.ClearedWorker()
        # Answers with this instead, once set.
        self.error: InferFluxError | None = None
        self.raw: bytes | None = None
        self.is_silent = False

    async def start(self) -> None:
        self._served = await self._bus.serve(subjects.SCHEDULER_ADMIN, self._on_request)
        await self._bus.flush()

    async def close(self) -> None:
        if self._served is not None:
            await self._served.close()
            self._served = None
            await self._bus.flush()

    def drains(self, residents: int, *, is_drained: bool = False) -> None:
        """Be draining from now on."""
        self.progress = scheduler_pb2.DrainProgress(
            residents=residents, is_drained=is_drained, state=scheduler_pb2.WORKER_STATE_DRAINING
        )

    async def _on_request(self, message: Message) -> None:
        request = scheduler_pb2.SchedulerAdminRequest.FromString(message.data)
        self.requests.append(request)
        if self.is_silent:
            return
        if self.raw is not None:
            await message.respond(self.raw)
            return
        try:
            reply = self._answer(request)
        except InferFluxError as error:
            field = error.field if isinstance(error, InvalidArgument) else ""
            refused = scheduler_pb2.AdminRefusal(
                code=error.code, field=field, message=error.message, reason=error.reason
            )
            reply = scheduler_pb2.SchedulerAdminReply(refused=refused)
        await message.respond(reply.SerializeToString())

    def _answer(self, request: scheduler_pb2.SchedulerAdminRequest) -> scheduler_pb2.SchedulerAdminReply:
        if self.error is not None:
            raise self.error
        if request.HasField("set_fairness"):
            change = request.set_fairness
            if change.version not in (0, self.fairness.version):
                raise Aborted("the fairness settings were changed meanwhile", reason="VERSION_MISMATCH")
            for field, value in change.ListFields():
                if field.name not in ("reset", "version"):
                    setattr(self.fairness, field.name, value)
            self.fairness.version += 1
        if request.HasField("get_fairness") or request.HasField("set_fairness"):
            return scheduler_pb2.SchedulerAdminReply(fairness=self.fairness)
        adapter = request.add_adapter.model or request.remove_adapter.model
        if name := request.load_model.name or request.unload_model.name or adapter:
            card = model_pb2.ModelCard(name=name)
            return scheduler_pb2.SchedulerAdminReply(model=model_pb2.Model(card=card))
        if (
            request.HasField("pull_model")
            or request.HasField("verify_model")
            or request.HasField("remove_model")
        ):
            done = model_pb2.STORE_JOB_STATE_DONE
            job = model_pb2.StoreJob(
                job_id="job", host_id="host", state=done, kind=model_pb2.STORE_JOB_KIND_PULL
            )
            return scheduler_pb2.SchedulerAdminReply(store_job=job)
        drained = request.drain.worker_id or request.get_drain.worker_id
        worker_id = drained or request.clear_cache.worker_id or request.move.worker_id
        if worker_id != self.worker_id:
            raise NotFound(f"there is no worker {worker_id}")
        if request.HasField("move"):
            moved = scheduler_pb2.MovedRequest(
                tenant=request.move.tenant or "acme",
                request_id=request.move.request_id,
                from_worker_id="worker-0",
                worker_id=worker_id,
                tokens=1234,
                took_ms=250,
            )
            return scheduler_pb2.SchedulerAdminReply(moved=moved)
        if request.HasField("clear_cache"):
            self.cleared.worker_id = worker_id
            return scheduler_pb2.SchedulerAdminReply(cleared=self.cleared)
        return scheduler_pb2.SchedulerAdminReply(drain=self.progress)
