"""ModelService: which models there are, and having them loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferflux.common import admin_limits, checks
from inferflux.common.grpc_interceptor import caller_as
from inferflux.common.model_names import allows
from inferflux.v1 import model_pb2, model_pb2_grpc

from .admin_audit import ChangeAudit
from .caller import Caller
from .models import ModelRegistry
from .scheduler_admin import SchedulerAdmin

if TYPE_CHECKING:
    import grpc

    Context = grpc.aio.ServicerContext[Any, Any]


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
        await self._models.settled()
        name = self._models.resolve(request.name)
        checks.check_model_name(name, field="name")
        caller_as(Caller).check_model(name)
        return model_pb2.GetModelResponse(model=await self._models.get(name))

    async def LoadModel(
        self, request: model_pb2.LoadModelRequest, context: Context
    ) -> model_pb2.LoadModelResponse:
        admin_limits.check_load(request)
        if request.name and not request.path:
            request.name = self._models.resolve(request.name)
        # A name that a model is given takes the requests of that name.
        for name in (request.name or Path(request.path).name.removesuffix(".gguf"), *request.aliases):
            caller_as(Caller).check_model(name)
        about = {"model": request.name, "path": request.path, "host_id": request.host_id}
        with self._audit.change("LoadModel", **about):
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
