"""AdminService: what an operator changes of the whole. Needs the scope `cluster`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from inferflux.common.contract.errors import NotFound, Unavailable
from inferflux.common.contract.models import admin_limits
from inferflux.gateway.operator.admin_audit import ChangeAudit
from inferflux.gateway.operator.cache_clearing import CacheClearing
from inferflux.gateway.operator.drain_watch import DrainWatch
from inferflux.gateway.operator.scheduler_admin import SchedulerAdmin
from inferflux.v1 import admin_pb2, admin_pb2_grpc, scheduler_pb2

if TYPE_CHECKING:
    import grpc.aio

    Context = grpc.aio.ServicerContext[Any, Any]

_POLL_INTERVAL_S = 0.1
# While it watches: a new leader has to take over, and to receive its heartbeat.
_PATIENCE_S = 10.0


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Checks what is asked for and passes it on to the scheduler. What changes something is audited."""

    def __init__(self, scheduler: SchedulerAdmin, clearing: CacheClearing, audit: ChangeAudit) -> None:
        self._scheduler = scheduler
        self._clearing = clearing
        self._audit = audit

    async def GetFairness(
        self, request: admin_pb2.GetFairnessRequest, context: Context
    ) -> admin_pb2.GetFairnessResponse:
        return admin_pb2.GetFairnessResponse(fairness=await self._scheduler.fairness())

    async def SetFairness(
        self, request: admin_pb2.SetFairnessRequest, context: Context
    ) -> admin_pb2.SetFairnessResponse:
        admin_limits.check_fairness(request.change)
        change = {field.name: value for field, value in request.change.ListFields()}
        if (version := change.pop("version", 0)) != 0:
            change["if_version"] = version
        with self._audit.change("SetFairness", **change) as line:
            fairness = await self._scheduler.set_fairness(request.change)
            line["version"] = fairness.version
        return admin_pb2.SetFairnessResponse(fairness=fairness)

    async def DrainWorker(
        self, request: admin_pb2.DrainWorkerRequest, context: Context
    ) -> AsyncIterator[admin_pb2.DrainWorkerResponse]:
        after_ms = request.hand_over_after_ms if request.HasField("hand_over_after_ms") else None
        admin_limits.check_worker_id(request.worker_id)
        admin_limits.check_hand_over(after_ms)
        with self._audit.change("DrainWorker", worker_id=request.worker_id, hand_over_after_ms=after_ms):
            progress = await self._scheduler.drain(request.worker_id, hand_over_after_ms=after_ms)
        clock = asyncio.get_running_loop().time
        watch = DrainWatch()
        while True:
            if watch.take(progress, clock()):
                yield admin_pb2.DrainWorkerResponse(progress=progress)
            if watch.is_over:
                return
            await asyncio.sleep(_POLL_INTERVAL_S)
            progress = await self._progress(request.worker_id)

    async def UndrainWorker(
        self, request: admin_pb2.UndrainWorkerRequest, context: Context
    ) -> admin_pb2.UndrainWorkerResponse:
        admin_limits.check_worker_id(request.worker_id)
        with self._audit.change("UndrainWorker", worker_id=request.worker_id):
            progress = await self._scheduler.drain(request.worker_id, undo=True)
        return admin_pb2.UndrainWorkerResponse(progress=progress)

    async def MoveRequest(
        self, request: admin_pb2.MoveRequestRequest, context: Context
    ) -> admin_pb2.MoveRequestResponse:
        admin_limits.check_move(request)
        about = {"moved_request_id": request.request_id, "worker_id": request.worker_id}
        with self._audit.change("MoveRequest", of_tenant=request.tenant, **about) as line:
            moved = await self._scheduler.move(
                scheduler_pb2.MoveRequest(
                    tenant=request.tenant, request_id=request.request_id, worker_id=request.worker_id
                )
            )
            line["from_worker_id"] = moved.from_worker_id
        return admin_pb2.MoveRequestResponse(moved=moved)

    async def ClearCache(
        self, request: admin_pb2.ClearCacheRequest, context: Context
    ) -> admin_pb2.ClearCacheResponse:
        admin_limits.check_clear(request)
        asked = {field.name: value for field, value in request.ListFields() if field.name != "tenant"}
        with self._audit.change("ClearCache", of_tenant=request.tenant, **asked) as line:
            response = await self._clearing.clear(request)
            workers = [worker.cleared for worker in response.workers]
            line["cleared_cells"] = sum(cleared.cells for cleared in workers)
            line["cleared_bytes"] = sum(cleared.host_bytes + cleared.disk_bytes for cleared in workers)
            line["cleared_answers"] = response.answers.answers
            line["failed_workers"] = [worker.worker_id for worker in response.workers if worker.error]
        return response

    async def _progress(self, worker_id: str) -> scheduler_pb2.DrainProgress:
        """Progress of a worker's drain, from the scheduler that leads now.

        Raises:
            NotFound: the worker is gone.
            Unavailable: no scheduler has answered for a while.
        """
        clock = asyncio.get_running_loop().time
        give_up_s = clock() + _PATIENCE_S
        while True:
            try:
                return await self._scheduler.drain_progress(worker_id)
            except Unavailable:
                if clock() >= give_up_s:
                    raise
            except NotFound:
                if clock() >= give_up_s:
                    message = f"worker {worker_id} went away while it was draining"
                    raise NotFound(message, reason="WORKER_GONE") from None
            await asyncio.sleep(_POLL_INTERVAL_S)
