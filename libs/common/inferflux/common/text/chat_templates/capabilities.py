"""The form in which a chat template reads messages, found by rendering some of our own (pure).

Nothing is known by a family's name. Each property is found when it is first asked for, so that a template
which breaks down over calls still serves plain chats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final

from .templates import ChatTemplate, Json, TemplateError, TemplateRefusedError

_TEXT, _OTHER, _THOUGHT, _RESULT = "Qprobe textQ", "Qother textQ", "Qprobe thoughtQ", "Qprobe resultQ"
_VALUE = "Qprobe valueQ"
_NAME = "probe_function"
DESCRIPTION = "Qprobe descriptionQ"
_SHORT_ID, _LONG_ID = "aB3dEf6h9", "call_aB3dEf6h9_1234567890"

TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": DESCRIPTION,
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "string", "description": "A parameter."}},
            "required": ["x"],
        },
    },
}

# Names under which templates look for thoughts: those in use first, as Hugging Face Transformers has them.
_THOUGHT_KEYS = ("reasoning_content", "thinking", "reasoning")
_THOUGHT_KEY = "[a-z_]*(?:reason|think|thought)[a-z_]*"
_MOST_KEYS = 12
THINK, END_THINK = "<think>", "</think>"


class Content(Enum):
    """The forms that a role's content may have."""

    TEXT = 1
    PARTS = 2
    EITHER = 3


