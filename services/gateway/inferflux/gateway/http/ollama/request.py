"""Bodies of Ollama's API to requests. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.errors.errors import unsupported
from inferflux.gateway.http.openai import tools
from inferflux.gateway.http.openai.bodies import JsonSchema, ResponseFormat, SamplingBody
from inferflux.gateway.http.openai.embeddings import to_embed
from inferflux.gateway.http.openai.params import own_fields, to_params
from inferflux.gateway.http.openai.served import OLLAMA, check_served
from inferflux.gateway.http.openai.text_bodies import EmbeddingsBody
from inferflux.gateway.images.inputs import from_base64
from inferflux.v1 import embedding_pb2, generation_pb2, inference_pb2

from .bodies import (
    OllamaCall,
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaMessage,
    OllamaOptions,
    OllamaPromptBody,
)

_LATEST = ":latest"
_LEVELS = ("low", "medium", "high")
_OPTION_NAMES: Mapping[str, str] = {
    "max_tokens": "options.num_predict",
    "penalty_last_n": "options.repeat_last_n",
    "logprobs": "top_logprobs",
    "constraint.tool_calls.functions": "tools",
    "constraint.tool_calls": "tools",
    "constraint": "format",
    **{
        name: f"options.{name}"
        for name in (
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "typical_p",
            "repeat_penalty",
            "presence_penalty",
            "frequency_penalty",
            "stop",
        )
    },
}


def name_of(model: str) -> str:
    """The model that a name means: Ollama's clients add `:latest` to those without a tag."""
    return model.removesuffix(_LATEST)


def chat_request(body: OllamaChatBody) -> inference_pb2.ChatRequest:
    """Raises:
    InvalidArgument: a value that is not served.
    """
    messages = body.messages or []
    return _chat(body, _Calls().messages(messages), tools.to_tools(body.tools))


def generate_request(
    body: OllamaGenerateBody,
) -> inference_pb2.ChatRequest | inference_pb2.GenerateRequest:
    """A prompt is a message of the user; a raw one, or one with a suffix, is continued as it is.

    Raises:
        InvalidArgument: a value that is not served.
    """
    for name in ("template", "context"):
        if getattr(body, name):
            raise unsupported(name, _WHY[name])
    if not body.raw and not body.suffix:
        system = [OllamaMessage(role="system", content=body.system)] if body.system else []
        said = OllamaMessage(role="user", content=body.prompt, images=body.images)
        return _chat(body, _Calls().messages([*system, said]), [])
    for name in ("system", "images", "think"):
        if getattr(body, name):
            raise unsupported(
                name, "it is not supported with raw or suffix: the prompt is continued as it is"
            )
    return inference_pb2.GenerateRequest(
        model=name_of(body.model),
        text=body.prompt or "",
        suffix=body.suffix or None,
        params=_params(body),
        **_handling(body),
    )


_WHY = {
    "template": "it is not supported: a model has the template of its file",
    "context": "it is not supported: send the conversation to /api/chat",
}


def field_names(body: OllamaPromptBody) -> Mapping[str, str]:
    """Map fields that have another name inside to the client's names."""
    own = {name: f"options.{name}" for name in own_fields(body.options)}
    options = {name: told for name, told in _OPTION_NAMES.items() if name not in own_fields(body)} | own
    if isinstance(body, OllamaGenerateBody):
        at = 1 if body.system else 0
        images = range(len(body.images or []))
        names = {f"messages[{at}].parts[{i + 1}].image": f"images[{i}]" for i in images}
        return {**names, "messages": "prompt", "text": "prompt", **options}
    if not isinstance(body, OllamaChatBody):
        return options
    names = {
        f"messages[{i}].parts[{j}].image": f"messages[{i}].images[{j - 1}]"
        for i, message in enumerate(body.messages or [])
        for j in range(1, 1 + len(message.images or []))
    }
    return {**names, **tools.field_names(body.tools), **options}


def embed_request(body: OllamaEmbedBody | OllamaEmbeddingsBody) -> embedding_pb2.EmbedRequest:
    """Texts that are too long are cut, unless `truncate` is false.

    Raises:
        InvalidArgument: dimensions is no number that can be.
    """
    given: dict[str, Any]
    if isinstance(body, OllamaEmbedBody):
        given = {"input": body.input, "dimensions": body.dimensions, "truncate": body.truncate is not False}
    else:
        given = {"input": body.prompt, "truncate": True}
    return to_embed(EmbeddingsBody.model_construct(model=name_of(body.model), **given))


