"""Chat completions: a body to a ChatRequest, and token chunks to OpenAI's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferflux.api.finish_reasons import name_of
from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import inference_pb2, tokens_pb2

from . import constraints, custom_tools, messages, served, tools
from .answers import (
    DraftSum,
    Head,
    Json,
    StreamUsage,
    UnnamedEvents,
    UsageSum,
    drafts_of,
    spoken_json,
)
from .bodies import ChatBody, StreamOptions, ToolBody
from .fields import names_used
from .params import priority_of, to_params
from .prompt_form import form_names, prompt_form
from .tools import legacy_choice, legacy_tools, to_choice, to_tools


def to_request(body: ChatBody) -> inference_pb2.ChatRequest:
    """The request of every choice.

    Raises:
        InvalidArgument: a value that is not served, or fields that contradict each other.
    """
    served.check_served(body, served.CHAT)
    served.check_stream(body)
    if is_legacy(body) and body.tools:
        raise InvalidArgument("functions do not go together with tools", field="functions")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidArgument("top_logprobs needs logprobs to be true", field="top_logprobs")
    form = prompt_form(body)
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return inference_pb2.ChatRequest(
        model=body.model,
        messages=[messages.to_message(message, i) for i, message in enumerate(body.messages)],
        params=to_params(body, max_tokens=most, logprobs=(body.top_logprobs or 0) if body.logprobs else None),
        priority=priority_of(body),
        skip_answer_cache=bool(body.skip_answer_cache),
        adapter=body.adapter or "",
        tools=to_tools(_tools(body)),
        tool_choice=to_choice(legacy_choice(body.function_call) if is_legacy(body) else body.tool_choice),
        parallel_tool_calls=False if is_legacy(body) else body.parallel_tool_calls,
        chat_template_kwargs=form.chat_template_kwargs,
        reasoning_effort=form.reasoning_effort,
        continue_final_message=form.continue_final_message,
        skip_generation_prompt=form.skip_generation_prompt,
    )


def is_legacy(body: ChatBody) -> bool:
    """Return whether it names functions as before tools: its answer has `function_call`."""
    return bool(body.functions)


def _tools(body: ChatBody) -> Sequence[ToolBody] | None:
    return legacy_tools(body.functions) if body.functions else body.tools


def field_names(body: ChatBody) -> Mapping[str, str]:
    """Map fields that have another name inside to the client's names."""
    names = {
        "logprobs": "top_logprobs",
        **constraints.field_names(body),
        **tools.field_names(body.tools),
        **messages.field_names(body.messages),
        **form_names(body),
    }
    if body.functions:
        for i in range(len(body.functions)):
            names[f"tools[{i}]"] = f"functions[{i}]"
        names |= {"tools": "functions", "tool_choice": "function_call"}
    if body.response_format is None and body.structured_outputs is None:
        names["constraint"] = "tools"
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return names | {name: used for name, used in names_used(body).items() if name not in names}


class ChatStream(UnnamedEvents):
    """Chunks of all choices to the messages of a stream."""

    def __init__(
        self,
        head: Head,
        *,
        n: int,
        has_logprobs: bool,
        options: StreamOptions | None = None,
        is_legacy: bool = False,
        customs: frozenset[str] = frozenset(),
    ) -> None:
        self._head = head
        self._told = StreamUsage(head, options)
        self._has_logprobs = has_logprobs
        self._is_legacy = is_legacy
        self._usage = UsageSum(choices_per_prompt=n)
        self._begun: set[int] = set()
        self._calls = [custom_tools.ChatCalls(customs) for _ in range(n)]
        # Choices with calls.
        self._calling: set[int] = set()

    def messages(
        self, index: int, chunk: tokens_pb2.TokenChunk, delta: inference_pb2.ChatDelta | None = None
    ) -> list[Json]:
        """Return the client's messages for one chunk of a choice."""
        messages: list[Json] = []
        self._told.note(chunk)
        is_end = chunk.HasField("finished")
        if index not in self._begun and (chunk.token_ids or is_end):
            self._begun.add(index)
            # Of an answer that may be calls alone, it is not known yet whether it has content.
            content = "" if delta is None else None
            messages.append(self._message(index, {"role": "assistant", "content": content}))
        logprobs = logprobs_of(chunk) if self._has_logprobs else None
        said = _said(chunk, delta, self._calls[index])
        if self._is_legacy:
            said = _in_legacy(said)
        if said or (logprobs and logprobs["content"]):
            messages.append(self._message(index, said or {"content": ""}, logprobs))
        if delta is not None and delta.tool_calls:
            self._calling.add(index)
        if is_end:
            self._usage.add(index, chunk.finished.usage)
            reason = finish_reason(chunk.finished, has_calls=index in self._calling)
            if self._is_legacy and reason == "tool_calls":
                reason = "function_call"
            messages.append(self._message(index, {}, finish_reason=reason) | drafts_of(chunk.finished))
        return messages

    def last(self) -> list[Json]:
        """Return the messages after the choices."""
        if not self._told.is_last:
            return []
        return [self._head.of("chat.completion.chunk", []) | {"usage": self._usage.to_json()}]

    def _message(
        self, index: int, delta: Json, logprobs: Json | None = None, finish_reason: str | None = None
    ) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._head.of("chat.completion.chunk", [choice]) | self._told.of_message()


