"""ModelService: which models there are, and having them loaded."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferflux.common.calls.grpc_interceptor import caller_as
from inferflux.common.contract.errors import Unavailable, from_code
from inferflux.common.contract.models import admin_limits
from inferflux.common.contract.models.model_names import allows
from inferflux.common.contract.models.model_sources import model_name_of, parse_source
from inferflux.gateway.models.models import HEARTBEAT_S, ModelRegistry
from inferflux.gateway.operator.admin_audit import ChangeAudit
from inferflux.gateway.operator.scheduler_admin import SchedulerAdmin
from inferflux.gateway.policy.caller import Caller
from inferflux.v1 import model_pb2, model_pb2_grpc

if TYPE_CHECKING:
    import grpc

    Context = grpc.aio.ServicerContext[Any, Any]

# A host that has not told of a job for this long has ended.
_JOB_GONE_S = 10.0


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """Answers from what hosts and workers have reported to this gateway, with models that the caller may use.
    Has the scheduler load and unload them; that is audited.
    """

    def __init__(self, models: ModelRegistry, scheduler: SchedulerAdmin, audit: ChangeAudit) -> None:
        self._models = models
        self._scheduler = scheduler
        self._audit = audit

    async def ListModels(
        self, request: model_pb2.ListModelsRequest, context: Context
    ) -> model_pb2.ListModelsResponse:
        await self._models.settled()
        allowed = caller_as(Caller).models
        models = [m for m in await self._models.all_models() if allows(allowed, m.card.name)]
        return model_pb2.ListModelsResponse(models=models)

    async def GetModel(
        self, request: model_pb2.GetModelRequest, context: Context
    ) -> model_pb2.GetModelResponse:
        model, _ = await self._models.named_for(caller_as(Caller), request.name, field="name")
        return model_pb2.GetModelResponse(model=model)

    async def LoadModel(
        self, request: model_pb2.LoadModelRequest, context: Context
    ) -> model_pb2.LoadModelResponse:
        admin_limits.check_load(request)
        if request.name and not request.path:
            request.name = self._models.resolve(request.name)
        # A name that a model is given takes the requests of that name.
        for name in (request.name or model_name_of(Path(request.path).name), *request.aliases):
            caller_as(Caller).check_model(name)
        about = {
            "model": request.name,
            "path": request.path,
            "mmproj_path": request.mmproj_path,
            "chat_template_path": request.chat_template_path,
        }
        with self._audit.change("LoadModel", **about, host_id=request.host_id):
            return model_pb2.LoadModelResponse(model=await self._scheduler.load_model(request))

    async def UnloadModel(
        self, request: model_pb2.UnloadModelRequest, context: Context
    ) -> model_pb2.UnloadModelResponse:
        admin_limits.check_unload(request)
        request.name = self._models.resolve(request.name)
        caller_as(Caller).check_model(request.name)
        about = {"model": request.name, "host_id": request.host_id, "forget": request.forget}
        with self._audit.change("UnloadModel", **about):
            return model_pb2.UnloadModelResponse(model=await self._scheduler.unload_model(request))

    async def AddAdapter(
        self, request: model_pb2.AddAdapterRequest, context: Context
    ) -> model_pb2.AddAdapterResponse:
        admin_limits.check_add_adapter(request)
        request.model = self._models.resolve(request.model)
        caller_as(Caller).check_model(request.model)
        about = {"model": request.model, "adapter": request.adapter, "path": request.path}
        with self._audit.change("AddAdapter", **about, host_id=request.host_id):
            return model_pb2.AddAdapterResponse(model=await self._scheduler.add_adapter(request))

    async def RemoveAdapter(
        self, request: model_pb2.RemoveAdapterRequest, context: Context
    ) -> model_pb2.RemoveAdapterResponse:
        admin_limits.check_remove_adapter(request)
        request.model = self._models.resolve(request.model)
        caller_as(Caller).check_model(request.model)
        about = {"model": request.model, "adapter": request.adapter, "host_id": request.host_id}
        with self._audit.change("RemoveAdapter", **about):
            return model_pb2.RemoveAdapterResponse(model=await self._scheduler.remove_adapter(request))

    async def Pull(
        self, request: model_pb2.PullRequest, context: Context
    ) -> AsyncIterator[model_pb2.PullResponse]:
        admin_limits.check_pull(request)
        source = parse_source(request.source)
        request.name = request.name or source.name
        caller_as(Caller).check_model(request.name)
        about = {"model": request.name, "source": source.shown, "host_id": request.host_id}
        with self._audit.change("Pull", **about):
            begun = await self._scheduler.pull_model(request)
        async with aclosing(_followed(self._models, begun)) as jobs:
            async for job in jobs:
                yield model_pb2.PullResponse(job=job)

    async def RemoveModel(
        self, request: model_pb2.RemoveModelRequest, context: Context
    ) -> model_pb2.RemoveModelResponse:
        admin_limits.check_stored(request)
        caller_as(Caller).check_model(request.name)
        with self._audit.change("RemoveModel", model=request.name, host_id=request.host_id):
            return model_pb2.RemoveModelResponse(job=await self._scheduler.remove_model(request))

    async def VerifyModel(
        self, request: model_pb2.VerifyModelRequest, context: Context
    ) -> AsyncIterator[model_pb2.VerifyModelResponse]:
        admin_limits.check_stored(request)
        caller_as(Caller).check_model(request.name)
        with self._audit.change("VerifyModel", model=request.name, host_id=request.host_id):
            begun = await self._scheduler.verify_model(request)
        async with aclosing(_followed(self._models, begun)) as jobs:
            async for job in jobs:
                yield model_pb2.VerifyModelResponse(job=job)


async def _followed(
    models: ModelRegistry, job: model_pb2.StoreJob
) -> AsyncGenerator[model_pb2.StoreJob, None]:
    """Yields a job of a host's store whenever it has progressed, at last when it is done.

    Raises:
        Unavailable: its host does not tell of it any more.
        InferFluxError: it has failed.
    """
    seen_s = time.monotonic()
    yield job
    while job.state == model_pb2.STORE_JOB_STATE_RUNNING:
        await models.reports_within(HEARTBEAT_S)
        found = models.hosts.store_job(job.host_id, job.job_id)
        if found is not None:
            seen_s = time.monotonic()
        elif time.monotonic() - seen_s > _JOB_GONE_S:
            message = f"host {job.host_id} does not tell of it any more: a pull can be resumed"
            raise Unavailable(message, reason="HOST_GONE")
        if found is not None and found != job:
            job = found
            if job.state != model_pb2.STORE_JOB_STATE_FAILED:
                yield job
    if job.state == model_pb2.STORE_JOB_STATE_FAILED:
        raise from_code(job.code, job.message, reason=job.reason, field=job.field)