class Place(Enum):
    """Place where a template looks for the assistant's reasoning."""

    KEY = 1  # a key of the message
    PART = 2  # a part of the content: {"type": "thinking", "thinking": ...}
    BLOCKS = 3  # the content is {"blocks": [{"type": "thoughts", "text": ...}, ...]}
    TEXT = 4  # the content, between <think> and </think>
    NONE = 5


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Place and form in which a template reads reasoning in the history.

    Attributes:
        key: of the message.
        beside_calls: whether a message with calls may have content and a thought.
    """

    place: Place
    key: str = ""
    beside_calls: bool = True


class Capabilities:
    """Capabilities of one template. Several threads may ask for them.

    Args:
        template: what renders.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template.trial
        self._contents: dict[str, Content] = {}

    def content(self, role: str) -> Content:
        """The form of a role's content."""
        found = self._contents.get(role)
        if found is None:
            found = self._contents[role] = self._content(role)
        return found

    @cached_property
    def knows_developer(self) -> bool:
        """Return whether `developer` is a role of its own. Many templates show any role, under its name."""
        if not self._template.knows("developer"):
            return False
        return self.shows([_said("developer"), _said("user", _OTHER)], _TEXT, _OTHER)

    @cached_property
    def takes_system(self) -> bool:
        return self.shows([_said("system"), _said("user", _OTHER)], _TEXT, _OTHER)

    @cached_property
    def takes_several_systems(self) -> bool:
        """Return whether the first messages may be several of the system's."""
        return self.shows([_said("system"), _said("system", _RESULT), _said("user", _OTHER)], _TEXT, _RESULT)

    @cached_property
    def takes_late_systems(self) -> bool:
        """Return whether the system may speak later on."""
        messages = [
            *([_said("system", _THOUGHT)] if self.takes_system else []),
            _said("user"),
            _said("assistant", _OTHER),
            _said("system", _RESULT),
            _said("user", _VALUE),
        ]
        first = [_THOUGHT] if self.takes_system else []
        return self.shows(messages, *first, _TEXT, _OTHER, _RESULT, _VALUE)

    @cached_property
    def takes_runs(self) -> bool:
        """Return whether a role may speak twice in a row."""
        return self._rendered([_said("user"), _said("user", _OTHER)]) is not None

    @cached_property
    def takes_long_ids(self) -> bool:
        """Return whether ids of calls may have another form than 9 letters and digits."""
        return (
            self._rendered(self._called(call_id=_LONG_ID)) is not None
            or self._rendered(self._called()) is None
        )

    @cached_property
    def takes_several_calls(self) -> bool:
        """Return whether a message may have more than one call."""
        messages = self._called(content=None if self.wants_null_content else "")
        (call,) = messages[1]["tool_calls"]
        other = "Qother valueQ"
        arguments: Any = f'{{"x": "{other}"}}' if self.arguments_are_text else {"x": other}
        second = {**call, "id": "bB3dEf6h9", "function": {"name": _NAME, "arguments": arguments}}
        messages[1]["tool_calls"] = [call, second]
        messages.append({**messages[2], "tool_call_id": second["id"]})
        return not self.shows_calls or self.shows(messages, _VALUE, other)

    @cached_property
    def arguments_are_text(self) -> bool:
        """Return whether arguments of calls have to be JSON text, not an object."""
        as_object, as_text = (self._rendered(_conversation(form, "")) for form in (False, True))
        return _has(as_text, _VALUE) and not _has(as_object, _VALUE)

    @cached_property
    def wants_null_content(self) -> bool:
        """Return whether calls are shown only where their message's content is null."""
        return not self.shows(self._called(), _VALUE) and self.shows(self._called(content=None), _VALUE)

    @cached_property
    def shows_calls(self) -> bool:
        """Return whether calls in the history are shown."""
        content = None if self.wants_null_content else ""
        return self.shows(self._called(content=content), _VALUE)

    @cached_property
    def example_call(self) -> str:
        """A call as the template spells it in the assistant's message, up to the token that ends it."""
        content = None if self.wants_null_content else ""
        called = _conversation(self.arguments_are_text, content, name="name_of_the_function", key="argument")
        text, bare = (self._rendered(called[:n]) or "" for n in (2, 1))
        same = next((i for i, (a, b) in enumerate(zip(text, bare, strict=False)) if a != b), len(bare))
        begin = text.rfind("<", 0, same) if text.rfind("<", 0, same) > text.rfind(">", 0, same) else same
        spelt = text[begin:].replace(_VALUE, "value")
        return spelt.partition(self._template.tokens.get("eos_token") or "\0")[0].strip()

    @cached_property
    def shows_tools(self) -> bool:
        """Return whether the model is told of tools."""
        conversations = (self._called(), self._called()[:2], self._called()[:1])
        return any(_has(self._rendered(messages), DESCRIPTION) for messages in conversations)

    @cached_property
    def thoughts(self) -> Thoughts:
        """Place of reasoning in the history: the first from which the template shows one."""
        template = self._template
        others = template.words_like(_THOUGHT_KEY)
        known = [key for key in _THOUGHT_KEYS if template.knows(key)]
        for key in [*known, *(other for other in others if other not in known)][:_MOST_KEYS]:
            if self._shows_thought({key: _THOUGHT}, _OTHER):
                beside = self._is_whole_beside_calls({key: _THOUGHT})
                return Thoughts(Place.KEY, key, beside)
        if template.knows("thinking") and self._shows_thought({}, thinking_parts(_THOUGHT, [_OTHER])):
            return Thoughts(Place.PART)
        if template.knows("blocks") and self._shows_thought({}, thought_blocks(_THOUGHT, [_OTHER])):
            return Thoughts(Place.BLOCKS)
        return Thoughts(Place.TEXT if END_THINK in template.source else Place.NONE)

    @cached_property
    def thinks(self) -> bool:
        """Return whether its models think, as far as the template tells."""
        return self.thoughts.place is not Place.NONE or "reasoning_effort" in self._template.variables

    @cached_property
    def structure(self) -> str:
        """The template's own text, and that of conversations in which every kind of message comes."""
        thought = {self.thoughts.key: _THOUGHT} if self.thoughts.place is Place.KEY else {}
        answered = [*self._called(**thought), {"role": "assistant", "content": _OTHER, **thought}]
        conversations = (
            [_said("system"), *answered, _said("user"), {"role": "assistant", "content": _OTHER, **thought}],
            [*answered, _said("user")],
            [_said("system"), _said("user"), _said("assistant"), _said("user")],
            [_said("user")],
        )
        texts = (
            self._rendered(messages, switches)
            for messages in conversations
            for switches in ({}, self._all_thoughts)
        )
        return "\n".join([self._template.source, *filter(None, texts)])

    def accepts(self, switches: Json) -> bool:
        """Return whether a short conversation is rendered with these."""
        return self._rendered([_said("user")], switches) is not None

    def _content(self, role: str) -> Content:
        # Some templates read the first part alone.
        texts, parts = (self._shows_content(role, form) for form in (_TEXT, text_parts([_VALUE, _TEXT])))
        if parts and texts:
            return Content.EITHER
        return Content.PARTS if parts else Content.TEXT

    def _shows_content(self, role: str, content: Any) -> bool:
        """Return whether a content is shown as text, not as Python or JSON spell it."""
        message = {"role": role, "content": content}
        match role:
            case "system" | "developer":
                messages = [message, _said("user", _OTHER)]
            case "assistant":
                messages = [_said("user", _OTHER), message, _said("user", _RESULT)]
            case "tool":
                messages = [*self._called()[:2], {**self._called()[2], "content": content}]
            case _:
                messages = [message]
        text = self._rendered(messages)
        return text is not None and _TEXT in text and not _is_spelt_out(text)

    def _shows_thought(self, keys: Json, content: Any) -> bool:
        """Return whether a thought is shown in any of the histories in which templates show them."""
        said = {"role": "assistant", **keys, "content": content}
        with_calls = [*self._called(content=content, **keys)]
        bare_calls = [*self._called(**keys)] if keys else with_calls
        histories = (
            [_said("user"), said],
            [_said("user"), said, _said("user")],
            bare_calls,
            with_calls,
        )
        for switches in ({}, self._all_thoughts):
            for messages in histories:
                text = self._rendered(messages, switches)
                if text is not None and _THOUGHT in text and not _is_spelt_out(text):
                    return True
        return False

    def _is_whole_beside_calls(self, keys: Json) -> bool:
        return self._rendered(self._called(content=_OTHER, **keys)) is not None

    @cached_property
    def _all_thoughts(self) -> Json:
        """The template's switches for thoughts, so that all are shown."""
        hides = ("drop", "clear", "truncate", "skip", "hide", "remove")
        return {
            name: not name.startswith(hides)
            for name in self._template.variables
            if "think" in name or "thought" in name
        }

    def _called(self, *, content: Any = "", call_id: str = _SHORT_ID, **keys: Any) -> list[Json]:
        return _conversation(self.arguments_are_text, content, call_id, **keys)

    def shows(self, messages: Sequence[Json], *texts: str) -> bool:
        """Return whether messages are rendered with all of these texts."""
        text = self._rendered(messages)
        return text is not None and all(each in text for each in texts)

    def _rendered(self, messages: Sequence[Json], switches: Json | None = None) -> str | None:
        """None where the template refuses the messages, or breaks down."""
        has_calls = any("tool_calls" in message or message["role"] == "tool" for message in messages)
        try:
            return self._template.render(messages, [TOOL] if has_calls else (), switches=switches)
        except (TemplateError, TemplateRefusedError):
            return None


