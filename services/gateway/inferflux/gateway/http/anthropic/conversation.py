"""System prompt, messages and blocks of Anthropic's API as messages of a conversation. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.http.errors.errors import given, missing, unsupported
from inferflux.gateway.images.inputs import from_base64
from inferflux.v1 import inference_pb2

from .bodies import Block, MessageParam, Source

# Claude Code begins the system prompt with such a line, which changes from request to request.
_BILLING = "x-anthropic-billing-header:"
_KNOWN = "text, image, document, search_result, tool_use, tool_result, thinking and redacted_thinking"
_ERROR = "Error: "


@dataclass(slots=True)
class _Turn:
    """The blocks that become one message.

    Attributes:
        places: of the parts, as the client has them.
        call_places: of the calls.
    """

    role: str
    place: str
    tool_call_id: str = ""
    parts: list[inference_pb2.ContentPart] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[inference_pb2.ToolCall] = field(default_factory=list)
    call_places: list[str] = field(default_factory=list)

    def add(self, part: inference_pb2.ContentPart, place: str) -> None:
        self.parts.append(part)
        self.places.append(place)

    def message(self) -> inference_pb2.ChatMessage:
        """Texts are lines."""
        made = inference_pb2.ChatMessage(
            role=self.role,
            tool_call_id=self.tool_call_id,
            tool_calls=self.calls,
            reasoning_content="\n".join(self.thoughts),
        )
        if any(part.HasField("image") for part in self.parts):
            made.parts.extend(self.parts)
        else:
            made.content = "\n".join(part.text for part in self.parts)
        return made


class Conversation:
    """Turns that follow each other in one role are one message, as in Anthropic's API.

    Results of tools come first in a message of the user: each is a message of its own. Their images follow in
    the user's message, as only those have images.

    Attributes:
        skipped: types of blocks that hosted tools left in the history.
    """

    def __init__(self, system: str | Sequence[Block] | None, messages: Sequence[MessageParam]) -> None:
        self.skipped: dict[str, None] = {}
        self._turns: list[_Turn] = []
        if system:
            self._add_system(system)
        for i, message in enumerate(messages):
            self._add_message(message, f"messages[{i}]")
        if not self._turns or not messages:
            self._turns.append(_Turn("user", "messages"))

    @property
    def messages(self) -> list[inference_pb2.ChatMessage]:
        return [turn.message() for turn in self._turns]

    @property
    def is_begun(self) -> bool:
        """Return whether the answer goes on where the last message ends."""
        last = self._turns[-1]
        has_text = any(part.text for part in last.parts) or any(last.thoughts)
        return last.role == "assistant" and has_text and not last.calls

    @property
    def places(self) -> Mapping[str, str]:
        """Where the client has what stands in the messages, for errors. The innermost come first."""
        inner: dict[str, str] = {}
        outer: dict[str, str] = {}
        for i, turn in enumerate(self._turns):
            name = f"messages[{i}]"
            for j, place in enumerate(turn.places):
                inner[f"{name}.parts[{j}].image"] = inner[f"{name}.parts[{j}]"] = place
            for j, place in enumerate(turn.call_places):
                inner[f"{name}.tool_calls[{j}].arguments"] = f"{place}.input"
                inner[f"{name}.tool_calls[{j}]"] = place
            outer[name] = turn.place
        return inner | outer

    def _turn(self, role: str, place: str) -> _Turn:
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(_Turn(role, place))
        return self._turns[-1]

    def _add_system(self, system: str | Sequence[Block]) -> None:
        turn = _Turn("system", "system")
        if isinstance(system, str):
            system = [Block(type="text", text=system)]
        for i, block in enumerate(system):
            place = f"system[{i}]"
            if block.type != "text":
                raise unsupported(f"{place}.type", f"{block.type[:32]!r} is not supported, only 'text' is")
            text = given(block.text, f"{place}.text")
            if turn.parts or (text := _without_billing(text)):
                turn.add(_text(text), place)
        if turn.parts:
            self._turns.append(turn)

    def _add_message(self, message: MessageParam, place: str) -> None:
        content = message.content
        blocks = [Block(type="text", text=content)] if isinstance(content, str) else content
        match message.role:
            case "assistant":
                self._add_assistant(blocks, place)
            case "user" | "system":
                self._add_user(message.role, blocks, place)
            case role:
                message_ = f"{place}.role: {role[:32]!r} is none of user, assistant and system"
                raise InvalidArgument(message_, field=f"{place}.role")

    def _add_assistant(self, blocks: Sequence[Block], place: str) -> None:
        turn = self._turn("assistant", place)
        for j, block in enumerate(blocks):
            where = f"{place}.content[{j}]"
            match block.type:
                case "text":
                    turn.add(_text(given(block.text, f"{where}.text")), where)
                case "thinking":
                    turn.thoughts.append(given(block.thinking, f"{where}.thinking"))
                case "redacted_thinking":
                    pass  # Anthropic alone can read it
                case "tool_use":
                    name = given(block.name, f"{where}.name")
                    arguments = _json(block.input or {}, f"{where}.input")
                    turn.calls.append(
                        inference_pb2.ToolCall(
                            id=given(block.id, f"{where}.id"), name=name, arguments=arguments
                        )
                    )
                    turn.call_places.append(where)
                case other:
                    self.skipped[other] = None

    def _add_user(self, role: str, blocks: Sequence[Block], place: str) -> None:
        rest: list[tuple[inference_pb2.ContentPart, str]] = []
        for j, block in enumerate(blocks):
            where = f"{place}.content[{j}]"
            if block.type != "tool_result":
                rest += self._parts(block, where)
                continue
            id_ = given(block.tool_use_id, f"{where}.tool_use_id")
            turn = _Turn("tool", where, tool_call_id=id_)
            self._turns.append(turn)
            for part, within in self._content(block, where):
                if part.HasField("image"):
                    rest.append((part, within))
                else:
                    turn.add(part, within)
            if block.is_error:
                said = turn.message().content
                turn.parts[:] = [_text(said if said.startswith(_ERROR) else _ERROR + said)]
                turn.places[:] = [where]
        if rest or not any(block.type == "tool_result" for block in blocks):
            turn = self._turn(role, place)
            for part, where in rest:
                turn.add(part, where)

    def _content(self, block: Block, place: str) -> Iterable[tuple[inference_pb2.ContentPart, str]]:
        """The content of a tool's result, or of a search result."""
        where = f"{place}.content"
        if isinstance(block.content, str):
            yield _text(block.content), where
        elif isinstance(block.content, dict):
            raise InvalidArgument(f"{where} is a text, or a list of blocks", field=where)
        else:
            for i, inner in enumerate(block.content or []):
                yield from self._parts(inner, f"{where}[{i}]")

    def _parts(self, block: Block, place: str) -> Iterable[tuple[inference_pb2.ContentPart, str]]:
        """A block of the user as texts and images."""
        match block.type:
            case "text":
                yield _text(given(block.text, f"{place}.text")), place
            case "image":
                yield inference_pb2.ContentPart(image=_image(block.source, f"{place}.source")), place
            case "document":
                yield from ((_text(said), place) for said in (block.title, block.context) if said)
                yield from self._document(block.source, f"{place}.source")
            case "search_result":
                source = block.source if isinstance(block.source, str) else None
                yield from ((_text(said), place) for said in (block.title, source) if said)
                yield from self._content(block, place)
            case "tool_reference":  # of a tool that a search of tools has found
                self.skipped[block.type] = None
            case other:
                raise unsupported(f"{place}.type", f"{other[:32]!r} is not supported here, only {_KNOWN}")

    def _document(
        self, source: Source | str | None, place: str
    ) -> Iterable[tuple[inference_pb2.ContentPart, str]]:
        if not isinstance(source, Source):
            raise missing(place)
        match source.type:
            case "text":
                yield _text(given(source.data, f"{place}.data")), place
            case "content":
                yield from self._content(Block(type="document", content=source.content), place)
            case "base64" if (source.media_type or "").startswith("text/"):
                data = from_base64(given(source.data, f"{place}.data"), field=f"{place}.data")
                yield _text(data.decode("utf-8", "replace")), place
            case _:
                raise unsupported(place, "only documents of text are read: send what a file says as text")


def _without_billing(text: str) -> str:
    """A system prompt without the lines at its head that say who pays: they would spoil the prefix cache."""
    while text.startswith(_BILLING):
        text = text.partition("\n")[2]
    return text


def _text(text: str) -> inference_pb2.ContentPart:
    return inference_pb2.ContentPart(text=text)


def _image(source: Source | str | None, place: str) -> inference_pb2.ImageInput:
    if not isinstance(source, Source):
        raise missing(place)
    match source.type:
        case "base64":
            data = given(source.data, f"{place}.data")
            return inference_pb2.ImageInput(data=from_base64(data, field=place, reason="BAD_IMAGE"))
        case "url":
            return inference_pb2.ImageInput(url=given(source.url, f"{place}.url"))
    raise unsupported(f"{place}.type", f"{source.type[:32]!r} is not supported, only base64 and url are")


def _json(value: Any, place: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise InvalidArgument(f"{place} has a number that is no JSON", field=place) from None
