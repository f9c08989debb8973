"""OpenAI's responses, without state: a body to a request, token chunks to a response and its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferflux.common.contract.errors import HttpError, InvalidArgument
from inferflux.gateway.http.errors.errors import missing, unsupported
from inferflux.gateway.http.front.bodies import Body
from inferflux.gateway.http.front.sse import NAMED
from inferflux.gateway.http.openai import constraints, custom_tools, tools
from inferflux.gateway.http.openai.answers import Json, spoken_json
from inferflux.gateway.http.openai.bodies import JsonSchema, ResponseFormat, ResponsesBody, ToolBody
from inferflux.gateway.http.openai.params import priority_of, tier_of, to_params
from inferflux.gateway.http.openai.prompt_form import form_names, switches_of
from inferflux.gateway.http.openai.served import INCLUDED, RESPONSE, check_served, check_stream
from inferflux.v1 import generation_pb2, inference_pb2, tokens_pb2

from . import hosted, response_input
from .response_items import CallItem, CustomCallItem, Event, Item, MessageItem, ReasoningItem

_LOGPROBS = "message.output_text.logprobs"
_SCHEMA_FIELD = "text.format.schema"

_FIELD_NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
}


def to_request(body: ResponsesBody) -> inference_pb2.ChatRequest:
    """The request.

    Raises:
        InvalidArgument: a value that is not served: nothing is stored between calls.
    """
    check_served(body, RESPONSE)
    check_stream(body)
    for i, name in enumerate(body.include or []):
        if name not in INCLUDED:
            raise unsupported(f"include[{i}]", f"{name[:64]!r} is none of {', '.join(INCLUDED)}")
    return inference_pb2.ChatRequest(
        model=body.model,
        messages=response_input.conversation(body).messages,
        params=to_params(_with_format(body), max_tokens=body.max_output_tokens, logprobs=_alternatives(body)),
        priority=priority_of(body),
        skip_answer_cache=bool(body.skip_answer_cache),
        adapter=body.adapter or "",
        tools=tools.to_tools(hosted.functions(body.tools), is_of_response=True),
        tool_choice=_choice(body),
        parallel_tool_calls=body.parallel_tool_calls,
        chat_template_kwargs=switches_of(body),
        reasoning_effort=(body.reasoning.effort if body.reasoning else None) or "",
    )


def _choice(body: ResponsesBody) -> inference_pb2.ToolChoice | None:
    """Where only hosted tools are to choose from, there is no choice."""
    if body.tools and not hosted.functions(body.tools) and body.tool_choice in ("auto", "required"):
        return None
    return tools.to_choice(body.tool_choice, hosted.skipped(body.tools))


def field_names(body: ResponsesBody) -> Mapping[str, str]:
    """Return what the client calls fields that have another name inside."""
    conversation = response_input.conversation(body)
    format_ = "text.format"
    constrained = {
        "constraint.json_schema": _SCHEMA_FIELD,
        "constraint.json_object": format_,
        "constraint": format_,
    }
    if body.structured_outputs is not None:
        constrained = dict(constraints.field_names(body))
    elif body.text is None or body.text.format is None:
        constrained = {"constraint": "tools"}
    return {
        **hosted.places(body.tools),
        **tools.field_names(hosted.functions(body.tools)),
        **conversation.places,
        **constrained,
        **_FIELD_NAMES,
        **form_names(body),
        "reasoning_effort": "reasoning.effort",
    }


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
        raise missing(_SCHEMA_FIELD)
    if form.type not in constraints.FORMATS:
        raise unsupported(
            "text.format.type", f"{form.type[:32]!r} is none of {', '.join(constraints.FORMATS)}"
        )
    if body.structured_outputs is not None and form.type != "text":
        message = "structured_outputs does not go together with text.format"
        raise InvalidArgument(message, field="structured_outputs")
    schema = JsonSchema.model_construct(name=form.name, schema_=form.schema_, strict=form.strict)
    return body.model_copy(
        update={"response_format": ResponseFormat.model_construct(type=form.type, json_schema=schema)}
    )


# Why an answer is incomplete.
_CUT = {
    generation_pb2.FINISH_REASON_LENGTH: "max_output_tokens",
    generation_pb2.FINISH_REASON_CONTENT_FILTER: "content_filter",
}


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The part of a response that is known before it begins.

    Attributes:
        created: seconds since the Unix epoch.
    """

    request_id: str
    created: int
    body: ResponsesBody
    model: str = ""

    def to_json(self, status: str, output: list[Json], **fields: Any) -> Json:
        """A response in one of its states."""
        body = self.body
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
            "metadata": {**(body.metadata or {}), **hosted.metadata_of(body.tools)},
            "model": self.model or body.model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": body.reasoning.model_dump() if body.reasoning else None,
            "service_tier": tier_of(body),
            "store": False,
            "temperature": body.temperature,
            "text": {"format": self._format(), "verbosity": (body.text and body.text.verbosity) or "medium"},
            "tool_choice": _dumped(body.tool_choice) or "auto",
            "tools": [_dumped(tool) for tool in body.tools or []],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
        } | fields

    def _format(self) -> Json:
        """The format as it was asked for; a schema was checked only where it is one."""
        form = self.body.text.format if self.body.text else None
        if form is None or form.type != "json_schema":
            return {"type": form.type if form else "text"}
        return form.model_dump(by_alias=True, exclude_none=True)


