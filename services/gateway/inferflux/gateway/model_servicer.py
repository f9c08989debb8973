"""ModelService: which models are served. Needs the scope `models`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferflux.common.grpc_interceptor import current_request_id
from inferflux.v1 import model_pb2, model_pb2_grpc

from . import validation
from .admission import Admission
from .models import ModelRegistry

if TYPE_CHECKING:
    import grpc

    Context = grpc.aio.ServicerContext[Any, Any]

SCOPE = "models"


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """Answers from the heartbeats this gateway has heard."""

    def __init__(self, admission: Admission, models: ModelRegistry) -> None:
        self._admission = admission
        self._models = models

    async def ListModels(
        self, request: model_pb2.ListModelsRequest, context: Context
    ) -> model_pb2.ListModelsResponse:
        await self._admit(context)
        await self._models.settled()
        return model_pb2.ListModelsResponse(models=self._models.all_models())

    async def GetModel(
        self, request: model_pb2.GetModelRequest, context: Context
    ) -> model_pb2.GetModelResponse:
        await self._admit(context, request.name)
        validation.check_model_name(request.name, field="name")
        await self._models.settled()
        return model_pb2.GetModelResponse(model=self._models.get(request.name))

    async def _admit(self, context: Context, model: str = "") -> None:
        await self._admission.admit(
            context.invocation_metadata(), scope=SCOPE, request_id=current_request_id(), model=model
        )