def text_parts(texts: Sequence[str]) -> list[Json]:
    """Content as parts."""
    return [{"type": "text", "text": text} for text in texts]


def thinking_parts(thought: str, texts: Sequence[str]) -> list[Json]:
    """The same, and a thought before it."""
    return [{"type": "thinking", "thinking": thought}, *text_parts(texts)]


def thought_blocks(thought: str, texts: Sequence[str]) -> Json:
    """Content as Apertus reads it."""
    blocks = [{"type": "response", "text": text} for text in texts]
    return {"blocks": [{"type": "thoughts", "text": thought}, *blocks]}


def _said(role: str, text: str = _TEXT) -> Json:
    return {"role": role, "content": text}


def _conversation(
    arguments_are_text: bool,
    content: Any,
    call_id: str = _SHORT_ID,
    *,
    name: str = _NAME,
    key: str = "x",
    **keys: Any,
) -> list[Json]:
    arguments: Any = f'{{"{key}": "{_VALUE}"}}' if arguments_are_text else {key: _VALUE}
    call = {"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}}
    return [
        _said("user", _RESULT),
        {"role": "assistant", "content": content, "tool_calls": [call], **keys},
        {"role": "tool", "name": name, "tool_call_id": call_id, "content": _RESULT},
    ]


def _has(text: str | None, part: str) -> bool:
    return text is not None and part in text


def _is_spelt_out(text: str) -> bool:
    return any(spelling in text for spelling in ("'type'", '"type": "text"', '\\"type\\"', "'text'"))
