"""Bad input of every kind: a clear status that names the field, and nothing reaches the queue."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest
from harness.gateway import CONTEXT, VOCABULARY, Backend, Client, GatewayProcess

from inferflux.common.calls import grpc_client
from inferflux.common.contract import errors
from inferflux.common.contract.errors import InferFluxError, InvalidArgument, NotFound, Unauthenticated
from inferflux.v1 import generation_pb2, inference_pb2

Params = generation_pb2.GenerationParams
Sampling = generation_pb2.SamplingParams


def user(content: str = "hi", role: str = "user") -> inference_pb2.ChatMessage:
    return inference_pb2.ChatMessage(role=role, content=content)


BAD_PARAMS: dict[str, Params] = {
    "params.max_tokens": Params(max_tokens=0),
    "params.stop": Params(stop=[f"stop {i}" for i in range(10_000)]),
    "params.stop[1]": Params(stop=["a", ""]),
    "params.stop[0]": Params(stop=["a" * 257]),
    "params.stop_token_ids[1]": Params(stop_token_ids=[0, VOCABULARY]),
    "params.stop_token_ids": Params(stop_token_ids=[1] * 65),
    "params.sampling.temperature": Params(sampling=Sampling(temperature=math.nan)),
    "params.sampling.top_k": Params(sampling=Sampling(top_k=-1)),
    "params.sampling.top_p": Params(sampling=Sampling(top_p=0)),
    "params.sampling.min_p": Params(sampling=Sampling(min_p=1.01)),
    "params.sampling.repeat_penalty": Params(sampling=Sampling(repeat_penalty=0)),
    "params.sampling.frequency_penalty": Params(sampling=Sampling(frequency_penalty=-2.1)),
    "params.sampling.presence_penalty": Params(sampling=Sampling(presence_penalty=math.inf)),
    "params.sampling.penalty_last_n": Params(sampling=Sampling(penalty_last_n=2**31 - 1)),
    "params.sampling.logit_bias[2048]": Params(sampling=Sampling(logit_bias={VOCABULARY: 1.0})),
    "params.sampling.logit_bias[3]": Params(sampling=Sampling(logit_bias={3: -math.inf})),
    "params.sampling.logprobs": Params(sampling=Sampling(logprobs=21)),
}


async def refused(backend: Backend, stream: Any) -> InferFluxError:
    """The error of a call that must not have put anything into the queue."""
    before = set(backend.jobs)
    error = await stream.error()
    assert set(backend.jobs) == before
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize("field", BAD_PARAMS)
async def test_bad_parameters_are_named(client: Client, backend: Backend, field: str) -> None:
    error = await refused(backend, client.generate(params=BAD_PARAMS[field]))
    assert isinstance(error, InvalidArgument)
    assert error.field == field


@pytest.mark.parametrize("max_tokens", [-1, 0])
async def test_bad_max_tokens_are_told_the_range(client: Client, backend: Backend, max_tokens: int) -> None:
    error = await refused(backend, client.chat(params=Params(max_tokens=max_tokens)))
    assert isinstance(error, InvalidArgument)
    assert error.field == "params.max_tokens"
    assert f"from 1 to {CONTEXT}" in error.message


@pytest.mark.parametrize("temperature", [math.inf, -math.inf, -0.1, 100.5])
async def test_bad_temperatures_are_refused(client: Client, backend: Backend, temperature: float) -> None:
    params = Params(sampling=Sampling(temperature=temperature))
    error = await refused(backend, client.generate(params=params))
    assert isinstance(error, InvalidArgument)
    assert error.field == "params.sampling.temperature"


BAD_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [user(), user(role="robot")]}, "messages[1].role"),
    ({"messages": [user(role="")]}, "messages[0].role"),
    ({"messages": [user("x" * (5 << 20))]}, "messages"),
    ({"messages": [user("x " * 20_000)]}, "messages"),
    ({"model": "x" * 1000}, "model"),
    ({"priority": 101}, "priority"),
    ({"priority": -(2**31)}, "priority"),
]


async def test_without_a_name_the_only_model_is_meant(client: Client, backend: Backend) -> None:
    request_id = f"unnamed-{uuid.uuid4().hex[:8]}"
    stream = client.generate(request_id, model="")
    if len(await client.model_names()) == 1:
        await backend.finish(await backend.job(request_id), n=1)
        await stream.rest()
    else:  # other tests serve models too
        error = await stream.error()
        assert isinstance(error, InvalidArgument)
        assert error.field == "model"


@pytest.mark.parametrize(("fields", "field"), BAD_CHATS, ids=range(len(BAD_CHATS)))
async def test_bad_chats_are_refused(
    client: Client, backend: Backend, fields: dict[str, Any], field: str
) -> None:
    error = await refused(backend, client.chat(**fields))
    assert isinstance(error, InvalidArgument)
    assert error.field == field


BAD_PROMPTS: list[tuple[dict[str, Any], str]] = [
    ({"text": ""}, "text"),
    ({"text_bytes": b""}, "text_bytes"),
    ({"text_bytes": b"caf\xe9"}, "text_bytes"),
    ({"text": "x" * (5 << 20)}, "text"),
    ({"token_ids": {"ids": []}}, "token_ids"),
    ({"token_ids": {"ids": [1, VOCABULARY]}}, "token_ids.ids[1]"),
    ({"token_ids": {"ids": [-1]}}, "token_ids.ids[0]"),
    ({"token_ids": {"ids": [1] * CONTEXT}}, "token_ids"),
    ({"parts": {"parts": []}}, "parts"),
    ({"parts": {"parts": [{}]}}, "parts.parts[0]"),
    ({"parts": {"parts": [{"text": "a"}, {"image": {"data": b"x"}}]}}, "parts.parts[1].image"),
    ({"parts": {"parts": [{"text": "a"}]}, "suffix": "b"}, "suffix"),
]


@pytest.mark.parametrize(("fields", "field"), BAD_PROMPTS, ids=range(len(BAD_PROMPTS)))
async def test_bad_prompts_are_refused(
    client: Client, backend: Backend, fields: dict[str, Any], field: str
) -> None:
    error = await refused(backend, client.generate(**fields))
    assert isinstance(error, InvalidArgument)
    assert error.field == field


async def test_a_request_without_prompt_is_refused(gateway: GatewayProcess, client: Client) -> None:
    request = inference_pb2.GenerateRequest(model="demo")
    call = gateway.inference.Generate(request, metadata=grpc_client.outgoing(api_key=client.key))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = errors.from_rpc(caught.value)
    assert isinstance(error, InvalidArgument)
    assert error.field == "prompt"


async def test_a_prompt_over_the_context_is_told_both_numbers(client: Client, backend: Backend) -> None:
    error = await refused(backend, client.generate(token_ids={"ids": [1] * 700}))
    assert "700" in error.message
    assert str(CONTEXT) in error.message
    error = await refused(backend, client.generate(text="one two three " * 300))
    assert str(CONTEXT) in error.message


async def test_a_prompt_of_five_megabytes_is_told_both_numbers(client: Client, backend: Backend) -> None:
    error = await refused(backend, client.generate(text="word " * (1 << 20)))
    assert str(5 << 20) in error.message
    assert str(4 << 20) in error.message


async def test_invalid_utf8_in_a_text_field_is_named(gateway: GatewayProcess, client: Client) -> None:
    message = b"\x0a\x04user" + b"\x12\x01\xff"  # role, content
    chat: Any = gateway.channel.unary_stream("/inferflux.v1.InferenceService/Chat")
    call = chat(b"\x0a\x04demo" + b"\x12\x09" + message, metadata=grpc_client.outgoing(api_key=client.key))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = errors.from_rpc(caught.value)
    assert isinstance(error, InvalidArgument)
    assert error.field == "messages[0].content"


async def test_an_unknown_model_is_not_found(client: Client, backend: Backend) -> None:
    error = await refused(backend, client.chat(model="unknown's"))
    assert isinstance(error, NotFound)
    assert "unknown's" in error.message


@pytest.mark.parametrize("request_id", ["a b", "x" * 65, "a.b", "*"])
async def test_a_malformed_request_id_is_refused(client: Client, backend: Backend, request_id: str) -> None:
    error = await refused(backend, client.generate(request_id))
    assert isinstance(error, InvalidArgument)
    assert error.field == "x-request-id"


CALLS: list[Callable[[Client], Any]] = [
    lambda client: client.chat(),
    lambda client: client.generate(),
    lambda client: client.resume("any", 0),
]


@pytest.mark.parametrize("call", CALLS, ids=["Chat", "Generate", "Resume"])
@pytest.mark.parametrize("secret", ["", "nonsense", "ifx_" + "A" * 43], ids=["none", "malformed", "unknown"])
async def test_no_key_and_wrong_keys_are_refused(
    gateway: GatewayProcess, backend: Backend, call: Callable[[Client], Any], secret: str
) -> None:
    assert isinstance(await refused(backend, call(Client(gateway, secret))), Unauthenticated)


async def test_an_unauthenticated_caller_learns_nothing_else(
    gateway: GatewayProcess, backend: Backend
) -> None:
    stranger = Client(gateway, "ifx_" + "A" * 43)
    for stream in (
        stranger.chat(model="unknown"),
        stranger.chat(messages=[]),
        stranger.generate(text="x" * (5 << 20)),
    ):
        assert isinstance(await refused(backend, stream), Unauthenticated)
