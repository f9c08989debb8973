"""Bodies of POST /generate and of the websocket to requests, and token chunks as they are, in JSON."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import json_format

from inferflux.api.finish_reasons import name_of
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.prefixes.names import tier_name
from inferflux.v1 import inference_pb2, tokens_pb2

from . import constraints
from .answers import Json, UnnamedEvents, UsageSum, finite
from .bodies import GenerateBody
from .fields import names_used
from .messages import field_names as names_of_messages
from .messages import to_message
from .params import priority_of, to_params
from .served import GENERATE, check_served


def to_request(body: GenerateBody) -> inference_pb2.GenerateRequest | inference_pb2.ChatRequest:
    """The request of a prompt, or of a conversation.

    Raises:
        InvalidArgument: there is not one of prompt and messages.
    """
    check_served(body, GENERATE)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidArgument("one of prompt and messages is needed", field="prompt")
    params = to_params(body, max_tokens=body.max_tokens, logprobs=body.logprobs)
    priority, skips = priority_of(body), bool(body.skip_answer_cache)
    adapter = body.adapter or ""
    if body.messages is not None:
        return inference_pb2.ChatRequest(
            model=body.model,
            messages=[to_message(message, i) for i, message in enumerate(body.messages)],
            params=params,
            priority=priority,
            skip_answer_cache=skips,
            adapter=adapter,
        )
    request = inference_pb2.GenerateRequest(
        model=body.model, params=params, priority=priority, skip_answer_cache=skips, adapter=adapter
    )
    if isinstance(body.prompt, str):
        request.text = body.prompt
    else:
        request.token_ids.CopyFrom(inference_pb2.TokenIds(ids=body.prompt or []))
    return request


def field_names(body: GenerateBody) -> Mapping[str, str]:
    """Map fields that have another name inside to the client's names."""
    return {
        **names_used(body),
        "text": "prompt",
        "token_ids": "prompt",
        **constraints.field_names(body),
        **names_of_messages(body.messages or ()),
    }


class ChunkStream(UnnamedEvents):
    """Token chunks as objects: an offset, token ids, a text; the last one has the reason and the usage."""

    def messages(
        self, _index: int, chunk: tokens_pb2.TokenChunk, _delta: inference_pb2.ChatDelta | None = None
    ) -> list[Json]:
        """The object of a chunk; none for a chunk that says nothing to a client."""
        message = chunk_json(chunk)
        return [message] if message else []

    def last(self) -> list[Json]:
        return []


def chunk_json(chunk: tokens_pb2.TokenChunk) -> Json:
    """A chunk's tokens and its event; empty if it has neither."""
    made: Json = {}
    if chunk.token_ids or chunk.text:
        made |= {"offset": chunk.offset, "token_ids": list(chunk.token_ids), "text": chunk.text}
    if chunk.logprobs:
        made["logprobs"] = [
            _token(one.chosen) | {"top": [_token(other) for other in one.top]} for one in chunk.logprobs
        ]
    match chunk.WhichOneof("event"):
        case "queued":
            made["queued"] = {
                "position": chunk.queued.position,
                "expected_wait_ms": chunk.queued.expected_wait_ms,
            }
        case "started":
            started = chunk.started
            made["started"] = {
                "cached_prompt_tokens": started.cached_prompt_tokens,
                "cached_prompt_tier": tier_name(started.cached_prompt_tier),
            }
        case "finished":
            usage = UsageSum()
            usage.add(0, chunk.finished.usage)
            made["finish_reason"] = name_of(chunk.finished.reason)
            made["usage"] = usage.to_json()
            made["timings"] = json_format.MessageToDict(
                chunk.finished.timings, preserving_proto_field_name=True
            )
    return made


class ChunkAnswer:
    """Chunks to one object."""

    def __init__(self) -> None:
        self._made: Json = {"token_ids": [], "text": ""}

    def add(
        self, _index: int, chunk: tokens_pb2.TokenChunk, _delta: inference_pb2.ChatDelta | None = None
    ) -> None:
        said = chunk_json(chunk)
        self._made["token_ids"].extend(said.pop("token_ids", []))
        self._made["text"] += said.pop("text", "")
        if "logprobs" in said:
            self._made.setdefault("logprobs", []).extend(said.pop("logprobs"))
        for name in ("finish_reason", "usage", "timings"):
            if name in said:
                self._made[name] = said[name]

    def to_json(self) -> Json:
        return self._made


def _token(token: tokens_pb2.TokenLogprob) -> Json:
    return {"token_id": token.token_id, "token": token.text, "logprob": finite(token.logprob)}