def _chat(
    body: OllamaPromptBody,
    messages: Sequence[inference_pb2.ChatMessage],
    given: Sequence[inference_pb2.Tool],
) -> inference_pb2.ChatRequest:
    request = inference_pb2.ChatRequest(
        model=name_of(body.model),
        messages=messages,
        params=_params(body),
        **_handling(body),
        tools=given,
        has_optional_switches=True,
    )
    if isinstance(body.think, str) and body.think:
        if body.think not in _LEVELS:
            raise unsupported("think", f"{body.think[:32]!r} is none of true, false, {', '.join(_LEVELS)}")
        request.reasoning_effort = body.think
    if body.think is not None and body.think != "":
        request.chat_template_kwargs = json.dumps({"enable_thinking": body.think is not False})
    return request


class _Calls:
    """Messages, with ids for calls and results that come without: results are in the order of the calls."""

    def __init__(self) -> None:
        self._n = 0
        # (id, name) of calls that no result has come for.
        self._open: list[tuple[str, str]] = []

    def messages(self, given: Sequence[OllamaMessage]) -> list[inference_pb2.ChatMessage]:
        return [self._message(message, f"messages[{i}]") for i, message in enumerate(given)]

    def _message(self, message: OllamaMessage, place: str) -> inference_pb2.ChatMessage:
        made = inference_pb2.ChatMessage(
            role=message.role,
            reasoning_content=message.thinking or "",
            tool_calls=[self._call(call) for call in message.tool_calls or []],
        )
        if message.role == "tool":
            made.name = message.tool_name or ""
            made.tool_call_id = message.tool_call_id or self._answered(message.tool_name)
        if not message.images:
            made.content = message.content or ""
            return made
        made.parts.add(text=message.content or "")
        for i, image in enumerate(message.images):
            data = from_base64(image, field=f"{place}.images[{i}]", reason="BAD_IMAGE")
            made.parts.add(image=inference_pb2.ImageInput(data=data))
        return made

    def _call(self, call: OllamaCall) -> inference_pb2.ToolCall:
        id_ = call.id or f"call_{self._n}"
        self._n += 1
        self._open.append((id_, call.function.name))
        arguments = json.dumps(call.function.arguments or {}, ensure_ascii=False)
        return inference_pb2.ToolCall(id=id_, name=call.function.name, arguments=arguments)

    def _answered(self, name: str | None) -> str:
        found = next((call for call in self._open if not name or call[1] == name), None)
        if found is None:
            return ""
        self._open.remove(found)
        return found[0]


def _handling(body: OllamaPromptBody) -> dict[str, Any]:
    """The fields of a request that are no parameters of the generation."""
    own = own_fields(body.options, body)
    return {name: own[name] for name in ("priority", "skip_answer_cache", "adapter") if name in own}


def _params(body: OllamaPromptBody) -> generation_pb2.GenerationParams:
    check_served(body, OLLAMA)
    options = body.options or OllamaOptions()
    if options.mirostat:
        raise unsupported("options.mirostat", "it is not supported: leave it out, or send 0")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidArgument("top_logprobs needs logprobs to be true", field="top_logprobs")
    own = own_fields(options, body)
    if options.repeat_last_n is not None:
        own["penalty_last_n"] = options.repeat_last_n
    sampling = SamplingBody.model_construct(
        **own,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed if options.seed is not None and options.seed >= 0 else None,
        stop=options.stop,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        response_format=_format(body.format),
    )
    most = options.num_predict if options.num_predict is not None and options.num_predict >= 0 else None
    return to_params(sampling, max_tokens=most, logprobs=(body.top_logprobs or 0) if body.logprobs else None)


def _format(given: object) -> ResponseFormat | None:
    if given is None or given == "":
        return None
    if given == "json":
        return ResponseFormat.model_construct(type="json_object", json_schema=None)
    if not isinstance(given, dict):
        raise unsupported("format", f"{str(given)[:32]!r} is neither 'json' nor a schema")
    schema = JsonSchema.model_construct(name=None, schema_=given)
    return ResponseFormat.model_construct(type="json_schema", json_schema=schema)
