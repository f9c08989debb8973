"""A gateway's front that loses a token stream at a certain token, however its chunks are put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from inferflux.v1 import inference_pb2, inference_pb2_grpc

# What a call has of its own.
_OWN = ("user-agent", "grpc-")


@dataclass
class CutStream:
    """What a client calls in place of the gateway, for Chat alone."""

    endpoint: str
    has_cut: bool = False


@asynccontextmanager
async def cut_stream(endpoint: str, *, after: int) -> AsyncIterator[CutStream]:
    """Passes a chat on to the gateway at `endpoint`, and at most `after` tokens back: then the call ends as
    gRPC ends one whose connection is lost. The end of a stream never passes."""
    server = grpc.aio.server()
    cut = CutStream(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    async with grpc.aio.insecure_channel(endpoint) as channel:
        gateway = inference_pb2_grpc.InferenceServiceStub(channel)

        async def chat(request: inference_pb2.ChatRequest, context: Any) -> AsyncIterator[bytes]:
            metadata = tuple(pair for pair in context.invocation_metadata() if not pair[0].startswith(_OWN))
            call = gateway.Chat(request, metadata=metadata)
            while isinstance(response := await call.read(), inference_pb2.ChatResponse):
                chunk = response.chunk
                # A busy gateway merges chunks: one that reaches beyond the cut is lost whole.
                if chunk.offset + len(chunk.token_ids) > after or chunk.HasField("finished"):
                    call.cancel()
                    cut.has_cut = True
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection is lost")
                yield response.SerializeToString()

        handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
            chat, request_deserializer=inference_pb2.ChatRequest.FromString
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("inferflux.v1.InferenceService", {"Chat": handler}),)
        )
        await server.start()
        try:
            yield cut
        finally:
            await server.stop(None)