class Response:
    """Chunks to one response.

    Every method that takes something returns the events that tell of it.
    """

    def __init__(self, head: ResponseHead) -> None:
        self.head = head
        self._items: list[Item] = []
        self._customs = custom_tools.names_of(hosted.functions(head.body.tools))
        # Of tokens whose text has not come yet.
        self._logprobs: list[Json] = []
        self._finished = tokens_pb2.Finished()

    def add(
        self, _index: int, chunk: tokens_pb2.TokenChunk, delta: inference_pb2.ChatDelta | None = None
    ) -> list[Event]:
        events: list[Event] = []
        self._logprobs += spoken_json(chunk)
        if delta is None:
            if chunk.text:
                events += self._say(chunk.text)
            elif chunk.token_ids and not self._items:
                events += self._begin(MessageItem(self._id("msg")))
        else:
            events += self._add_delta(delta)
        if chunk.HasField("finished"):
            self._finished.CopyFrom(chunk.finished)
            if not self._items:
                events += self._begin(MessageItem(self._id("msg")))
            if self._logprobs and isinstance(self._items[-1], MessageItem):
                events += self._say("")
            events += self._end_last()
        return events

    @property
    def is_cut(self) -> bool:
        """Return whether a limit or a guardrail ended it."""
        return self._finished.reason in _CUT

    def to_json(self) -> Json:
        status = self._status
        usage = self._finished.usage
        done = [item.to_json("completed") for item in self._items[:-1]]
        return self.head.to_json(
            status,
            done + [item.to_json(status) for item in self._items[-1:]],
            incomplete_details={"reason": _CUT[self._finished.reason]} if self.is_cut else None,
            usage={
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        )

    @property
    def _status(self) -> str:
        return "incomplete" if self.is_cut else "completed"

    def _add_delta(self, delta: inference_pb2.ChatDelta) -> list[Event]:
        events: list[Event] = []
        if delta.reasoning_content:
            events += self._think(delta.reasoning_content)
        if delta.content:
            events += self._say(delta.content)
        elif events or delta.tool_calls:
            self._logprobs = []  # a message alone has them
        for call in delta.tool_calls:
            events += self._call(call)
        return events

    def _think(self, text: str) -> list[Event]:
        last = self._items[-1] if self._items else None
        if isinstance(last, ReasoningItem):
            return [self._told(last.add(text))]
        item = ReasoningItem(self._id("rs"))
        return [*self._begin(item), self._told(item.add(text))]

    def _say(self, text: str) -> list[Event]:
        logprobs, self._logprobs = self._logprobs, []
        last = self._items[-1] if self._items else None
        if isinstance(last, MessageItem):
            return [self._told(last.add(text, logprobs))]
        item = MessageItem(self._id("msg"))
        return [*self._begin(item), self._told(item.add(text, logprobs))]

    def _call(self, call: inference_pb2.ToolCallDelta) -> list[Event]:
        events: list[Event] = []
        if call.id:
            if call.name in self._customs:
                events += self._begin(CustomCallItem(self._id("ctc"), call.id, call.name))
            else:
                events += self._begin(CallItem(self._id("fc"), call.id, call.name))
        last = self._items[-1]
        if call.arguments and isinstance(last, CallItem | CustomCallItem):
            events += [self._told(event) for event in last.add(call.arguments)]
        return events

    def _begin(self, item: Item) -> list[Event]:
        """An item begins, and the one before it ends."""
        events = self._end_last("completed") if self._items else []
        self._items.append(item)
        return events + [self._told(event) for event in item.begin()]

    def _end_last(self, status: str = "") -> list[Event]:
        return [self._told(event) for event in self._items[-1].end(status or self._status)]

    def _told(self, event: Event) -> Event:
        """An event of the last item."""
        kind, fields = event
        return kind, {"output_index": len(self._items) - 1, **fields}

    def _id(self, kind: str) -> str:
        number = len(self._items)
        return f"{kind}_{self.head.request_id}" + (f"_{number}" if number else "")


class ResponseStream:
    """Chunks to the events of a response."""

    framing = NAMED

    def __init__(self, head: ResponseHead) -> None:
        self._response = Response(head)
        self._number = 0
        self._has_begun = False

    def messages(
        self, index: int, chunk: tokens_pb2.TokenChunk, delta: inference_pb2.ChatDelta | None = None
    ) -> list[Json]:
        """The events of a chunk."""
        is_end = chunk.HasField("finished")
        made: list[Json] = []
        if not self._has_begun and (chunk.token_ids or is_end):
            made += self._begin()
        made += [self._event(kind, fields) for kind, fields in self._response.add(index, chunk, delta)]
        if is_end:
            whole = self._response.to_json()
            made.append(self._event(f"response.{whole['status']}", {"response": whole}))
        return made

    def last(self) -> list[Json]:
        return []

    def failure(self, error: HttpError) -> list[Mapping[str, Any]]:
        """Return what a response that fails ends with."""
        said = error.body["error"]
        failed = {"code": said["code"], "message": said["message"]}
        whole = self._response.head.to_json("failed", [], error=failed)
        return [self._event("response.failed", {"response": whole})]

    def _begin(self) -> list[Json]:
        self._has_begun = True
        started = self._response.head.to_json("in_progress", [])
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, {"response": started}) for kind in kinds]

    def _event(self, kind: str, fields: Json) -> Json:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}


def _dumped(value: Body | str | None) -> Any:
    """Return what a client sent, as answers repeat it."""
    if not isinstance(value, Body):
        return value
    return value.model_dump(exclude_none=True) | ({"strict": True} if isinstance(value, ToolBody) else {})
