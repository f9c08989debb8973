"""JSON schemas of the HTTP front's answers, for the OpenAPI document.

Clients may rely on what is required here. Answers can have further fields.
"""

from __future__ import annotations

from typing import Any

from inferflux.common.contract.models.model_roles import ROLES

Schema = dict[str, Any]


def _object(optional: Schema | None = None, /, **required: Schema) -> Schema:
    """An object with these members, and those of `optional` where they are there."""
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Schema = {"type": "string"}
_BOOLEAN: Schema = {"type": "boolean"}
_ANY_OBJECT: Schema = {"type": "object"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_LOGPROB: Schema = {"type": "number", "maximum": 0}
_IDS = _array(_COUNT)

_USAGE = _object(
    prompt_tokens=_COUNT,
    completion_tokens=_COUNT,
    total_tokens=_COUNT,
    prompt_tokens_details=_object(cached_tokens=_COUNT),
    completion_tokens_details=_object(reasoning_tokens=_COUNT),
)
_SPOKEN = {"token": _TEXT, "logprob": _LOGPROB, "bytes": _or_null(_array({"type": "integer"}))}
_CHAT_LOGPROBS = _object(content=_array(_object(**_SPOKEN, top_logprobs=_array(_object(**_SPOKEN)))))
_COMPLETION_LOGPROBS = _object(
    tokens=_array(_TEXT),
    token_logprobs=_array(_LOGPROB),
    top_logprobs=_array(_ANY_OBJECT),
    text_offset=_IDS,
)


def _answer(kind: str, choice: Schema) -> Schema:
    """Fields that chats and completions have in common."""
    return _object(
        id=_TEXT,
        object={"const": kind},
        created=_COUNT,
        model=_TEXT,
        service_tier={"enum": ["default", "flex", "priority"]},
        choices=_array(choice),
        usage=_ref("Usage"),
    )


_CHAT = _answer(
    "chat.completion",
    _object(
        index=_COUNT,
        message=_object(role={"const": "assistant"}, content=_or_null(_TEXT)),
        logprobs=_or_null(_CHAT_LOGPROBS),
        finish_reason={"enum": ["stop", "length", "tool_calls", "content_filter"]},
    ),
)
_COMPLETION = _answer(
    "text_completion",
    _object(
        index=_COUNT,
        text=_TEXT,
        logprobs=_or_null(_COMPLETION_LOGPROBS),
        finish_reason={"enum": ["stop", "length", "content_filter"]},
    ),
)
_RESPONSE = _object(
    id=_TEXT,
    object={"const": "response"},
    created_at=_COUNT,
    status={"enum": ["completed", "incomplete"]},
    model=_TEXT,
    output=_array(_object(id=_TEXT, type=_TEXT, status=_TEXT)),
    error={"type": "null"},
    incomplete_details=_or_null(_object(reason=_TEXT)),
    usage=_object(input_tokens=_COUNT, output_tokens=_COUNT, total_tokens=_COUNT),
)
_MESSAGE = _object(
    id=_TEXT,
    type={"const": "message"},
    role={"const": "assistant"},
    model=_TEXT,
    content=_array(
        _object(
            {"text": _TEXT, "thinking": _TEXT, "id": _TEXT, "name": _TEXT, "input": _ANY_OBJECT},
            type={"enum": ["text", "thinking", "tool_use"]},
        )
    ),
    stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]},
    stop_sequence=_or_null(_TEXT),
    usage=_object(
        input_tokens=_COUNT,
        cache_creation_input_tokens=_COUNT,
        cache_read_input_tokens=_COUNT,
        output_tokens=_COUNT,
    ),
)
_GENERATED = _object(
    {"logprobs": _array(_object(token_id=_COUNT, token=_TEXT, logprob=_LOGPROB))},
    token_ids=_IDS,
    text=_TEXT,
    finish_reason={"enum": ["stop", "length", "content_filter"]},
    usage=_ref("Usage"),
    timings=_ANY_OBJECT,
)
_MODEL_STATE = {"enum": ["registered", "loading", "ready", "failed", "unloading"]}
_MODEL = _object(
    id=_TEXT,
    object={"const": "model"},
    created=_COUNT,
    owned_by=_TEXT,
    max_model_len=_COUNT,
    role={"enum": [*ROLES]},
    size_bytes=_COUNT,
    quantization=_TEXT,
    has_chat_template=_BOOLEAN,
    can_call_tools=_BOOLEAN,
    has_generic_tools=_BOOLEAN,
    can_constrain=_BOOLEAN,
    can_speculate=_or_null(_BOOLEAN),
    takes_images=_BOOLEAN,
    takes_audio=_BOOLEAN,
    workers=_COUNT,
    state=_MODEL_STATE,
    aliases=_array(_TEXT),
    is_default=_BOOLEAN,
    is_pinned=_BOOLEAN,
    places=_array(
        _object(host_id=_TEXT, state=_MODEL_STATE, path=_TEXT, mmproj_path=_TEXT, needs_bytes=_COUNT)
    ),
)
_HEALTH = _object(status={"enum": ["ok", "degraded"]}, role=_TEXT, reason=_TEXT)
_READINESS = _object(
    status={"enum": ["ok", "degraded", "not_ready"]},
    role=_TEXT,
    reason=_TEXT,
    ready=_BOOLEAN,
    not_met=_array(_TEXT),
    conditions={"type": "object", "additionalProperties": _object(ok=_BOOLEAN, detail=_TEXT)},
)
_ERROR = _object(
    error=_object(message=_TEXT, type=_TEXT, param=_or_null(_TEXT), code=_TEXT),
)

