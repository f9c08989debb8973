"""Bodies of Anthropic's messages to requests. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.errors.errors import missing, unsupported
from inferflux.gateway.http.openai.bodies import JsonSchema, ResponseFormat, SamplingBody
from inferflux.gateway.http.openai.constraints import json_text
from inferflux.gateway.http.openai.params import own_fields, to_params
from inferflux.gateway.http.openai.served import MESSAGE, check_served
from inferflux.v1 import inference_pb2

from .bodies import MessagesBody, PromptBody, ToolChoiceParam, ToolParam
from .conversation import Conversation

_CHOICES: Mapping[str, inference_pb2.ToolChoiceMode.ValueType] = {
    "auto": inference_pb2.TOOL_CHOICE_MODE_AUTO,
    "any": inference_pb2.TOOL_CHOICE_MODE_REQUIRED,
    "none": inference_pb2.TOOL_CHOICE_MODE_NONE,
}
# How much a model thinks, by the client's name.
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
_THINKING = {"enabled": True, "adaptive": True, "disabled": False}
_UNSAFE = re.compile(r"[^\w.-]", re.ASCII)
_MOST_OF_A_TYPE = 64


class Prompt:
    """The part of a body that a model reads.

    Raises:
        InvalidArgument: a block or a tool is not served, or lacks something.
    """

    def __init__(self, body: PromptBody) -> None:
        self._body = body
        self._conversation = Conversation(body.system, body.messages)
        self.messages = self._conversation.messages
        self.is_begun = self._conversation.is_begun
        served = [(i, tool) for i, tool in enumerate(body.tools or []) if tool.type in (None, "custom")]
        self.tools = [_tool(tool, f"tools[{i}]") for i, tool in served]
        self._places = [f"tools[{i}]" for i, _ in served]

    @property
    def skipped(self) -> Sequence[str]:
        """Types of tools and blocks that only Anthropic serves, fit for a header."""
        hosted = [tool.type for tool in self._body.tools or [] if tool.type not in (None, "custom")]
        types = dict.fromkeys([*(type_ for type_ in hosted if type_), *self._conversation.skipped])
        return [_UNSAFE.sub("_", type_[:_MOST_OF_A_TYPE]) for type_ in types]

    def field_names(self) -> Mapping[str, str]:
        """Map fields that have another name inside to the client's names."""
        names: dict[str, str] = {}
        for i, place in enumerate(self._places):
            names |= {f"tools[{i}].parameters": f"{place}.input_schema", f"tools[{i}]": place}
        has_format = self._body.output_config is not None and self._body.output_config.format is not None
        form = "output_config.format" if has_format else "output_format"
        names |= {f"constraint.{kind}": "tools" for kind in ("tool_calls.functions", "tool_calls")}
        names |= {"constraint.json_schema": f"{form}.schema", "constraint": form}
        return {
            **self._conversation.places,
            **names,
            "stop": "stop_sequences",
            **({"max_reasoning_tokens": "thinking.budget_tokens"} if self._has_budget else {}),
            "chat_template_kwargs": "thinking",
            "reasoning_effort": "output_config.effort",
            "continue_final_message": "messages",
        }

    @property
    def _has_budget(self) -> bool:
        return self._body.thinking is not None and self._body.thinking.budget_tokens is not None

    def set_switches(self, chat: inference_pb2.ChatRequest | inference_pb2.Conversation) -> None:
        """Say how the prompt is rendered. Without a word of thinking the model does as it does.

        Raises:
            InvalidArgument: there is no such type of thinking, or effort.
        """
        chat.continue_final_message = self.is_begun
        chat.has_optional_switches = True
        if (thinking := self._body.thinking) is not None:
            if thinking.type not in _THINKING:
                known = ", ".join(_THINKING)
                raise unsupported("thinking.type", f"{thinking.type[:32]!r} is none of {known}")
            chat.chat_template_kwargs = json.dumps({"enable_thinking": _THINKING[thinking.type]})
        effort = self._body.output_config.effort if self._body.output_config is not None else None
        if effort is not None:
            if effort not in _EFFORTS:
                raise unsupported("output_config.effort", f"{effort[:32]!r} is none of {', '.join(_EFFORTS)}")
            chat.reasoning_effort = _EFFORTS[effort]

    def tokenize_request(self) -> inference_pb2.TokenizeRequest:
        """The request that counts its tokens."""
        conversation = inference_pb2.Conversation(messages=self.messages, tools=self.tools)
        self.set_switches(conversation)
        return inference_pb2.TokenizeRequest(model=self._body.model, conversation=conversation)


def to_request(body: MessagesBody, prompt: Prompt) -> inference_pb2.ChatRequest:
    """The request of a message.

    Raises:
        InvalidArgument: a value that is not served.
    """
    check_served(body, MESSAGE)
    sampling = SamplingBody.model_construct(
        **own_fields(body),
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        stop=body.stop_sequences,
        response_format=_format(body),
    )
    params = to_params(sampling, max_tokens=body.max_tokens, logprobs=None)
    request = inference_pb2.ChatRequest(
        model=body.model,
        messages=prompt.messages,
        params=params,
        priority=body.priority or 0,
        skip_answer_cache=bool(body.skip_answer_cache),
        adapter=body.adapter or "",
        tools=prompt.tools,
        tool_choice=_choice(body.tool_choice),
    )
    prompt.set_switches(request)
    if body.thinking is not None and body.thinking.type == "enabled":
        if body.thinking.budget_tokens is None:
            raise missing("thinking.budget_tokens")
        request.params.max_reasoning_tokens = body.thinking.budget_tokens
    if body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use is not None:
        request.parallel_tool_calls = not body.tool_choice.disable_parallel_tool_use
    return request


def _format(body: MessagesBody) -> ResponseFormat | None:
    """A JSON schema that the answer has to match, as OpenAI's API has it."""
    config = body.output_config
    place = "output_config.format" if config is not None and config.format is not None else "output_format"
    form = config.format if config is not None and config.format is not None else body.output_format
    if form is None:
        return None
    if form.type != "json_schema":
        raise unsupported(f"{place}.type", f"{form.type[:32]!r} is not supported, only 'json_schema' is")
    if form.schema_ is None:
        raise missing(f"{place}.schema")
    schema = JsonSchema.model_construct(name=None, schema_=form.schema_)
    return ResponseFormat.model_construct(type=form.type, json_schema=schema)


def _choice(choice: ToolChoiceParam | None) -> inference_pb2.ToolChoice | None:
    if choice is None:
        return None
    if choice.type == "tool":
        if not choice.name:
            raise InvalidArgument("tool_choice: the tool's name is missing", field="tool_choice.name")
        return inference_pb2.ToolChoice(name=choice.name)
    if choice.type not in _CHOICES:
        known = ", ".join((*_CHOICES, "tool"))
        raise unsupported("tool_choice.type", f"{choice.type[:32]!r} is none of {known}")
    return inference_pb2.ToolChoice(mode=_CHOICES[choice.type])


def _tool(tool: ToolParam, place: str) -> inference_pb2.Tool:
    if tool.name is None:
        raise missing(f"{place}.name")
    if tool.input_schema is None:
        raise missing(f"{place}.input_schema")
    return inference_pb2.Tool(
        name=tool.name,
        description=tool.description or "",
        parameters=json_text(tool.input_schema, f"{place}.input_schema"),
        strict=bool(tool.strict),
    )
