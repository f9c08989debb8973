"""OpenAI's responses, without state: a body to a request, token chunks to a response and its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferflux.common.errors import HttpError, InvalidArgument
from inferflux.gateway.http.errors import unsupported
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

from .answers import Json, spoken_logprobs
from .bodies import InputItem, JsonSchema, ResponseFormat, ResponsesBody
from .chat import token_json
from .params import priority_of, tier_of, to_params

_LOGPROBS = "message.output_text.logprobs"
_TEXT_PARTS = ("input_text", "output_text", "text")
_SCHEMA_FIELD = "text.format.schema"

FIELD_NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "constraint.json_schema": _SCHEMA_FIELD,
    "constraint": "text.format",
}


def to_request(body: ResponsesBody) -> inference_pb2.ChatRequest:
    """The request.

    Raises:
        InvalidArgument: a value that is not served: nothing is stored between calls.
    """
    _check_supported(body)
    messages = [] if not body.instructions else [_message("developer", body.instructions)]
    if isinstance(body.input, str):
        messages.append(_message("user", body.input))
    else:
        messages += [_of_item(item, f"input[{i}]") for i, item in enumerate(body.input)]
    return inference_pb2.ChatRequest(
        model=body.model,
        messages=messages,
        params=to_params(_with_format(body), max_tokens=body.max_output_tokens, logprobs=_alternatives(body)),
        priority=priority_of(body),
        skip_answer_cache=bool(body.skip_answer_cache),
    )


def wants_logprobs(body: ResponsesBody) -> bool:
    return _alternatives(body) is not None


def _alternatives(body: ResponsesBody) -> int | None:
    if body.top_logprobs is None and _LOGPROBS not in (body.include or []):
        return None
    return body.top_logprobs or 0


def _with_format(body: ResponsesBody) -> ResponsesBody:
    """The body with its text format where other bodies have it."""
    form = body.text.format if body.text else None
    if form is None:
        return body
    if form.type == "json_schema" and form.schema_ is None:
        raise InvalidArgument(f"{_SCHEMA_FIELD} is missing", field=_SCHEMA_FIELD)
    if form.type not in ("text", "json_object", "json_schema"):
        raise unsupported("text.format.type", f"{form.type[:32]!r} is not supported")
    schema = JsonSchema.model_construct(name=form.name, schema_=form.schema_)
    return body.model_copy(
        update={"response_format": ResponseFormat.model_construct(type=form.type, json_schema=schema)}
    )


def _check_supported(body: ResponsesBody) -> None:
    for name in ("previous_response_id", "conversation", "background", "prompt", "tools"):
        if getattr(body, name):
            raise unsupported(name)
    if body.tool_choice not in (None, "none", "auto"):
        raise unsupported("tool_choice")
    if body.truncation not in (None, "disabled"):
        raise unsupported("truncation", "only 'disabled' is")


def _message(role: str, content: str) -> inference_pb2.ChatMessage:
    return inference_pb2.ChatMessage(role=role, content=content)


def _of_item(item: InputItem, field: str) -> inference_pb2.ChatMessage:
    if item.type not in (None, "message"):
        raise unsupported(f"{field}.type", f"{item.type[:32]!r} is not supported")
    if item.role is None:
        raise InvalidArgument(f"{field}.role is missing", field=f"{field}.role")
    if item.content is None:
        raise InvalidArgument(f"{field}.content is missing", field=f"{field}.content")
    if isinstance(item.content, str):
        return _message(item.role, item.content)
    texts: list[str] = []
    for i, part in enumerate(item.content):
        where = f"{field}.content[{i}]"
        if part.type not in _TEXT_PARTS or part.text is None:
            raise unsupported(f"{where}.type", f"{part.type[:32]!r} is not supported, only texts are")
        texts.append(part.text)
    return _message(item.role, "\n".join(texts))


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What is known of a response before it begins.

    Attributes:
        created: seconds since the Unix epoch.
    """

    request_id: str
    created: int
    body: ResponsesBody

    @property
    def item_id(self) -> str:
        return f"msg_{self.request_id}"

    def to_json(self, status: str, output: list[Json], **fields: Any) -> Json:
        """A response in one of its states."""
        body = self.body
        form = body.text.format if body.text else None
        return {
            "id": f"resp_{self.request_id}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "service_tier": tier_of(body),
            "store": False,
            "temperature": body.temperature,
            "text": {
                "format": form.model_dump(by_alias=True, exclude_none=True) if form else {"type": "text"}
            },
            "tool_choice": "auto",
            "tools": [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
        } | fields


class Response:
    """Chunks to one response."""

    def __init__(self, head: ResponseHead) -> None:
        self.head = head
        self._texts: list[str] = []
        self._logprobs: list[Json] = []
        self._finished = tokens_pb2.Finished()

    def add(self, _index: int, chunk: tokens_pb2.TokenChunk) -> None:
        self._texts.append(chunk.text)
        self._logprobs += logprobs_of(chunk)
        if chunk.HasField("finished"):
            self._finished.CopyFrom(chunk.finished)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def logprobs(self) -> list[Json]:
        return self._logprobs

    @property
    def is_cut(self) -> bool:
        """Whether a limit ended it."""
        return self._finished.reason == generation_pb2.FINISH_REASON_LENGTH

    def part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self._logprobs}

    def item(self, status: str, content: list[Json]) -> Json:
        return {
            "id": self.head.item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def to_json(self) -> Json:
        status = "incomplete" if self.is_cut else "completed"
        usage = self._finished.usage
        return self.head.to_json(
            status,
            [self.item(status, [self.part()])],
            incomplete_details={"reason": "max_output_tokens"} if self.is_cut else None,
            usage={
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        )


class ResponseStream:
    """Chunks to the events of a response."""

    are_named = True

    def __init__(self, head: ResponseHead) -> None:
        self._response = Response(head)
        self._number = 0
        self._has_begun = False

    def messages(self, index: int, chunk: tokens_pb2.TokenChunk) -> list[Json]:
        """The events of a chunk."""
        is_end = chunk.HasField("finished")
        made: list[Json] = []
        if not self._has_begun and (chunk.token_ids or is_end):
            made += self._begin()
        self._response.add(index, chunk)
        if chunk.text:
            made.append(
                self._event("response.output_text.delta", delta=chunk.text, logprobs=logprobs_of(chunk))
            )
        return made + (self._end() if is_end else [])

    def last(self) -> list[Json]:
        return []

    def failure(self, error: HttpError) -> list[Mapping[str, Any]]:
        """What a response that fails ends with."""
        said = error.body["error"]
        failed = {"code": said["code"], "message": said["message"]}
        whole = self._response.head.to_json("failed", [], error=failed)
        return [self._plain("response.failed", response=whole)]

    def _begin(self) -> list[Json]:
        self._has_begun = True
        response = self._response
        started = response.head.to_json("in_progress", [])
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return [
            self._plain("response.created", response=started),
            self._plain("response.in_progress", response=started),
            self._plain("response.output_item.added", output_index=0, item=response.item("in_progress", [])),
            self._event("response.content_part.added", part=empty),
        ]

    def _end(self) -> list[Json]:
        response = self._response
        whole = response.to_json()
        status = whole["status"]
        done = {"text": response.text, "logprobs": response.logprobs}
        return [
            self._event("response.output_text.done", **done),
            self._event("response.content_part.done", part=response.part()),
            self._plain("response.output_item.done", output_index=0, item=whole["output"][0]),
            self._plain(f"response.{status}", response=whole),
        ]

    def _event(self, kind: str, **fields: Any) -> Json:
        """An event of the response's only part."""
        return self._plain(
            kind, item_id=self._response.head.item_id, output_index=0, content_index=0, **fields
        )

    def _plain(self, kind: str, **fields: Any) -> Json:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}


def logprobs_of(chunk: tokens_pb2.TokenChunk) -> list[Json]:
    return [
        token_json(one.chosen) | {"top_logprobs": [token_json(other) for other in one.top]}
        for one in spoken_logprobs(chunk)
    ]
