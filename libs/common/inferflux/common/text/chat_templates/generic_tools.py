"""Tools for chat templates that have no place for them: told by the system, spelt as Hermes does (pure).

A template that shows calls, and only not the tools, keeps its own spelling: the text has an example of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from .capabilities import DESCRIPTION, TOOL, Capabilities
from .conversation import Call, Message, as_read
from .templates import Json

#: What encloses a call, which is {"name": ..., "arguments": {...}}.
CALL, END_CALL = "<tool_call>", "</tool_call>"
_RESULT, _END_RESULT = "<tool_response>", "</tool_response>"
_HEAD: Final = (
    "# Tools\n\nYou can call functions to help with the user's request. These are there, each with a JSON "
    "schema of its arguments:\n<tools>\n"
)
_GENERIC: Final = (
    "\n</tools>\n\nTo call a function, write its name and its arguments as a JSON object between "
    f'{CALL} and {END_CALL}:\n{CALL}\n{{"name": "the name", "arguments": {{"argument": "value"}}}}\n'
    f"{END_CALL}\n\nIts result comes between {_RESULT} and {_END_RESULT}."
)


def with_generic_tools(
    messages: Sequence[Message], tools: Sequence[Json], reads: Capabilities
) -> list[Message]:
    """A conversation with its tools, calls and results where the template shows them."""
    told = _told(messages, tools, reads) if tools else list(messages)
    if reads.shows_calls:
        return told
    return list(_joined_results(_as_texts(told)))


def can_tell_tools(reads: Capabilities) -> bool:
    """Return whether the template shows such a text."""
    user = "Qgeneric userQ"
    told = with_generic_tools([Message("user", (user,))], [dict(TOOL)], reads)
    return reads.shows(as_read(told, reads), DESCRIPTION, user)


def _told(messages: Sequence[Message], tools: Sequence[Json], reads: Capabilities) -> list[Message]:
    """The text about the tools is the system's, after what it says."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    how = f"\n</tools>\n\nCall a function as here:\n{reads.example_call}" if reads.shows_calls else _GENERIC
    text = f"{_HEAD}{listed}{how}"
    if messages and messages[0].role in ("system", "developer"):
        first = messages[0]
        return [replace(first, texts=(f"{first.text}\n\n{text}",), is_parts=False), *messages[1:]]
    return [Message("system", (text,)), *messages]


def _as_texts(messages: Iterable[Message]) -> Iterable[Message]:
    for message in messages:
        if message.calls:
            parts = [message.text, *map(_spelt, message.calls)]
            text = "\n".join(part for part in parts if part)
            yield replace(message, texts=(text,), is_parts=False, calls=())
        elif message.role == "tool":
            yield Message("user", (f"{_RESULT}\n{message.text}\n{_END_RESULT}",))
        else:
            yield message


def _spelt(call: Call) -> str:
    spelt = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"{CALL}\n{spelt}\n{END_CALL}"


def _joined_results(messages: Iterable[Message]) -> Iterable[Message]:
    """Results that follow each other as one message."""
    last: Message | None = None
    for message in messages:
        is_result = message.role == "user" and message.text.startswith(_RESULT)
        if last is not None and is_result and last.text.startswith(_RESULT) and last.role == "user":
            last = replace(last, texts=(f"{last.text}\n{message.text}",))
            continue
        if last is not None:
            yield last
        last = message
    if last is not None:
        yield last