def _said(
    chunk: tokens_pb2.TokenChunk, delta: inference_pb2.ChatDelta | None, calls: custom_tools.ChatCalls
) -> Json:
    """Return what a chunk adds to the message."""
    if delta is None:
        return {"content": chunk.text} if chunk.text else {}
    said: Json = {}
    if delta.reasoning_content:
        said["reasoning_content"] = delta.reasoning_content
    if delta.content:
        said["content"] = delta.content
    if delta.tool_calls:
        said["tool_calls"] = [calls.to_json(call) for call in delta.tool_calls]
    return said


def _in_legacy(said: Json) -> Json:
    """A message, or a part of one, with its only call as it was spelled before there were tools."""
    calls = said.get("tool_calls")
    if not calls:
        return said
    return {name: value for name, value in said.items() if name != "tool_calls"} | {
        "function_call": calls[0]["function"]
    }


def finish_reason(finished: tokens_pb2.Finished, *, has_calls: bool) -> str:
    """Calls that a limit cut are told as cut."""
    reason = name_of(finished.reason)
    return "tool_calls" if has_calls and reason == "stop" else reason


class _Choice:
    def __init__(self, customs: frozenset[str]) -> None:
        self.parts = custom_tools.ChatCalls(customs)
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[Json] = []
        self.logprobs: list[Json] = []
        self.finish_reason: str | None = None

    def add(self, said: Json) -> None:
        self.texts.append(said.get("content", ""))
        self.reasoning.append(said.get("reasoning_content", ""))
        for call in said.get("tool_calls", ()):
            index = call.pop("index")
            if index == len(self.calls):
                self.calls.append(call)
            else:
                for kind, text in (("function", "arguments"), ("custom", "input")):
                    if kind in call:
                        self.calls[index][kind][text] += call[kind][text]

    def message(self) -> Json:
        content = "".join(self.texts)
        message: Json = {"role": "assistant", "content": content or ("" if not self.calls else None)}
        message["refusal"] = None
        if reasoning := "".join(self.reasoning):
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class ChatAnswer:
    """Chunks of all choices to one answer."""

    def __init__(
        self,
        head: Head,
        *,
        n: int,
        has_logprobs: bool,
        is_legacy: bool = False,
        customs: frozenset[str] = frozenset(),
    ) -> None:
        self._head = head
        self._has_logprobs = has_logprobs
        self._is_legacy = is_legacy
        self._usage = UsageSum(choices_per_prompt=n)
        self._drafts = DraftSum()
        self._choices = [_Choice(customs) for _ in range(n)]

    def add(
        self, index: int, chunk: tokens_pb2.TokenChunk, delta: inference_pb2.ChatDelta | None = None
    ) -> None:
        choice = self._choices[index]
        choice.add(_said(chunk, delta, choice.parts))
        if self._has_logprobs:
            choice.logprobs.extend(logprobs_of(chunk)["content"])
        if chunk.HasField("finished"):
            choice.finish_reason = finish_reason(chunk.finished, has_calls=bool(choice.calls))
            self._usage.add(index, chunk.finished.usage)
            self._drafts.add(chunk.finished.timings)

    def to_json(self) -> Json:
        choices = [self._to_json(i, choice) for i, choice in enumerate(self._choices)]
        said = {"usage": self._usage.to_json()} | self._drafts.to_json()
        return self._head.of("chat.completion", choices) | said

    def _to_json(self, index: int, choice: _Choice) -> Json:
        logprobs = {"content": choice.logprobs, "refusal": None} if self._has_logprobs else None
        message, reason = choice.message(), choice.finish_reason
        if self._is_legacy:
            message = _in_legacy(message)
            reason = "function_call" if reason == "tool_calls" else reason
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}


def logprobs_of(chunk: tokens_pb2.TokenChunk) -> Json:
    return {"content": spoken_json(chunk), "refusal": None}