_TEXT_USAGE = _object(prompt_tokens=_COUNT, total_tokens=_COUNT)
_RANKED = _object({"document": _object(text=_TEXT)}, index=_COUNT, relevance_score={"type": "number"})

# By the names that operations call them.
ANSWERS: dict[str, Schema] = {
    "ChatCompletion": _CHAT,
    "Completion": _COMPLETION,
    "Response": _RESPONSE,
    "Generated": _GENERATED,
    "MessageAnswer": _MESSAGE,
    "Counted": _object(input_tokens=_COUNT),
    "MessageError": _object(
        type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT), request_id=_TEXT
    ),
    "OllamaAnswer": _object(
        {
            "message": _object(role={"const": "assistant"}, content=_TEXT),
            "response": _TEXT,
            "done_reason": _TEXT,
            "total_duration": _COUNT,
            "prompt_eval_count": _COUNT,
            "eval_count": _COUNT,
        },
        model=_TEXT,
        created_at=_TEXT,
        done=_BOOLEAN,
    ),
    "OllamaVectors": _object(model=_TEXT, embeddings=_array(_array({"type": "number"}))),
    "OllamaVector": _object(embedding=_array({"type": "number"})),
    "OllamaModels": _object(
        models=_array(_object(name=_TEXT, model=_TEXT, size=_COUNT, digest=_TEXT, details=_ANY_OBJECT))
    ),
    "OllamaModel": _object(details=_ANY_OBJECT, model_info=_ANY_OBJECT, capabilities=_array(_TEXT)),
    "OllamaVersion": _object(version=_TEXT),
    "OllamaError": _object(error=_TEXT),
    "Embeddings": _object(
        object={"const": "list"},
        data=_array(
            _object(
                object={"const": "embedding"},
                index=_COUNT,
                embedding={"anyOf": [_array({"type": "number"}), _TEXT]},
            )
        ),
        model=_TEXT,
        usage=_TEXT_USAGE,
    ),
    "Ranking": _object(
        object={"const": "list"},
        model=_TEXT,
        results=_array(_RANKED),
        usage=_TEXT_USAGE,
    ),
    "Tokenized": _object(count=_COUNT, max_model_len=_COUNT, tokens=_IDS),
    "Detokenized": _object(prompt=_TEXT),
    "Models": _object(
        object={"const": "list"},
        data=_array(_ref("Model")),
        models=_array(_object(name=_TEXT, capabilities=_array(_TEXT), details=_ANY_OBJECT)),
    ),
    "Model": _MODEL,
    "Readiness": _READINESS,
    "Health": _HEALTH,
    "Usage": _USAGE,
    "Error": _ERROR,
}
