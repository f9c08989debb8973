"""Messages of `inference.proto` from a call's arguments. Pure."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict, TypeVar

from inferflux.api.errors import InvalidArgument
from inferflux.api.speculation import SOURCES
from inferflux.v1 import embedding_pb2, generation_pb2, inference_pb2

# A text is one message of the user. A mapping has the fields of ChatMessage.
Messages = str | Iterable[inference_pb2.ChatMessage | Mapping[str, Any]]
# A text, its UTF-8 bytes, or token ids.
Prompt = str | bytes | Iterable[int]
# A text to embed, or its token ids.
Text = str | Sequence[int]
Request = inference_pb2.ChatRequest | inference_pb2.GenerateRequest

_M = TypeVar("_M")
_OF_PARAMS = frozenset(generation_pb2.GenerationParams.DESCRIPTOR.fields_by_name) - {
    "sampling",
    "constraint",
    "banned",
}
_CONSTRAINTS = ("json_object", "json_schema", "gbnf", "lark", "regex", "choices")
_BREAKERS: Final = "dry_sequence_breakers"


class Options(TypedDict, total=False):
    """Options of a generation, under the names and with the ranges of `generation.proto`.

    `params`, a GenerationParams, is what these options are added to.

    Attributes:
        dry_sequence_breakers: texts over which no repetition goes on; none if it is empty.
        speculation: where drafts of next tokens come from: off, ngram or draft.
        json_object: the answer is a JSON object.
        json_schema: the answer is JSON of this schema, which is given as an object or as JSON text.
        gbnf, lark: the answer is a text of this grammar.
        regex: the answer matches this expression as a whole.
        choices: the answer is one of these texts.
        strict: refuse a schema with keywords that cannot be enforced.
        max_reasoning_tokens: what the model may think; then its thought is closed, and the answer follows.
        min_tokens: neither an end of the model's nor a stop comes before this many tokens.
        bad_words: texts that are not said.
        text_bias: a bias of every token that a text has, beside `logit_bias`.
        prompt_logprobs: how many alternatives are told for each token of the prompt.
        deterministic: the same tokens whatever else is cached or runs.
    """

    params: generation_pb2.GenerationParams
    max_tokens: int
    max_reasoning_tokens: int
    stop: str | Iterable[str]
    stop_token_ids: Iterable[int]
    ignore_eos: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_last_n: int
    typical_p: float
    xtc_probability: float
    xtc_threshold: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Iterable[str]
    dynatemp_range: float
    dynatemp_exponent: float
    top_n_sigma: float
    logit_bias: Mapping[int, float]
    seed: int
    logprobs: int
    speculation: str
    json_object: bool
    json_schema: str | Mapping[str, Any]
    gbnf: str
    lark: str
    regex: str
    choices: Iterable[str]
    strict: bool
    min_tokens: int
    bad_words: Iterable[str]
    text_bias: Mapping[str, float]
    prompt_logprobs: int
    deterministic: bool


def chat_request(
    messages: Messages,
    *,
    model: str,
    priority: int,
    resume_window_s: int,
    skip_answer_cache: bool,
    adapter: str = "",
    options: Options,
    tools: Iterable[inference_pb2.Tool] = (),
    tool_choice: inference_pb2.ToolChoice | None = None,
    parallel_tool_calls: bool | None = None,
    chat_template_kwargs: str | Mapping[str, Any] = "",
    reasoning_effort: str = "",
    continue_final_message: bool = False,
    skip_generation_prompt: bool = False,
    has_optional_switches: bool = False,
) -> inference_pb2.ChatRequest:
    """Raises InvalidArgument, which names the field, for what no message can hold."""
    return _message(
        inference_pb2.ChatRequest,
        "",
        model=model,
        messages=_messages(messages),
        tools=tools,
        tool_choice=tool_choice,
        parallel_tool_calls=parallel_tool_calls,
        chat_template_kwargs=(
            chat_template_kwargs
            if isinstance(chat_template_kwargs, str)
            else json.dumps(chat_template_kwargs)
        ),
        reasoning_effort=reasoning_effort,
        continue_final_message=continue_final_message,
        skip_generation_prompt=skip_generation_prompt,
        has_optional_switches=has_optional_switches,
        params=generation_params(options),
        priority=priority,
        resume_window_s=resume_window_s,
        skip_answer_cache=skip_answer_cache,
        adapter=adapter,
    )


def generate_request(
    prompt: Prompt,
    *,
    model: str,
    priority: int,
    resume_window_s: int,
    skip_answer_cache: bool,
    adapter: str = "",
    options: Options,
) -> inference_pb2.GenerateRequest:
    """Raises InvalidArgument, which names the field, for what no message can hold."""
    request = _message(
        inference_pb2.GenerateRequest,
        "",
        text=prompt if isinstance(prompt, str) else None,
        model=model,
        params=generation_params(options),
        priority=priority,
        resume_window_s=resume_window_s,
        skip_answer_cache=skip_answer_cache,
        adapter=adapter,
    )
    if isinstance(prompt, bytes):
        request.text_bytes = prompt
    elif not isinstance(prompt, str):
        request.token_ids.CopyFrom(_message(inference_pb2.TokenIds, "prompt", ids=list(prompt)))
    return request


def embed_request(
    inputs: Text | Iterable[Text], *, model: str, dimensions: int | None, truncate: bool, priority: int
) -> embedding_pb2.EmbedRequest:
    """Raises InvalidArgument, which names the field, for what no message can hold."""
    request = _message(
        embedding_pb2.EmbedRequest,
        "",
        model=model,
        dimensions=dimensions,
        truncate=truncate,
        priority=priority,
    )
    for i, each in enumerate([inputs] if isinstance(inputs, str) else inputs):
        field = f"inputs[{i}]"
        if isinstance(each, str):
            request.inputs.append(_message(embedding_pb2.EmbedInput, field, text=each))
        elif isinstance(each, int):
            raise InvalidArgument("token ids are a list of lists: one for each text", field="inputs")
        else:
            ids = _message(inference_pb2.TokenIds, field, ids=each)
            request.inputs.append(embedding_pb2.EmbedInput(token_ids=ids))
    return request


def rerank_request(
    query: str,
    documents: Iterable[str],
    *,
    model: str,
    top_n: int | None,
    truncate: bool,
    priority: int,
) -> embedding_pb2.RerankRequest:
    """Raises InvalidArgument, which names the field, for what no message can hold."""
    return _message(
        embedding_pb2.RerankRequest,
        "",
        model=model,
        query=query,
        documents=documents,
        top_n=top_n,
        truncate=truncate,
        priority=priority,
    )


def tokenize_request(prompt: Messages, *, model: str) -> inference_pb2.TokenizeRequest:
    """A text is tokenized as Generate would, messages as Chat would.

    Raises InvalidArgument, which names the field, for what no message can hold.
    """
    if isinstance(prompt, str):
        return _message(inference_pb2.TokenizeRequest, "", model=model, text=prompt)
    request = _message(inference_pb2.TokenizeRequest, "", model=model)
    request.conversation.messages.extend(_messages(prompt))
    return request


def generation_params(options: Options) -> generation_pb2.GenerationParams:
    """Raises InvalidArgument for an option that there is not, or a value of another type."""
    params = generation_pb2.GenerationParams()
    params.CopyFrom(options.get("params", params))
    given: dict[str, Any] = {k: v for k, v in options.items() if k != "params" and v is not None}
    constraint = {name: given.pop(name) for name in _CONSTRAINTS if name in given}
    if "stop" in given:
        given["stop"] = _texts(given["stop"], "params.stop")
    own = {name: given.pop(name) for name in _OF_PARAMS & given.keys()}
    if "bad_words" in own:
        own["bad_words"] = _texts(own["bad_words"], "params.bad_words")
    if "text_bias" in own:
        own["text_bias"] = [
            _message(generation_pb2.TextBias, "params.text_bias", text=text, bias=bias)
            for text, bias in own["text_bias"].items()
        ]
    if "speculation" in own:
        own["speculation"] = _source(own["speculation"])
    is_strict = given.pop("strict", False)
    if unknown := sorted(given.keys() - generation_pb2.SamplingParams.DESCRIPTOR.fields_by_name.keys()):
        raise InvalidArgument(f"there is no option {unknown[0]}", field=unknown[0])
    params.MergeFrom(_message(generation_pb2.GenerationParams, "params", **own))
    if _BREAKERS in given:
        texts = _texts(given[_BREAKERS], f"params.sampling.{_BREAKERS}")
        given[_BREAKERS] = generation_pb2.SequenceBreakers(texts=texts)
        params.sampling.ClearField(_BREAKERS)
    params.sampling.MergeFrom(_message(generation_pb2.SamplingParams, "params.sampling", **given))
    if len(constraint) > 1:
        raise InvalidArgument(f"only one of {', '.join(constraint)} can be asked for", field="constraint")
    for name, value in constraint.items():
        _constrain(params.constraint, name, value)
    if is_strict and params.HasField("constraint"):
        params.constraint.strict = True
    return params


def _source(name: object) -> generation_pb2.Speculation.ValueType:
    if not isinstance(name, str) or name not in SOURCES:
        raise InvalidArgument(f"speculation: {name!r} is none of {', '.join(SOURCES)}", field="speculation")
    return SOURCES[name]


def new_request_id() -> str:
    return uuid.uuid4().hex


def _constrain(constraint: generation_pb2.StructuredConstraint, name: str, value: Any) -> None:
    try:
        if name == "json_schema":
            constraint.json_schema = (
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            )
        elif name == "choices":
            constraint.choice.texts.extend(_texts(value, name))
        else:
            constraint.MergeFrom(generation_pb2.StructuredConstraint(**{name: value}))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{name}: {error}", field=name) from None


def _texts(value: Any, field: str) -> list[str]:
    """The texts of an option; one alone is as good as a list of it."""
    texts = [value] if isinstance(value, str) else value
    try:
        return list(generation_pb2.SequenceBreakers(texts=texts).texts)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{field}: {error}", field=field) from None


def _messages(messages: Messages) -> list[inference_pb2.ChatMessage]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return [
        message
        if isinstance(message, inference_pb2.ChatMessage)
        else _message(inference_pb2.ChatMessage, f"messages[{i}]", **message)
        for i, message in enumerate(messages)
    ]


def _message(kind: type[_M], where: str, **fields: Any) -> _M:
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        field = f"{where}.{_first_bad(kind, fields)}".strip(".")
        raise InvalidArgument(f"{field}: {error}", field=field) from None


def _first_bad(kind: type[_M], fields: Mapping[str, Any]) -> str:
    """The field that a message of this kind cannot hold."""
    for name, value in fields.items():
        try:
            kind(**{name: value})
        except (TypeError, ValueError):
            return name
    return ""
