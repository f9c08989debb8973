"""Items of a response's output: reasoning, messages, calls; and the events that tell of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inferflux.gateway.http.openai.answers import Json
from inferflux.gateway.http.openai.custom_tools import InputText

Event = tuple[str, Json]


@dataclass(slots=True)
class MessageItem:
    """A text of the assistant."""

    id: str
    text: str = ""
    logprobs: list[Json] = field(default_factory=list)

    def to_json(self, status: str) -> Json:
        return self._item(status, [self._part()])

    def begin(self) -> list[Event]:
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return [
            ("response.output_item.added", {"item": self._item("in_progress", [])}),
            ("response.content_part.added", self._of_part(part=empty)),
        ]

    def add(self, text: str, logprobs: Sequence[Json] = ()) -> Event:
        self.text += text
        self.logprobs += logprobs
        return "response.output_text.delta", self._of_part(delta=text, logprobs=list(logprobs))

    def end(self, status: str) -> list[Event]:
        return [
            ("response.output_text.done", self._of_part(text=self.text, logprobs=self.logprobs)),
            ("response.content_part.done", self._of_part(part=self._part())),
            ("response.output_item.done", {"item": self.to_json(status)}),
        ]

    def _item(self, status: str, content: list[Json]) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def _of_part(self, **fields: Any) -> Json:
        return {"item_id": self.id, "content_index": 0, **fields}


@dataclass(slots=True)
class ReasoningItem:
    """The thoughts of the model."""

    id: str
    text: str = ""

    def to_json(self, status: str) -> Json:
        return self._item(status, [self._part(self.text)])

    def begin(self) -> list[Event]:
        return [
            ("response.output_item.added", {"item": self._item("in_progress", [])}),
            ("response.content_part.added", self._of_part(part=self._part(""))),
        ]

    def add(self, text: str) -> Event:
        self.text += text
        return "response.reasoning_text.delta", self._of_part(delta=text)

    def end(self, status: str) -> list[Event]:
        return [
            ("response.reasoning_text.done", self._of_part(text=self.text)),
            ("response.content_part.done", self._of_part(part=self._part(self.text))),
            ("response.output_item.done", {"item": self.to_json(status)}),
        ]

    def _item(self, status: str, content: list[Json]) -> Json:
        return {"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": content}

    @staticmethod
    def _part(text: str) -> Json:
        return {"type": "reasoning_text", "text": text}

    def _of_part(self, **fields: Any) -> Json:
        return {"item_id": self.id, "content_index": 0, **fields}


@dataclass(slots=True)
class CallItem:
    """A call of a function."""

    id: str
    call_id: str
    name: str
    arguments: str = ""

    def to_json(self, status: str) -> Json:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
        }

    def begin(self) -> list[Event]:
        return [("response.output_item.added", {"item": self.to_json("in_progress")})]

    def add(self, text: str) -> list[Event]:
        self.arguments += text
        return [("response.function_call_arguments.delta", {"item_id": self.id, "delta": text})]

    def end(self, status: str) -> list[Event]:
        done = {"item_id": self.id, "name": self.name, "arguments": self.arguments}
        return [
            ("response.function_call_arguments.done", done),
            ("response.output_item.done", {"item": self.to_json(status)}),
        ]


@dataclass(slots=True)
class CustomCallItem:
    """A call of a custom tool."""

    id: str
    call_id: str
    name: str
    text: str = ""
    _reader: InputText = field(default_factory=InputText)

    def to_json(self, status: str) -> Json:
        return {
            "id": self.id,
            "type": "custom_tool_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "input": self.text,
        }

    def begin(self) -> list[Event]:
        return [("response.output_item.added", {"item": self.to_json("in_progress")})]

    def add(self, arguments: str) -> list[Event]:
        text = self._reader.add(arguments)
        self.text += text
        return (
            [("response.custom_tool_call_input.delta", {"item_id": self.id, "delta": text})] if text else []
        )

    def end(self, status: str) -> list[Event]:
        return [
            ("response.custom_tool_call_input.done", {"item_id": self.id, "input": self.text}),
            ("response.output_item.done", {"item": self.to_json(status)}),
        ]


Item = MessageItem | ReasoningItem | CallItem | CustomCallItem
