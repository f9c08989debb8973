"""ModelService: which models are served. Needs the scope `models`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferflux.common import checks
from inferflux.common.grpc_interceptor import caller_as
from inferflux.common.model_names import allows
from inferflux.v1 import model_pb2, model_pb2_grpc

from .caller import Caller
from .models import ModelRegistry

if TYPE_CHECKING:
    import grpc

    Context = grpc.aio.ServicerContext[Any, Any]


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """Answers from the heartbeats this gateway has received, with models that the caller may use."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

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
        checks.check_model_name(request.name, field="name")
        caller_as(Caller).check_model(request.name)
        await self._models.settled()
        return model_pb2.GetModelResponse(model=await self._models.get(request.name))
