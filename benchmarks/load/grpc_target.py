"""InferFlux under load, through grpcio as any Python service would call it."""

from __future__ import annotations

import time

import grpc
import grpc.aio

from inferflux.common.calls import grpc_client
from inferflux.v1 import (
    generation_pb2,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    tokens_pb2,
)

from .prompts import Prompt
from .sampling import GREEDY, Sampling
from .trace import Trace

_Call = grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]


class GrpcTarget:
    """A gateway at host:port."""

    def __init__(self, address: str, *, model: str, api_key: str, sampling: Sampling = GREEDY) -> None:
        self._channel = grpc_client.channel(address.removeprefix("grpc://"))
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._models = model_pb2_grpc.ModelServiceStub(self._channel)
        self._metadata = grpc_client.outgoing(api_key=api_key)
        self._model = model
        self._sampling = sampling
        # The worker stamps tokens with the time of day; arrivals are taken from the finer clock.
        self._wall_s = time.time() - time.perf_counter()

    async def vocabulary_size(self) -> int:
        """Raises AioRpcError when the model is not served."""
        reply = await self._models.GetModel(
            model_pb2.GetModelRequest(name=self._model), metadata=self._metadata, timeout=10
        )
        return reply.model.card.vocabulary_size

    async def generate(self, prompt: Prompt, max_tokens: int, trace: Trace) -> None:
        call = self._inference.Generate(
            generate_request(self._model, prompt, max_tokens, sampling=self._sampling),
            metadata=self._metadata,
        )
        try:
            await self._read(call, trace)
        except grpc.aio.AioRpcError as error:
            trace.error = f"{error.code().name}: {error.details()}"
        finally:
            # grpc.aio never cancels an RPC whose call object is merely dropped.
            call.cancel()

    async def _read(self, call: _Call, trace: Trace) -> None:
        read, clock = call.read, time.perf_counter
        while isinstance(response := await read(), inference_pb2.GenerateResponse):
            take_chunk(response.chunk, trace, clock(), self._wall_s)

    async def close(self) -> None:
        await self._channel.close()


def generate_request(
    model: str, prompt: Prompt, max_tokens: int, *, priority: int = 0, sampling: Sampling = GREEDY
) -> inference_pb2.GenerateRequest:
    """A request of exactly `max_tokens` tokens."""
    request = inference_pb2.GenerateRequest(
        model=model,
        params=generation_pb2.GenerationParams(
            sampling=_sampling_params(sampling), max_tokens=max_tokens, ignore_eos=True
        ),
        priority=priority,
    )
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    return request


def _sampling_params(sampling: Sampling) -> generation_pb2.SamplingParams:
    if sampling.is_greedy:
        return generation_pb2.SamplingParams(temperature=0.0)
    return generation_pb2.SamplingParams(
        temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, min_p=0.0
    )


def take_chunk(chunk: tokens_pb2.TokenChunk, trace: Trace, now_s: float, wall_s: float) -> None:
    """Note a chunk that arrived at `now_s`.

    Args:
        wall_s: what to add to `now_s` for the time of day, which the worker stamps its tokens with.
    """
    if chunk.token_ids:
        trace.arrivals_s.append(now_s)
        trace.tokens += len(chunk.token_ids)
        if chunk.sampled_unix_us:
            trace.sampled_to_received_s.append(now_s + wall_s - chunk.sampled_unix_us / 1e6)
    if chunk.HasField("failed"):
        trace.error = f"{chunk.failed.reason}: {chunk.failed.message}"
