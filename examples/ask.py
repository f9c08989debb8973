"""A request whose answer goes by unread: for the examples that read its tokens another way."""

from __future__ import annotations

import sys

import grpc
from local_stack import setting

from inferflux.v1 import (
    generation_pb2,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)


async def ask(request_id: str, model: str, prompt: str) -> None:
    """Make a chat request under an id of our own, and stay until it ends: hanging up would cancel it.

    Without a model, the first one that is served is asked.
    """
    metadata = (("authorization", f"Bearer {setting('INFERFLUX_API_KEY')}"), ("x-request-id", request_id))
    async with grpc.aio.insecure_channel(setting("INFERFLUX_ENDPOINT")) as channel:
        if not model:
            models = model_pb2_grpc.ModelServiceStub(channel)
            served = await models.ListModels(model_pb2.ListModelsRequest(), metadata=metadata[:1])
            model = served.models[0].card.name if served.models else sys.exit("no model is served at present")
        request = inference_pb2.ChatRequest(
            model=model,
            messages=[inference_pb2.ChatMessage(role="user", content=prompt)],
            params=generation_pb2.GenerationParams(max_tokens=200),
        )
        call = inference_pb2_grpc.InferenceServiceStub(channel).Chat(request, metadata=metadata)
        try:
            async for _ in call:
                pass
        finally:
            call.cancel()
