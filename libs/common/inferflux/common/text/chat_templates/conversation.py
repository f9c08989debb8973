"""A conversation in the form that a chat template reads (pure).

Where the template takes messages as they are, they stay so: the prompt is the one that Hugging Face
Transformers renders. What it would refuse or lose is given in another form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import Any

from .capabilities import (
    END_THINK,
    THINK,
    Capabilities,
    Content,
    Place,
    text_parts,
    thinking_parts,
    thought_blocks,
)
from .templates import Json


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the assistant has made.

    Attributes:
        arguments: the object.
        arguments_text: its JSON, as the client spelt it.
    """

    id: str
    name: str
    arguments: Json
    arguments_text: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Attributes:
        texts: the content: one text, or those of its parts.
        is_parts: whether it came as parts.
        has_media: whether some of the texts are marks of images or sounds.
        thought: of the assistant, before it spoke.
        name: of the speaker; with the role `tool`, of the function.
        call_id: of the call that this is the result of.
    """

    role: str
    texts: tuple[str, ...]
    is_parts: bool = False
    has_media: bool = False
    thought: str = ""
    calls: tuple[Call, ...] = ()
    name: str = ""
    call_id: str = ""

    @property
    def text(self) -> str:
        """Parts are lines."""
        return "\n".join(self.texts)


def as_read(messages: Sequence[Message], reads: Capabilities) -> list[Json]:
    """Messages as a template wants them, in Hugging Face's form."""
    arranged: Iterable[Message] = _with_known_roles(_named(messages), reads)
    arranged = _with_systems_placed(list(arranged), reads)
    arranged = _in_turns(_with_single_calls(arranged, reads), reads)
    said = list(arranged)
    has_blocks = any(message.thought for message in said) and reads.thoughts.place is Place.BLOCKS
    return [_json(message, reads, has_blocks=has_blocks) for message in said]


def _named(messages: Sequence[Message]) -> Iterator[Message]:
    """Results with ids and names of their calls. One without an id is of the first call without a result."""
    names: dict[str, str] = {}
    open_calls: list[str] = []
    for message in messages:
        for call in message.calls:
            names[call.id] = call.name
            open_calls.append(call.id)
        if message.role == "tool":
            call_id = message.call_id or (open_calls[0] if open_calls else "")
            if call_id in open_calls:
                open_calls.remove(call_id)
            message = replace(message, call_id=call_id, name=message.name or names.get(call_id, ""))
        yield message


def _with_known_roles(messages: Iterable[Message], reads: Capabilities) -> Iterator[Message]:
    """`developer` is the newer `system`, which few templates know."""
    for message in messages:
        is_new = message.role == "developer" and not reads.knows_developer
        yield replace(message, role="system") if is_new else message


def _with_systems_placed(messages: list[Message], reads: Capabilities) -> list[Message]:
    """One system message where the template takes one; its text before the user's where it takes none."""
    n_leading = next((i for i, each in enumerate(messages) if not _is_system(each)), len(messages))
    leading, rest = messages[:n_leading], messages[n_leading:]
    if any(map(_is_system, rest)) and not reads.takes_late_systems:
        leading += filter(_is_system, rest)
        rest = [message for message in rest if not _is_system(message)]
    if len(leading) > 1 and not (reads.takes_several_systems and _is_uniform(leading)):
        leading = [_joined(leading)]
    if not leading or leading[0].role == "developer" or reads.takes_system:
        return leading + rest
    spoken = replace(leading[0], role="user")
    if rest and rest[0].role == "user":
        return [_joined([spoken, rest[0]]), *rest[1:]]
    return [spoken, *rest]


def _is_system(message: Message) -> bool:
    return message.role in ("system", "developer")


def _is_uniform(messages: Sequence[Message]) -> bool:
    return len({message.role for message in messages}) == 1


def _joined(messages: Sequence[Message]) -> Message:
    """Messages of one speaker as one, with the first one's role."""
    texts = chain.from_iterable(each.texts if each.is_parts else (each.text,) for each in messages)
    if any(each.has_media for each in messages):
        return replace(messages[0], texts=tuple(texts), is_parts=True, has_media=True)
    thought = "\n\n".join(each.thought for each in messages if each.thought)
    return replace(
        messages[0], texts=("\n\n".join(each.text for each in messages),), is_parts=False, thought=thought
    )


def _with_single_calls(messages: Sequence[Message], reads: Capabilities) -> Iterator[Message]:
    """Each call with its result after it, where the template takes one call a message."""
    if all(len(message.calls) < 2 for message in messages) or reads.takes_several_calls:
        yield from messages
        return
    results = {message.call_id: message for message in messages if message.role == "tool"}
    moved: set[str] = set()
    for message in messages:
        if len(message.calls) < 2:
            if message.call_id not in moved:
                yield message
            continue
        for i, call in enumerate(message.calls):
            bare = replace(message, texts=("",), is_parts=False, has_media=False, thought="", calls=(call,))
            yield bare if i else replace(message, calls=(call,))
            if call.id in results:
                moved.add(call.id)
                yield results[call.id]


def _in_turns(messages: Iterable[Message], reads: Capabilities) -> list[Message]:
    """Join what one speaker says in a row, where the template wants speakers to take turns."""
    turns: list[Message] = []
    for message in messages:
        if (
            turns
            and turns[-1].role == message.role
            and message.role in ("user", "assistant")
            and not (turns[-1].calls or message.calls)
            and not reads.takes_runs
        ):
            turns[-1] = _joined([turns[-1], message])
        else:
            turns.append(message)
    return turns


def _json(message: Message, reads: Capabilities, *, has_blocks: bool) -> Json:
    made: Json = {"role": message.role, "content": _content(message, reads)}
    if message.name:
        made["name"] = message.name
    if message.call_id:
        made["tool_call_id"] = _call_id(message.call_id, reads)
    if message.role == "assistant" and (message.thought or has_blocks):
        _think(message, made, reads)
    if message.calls:
        made["tool_calls"] = [_call(call, reads) for call in message.calls]
        if not made["content"] and reads.wants_null_content:
            made["content"] = None
    return made


def _content(message: Message, reads: Capabilities) -> Any:
    form = reads.content(message.role)
    if form is Content.PARTS:
        return text_parts([text for text in message.texts if text or not message.calls])
    if form is Content.EITHER and message.is_parts and not message.has_media:
        return text_parts(message.texts)
    return message.text


def _think(message: Message, made: Json, reads: Capabilities) -> None:
    """Put a thought where the template looks for it."""
    thoughts = reads.thoughts
    texts = [text for text in message.texts if text]
    match thoughts.place:
        case Place.KEY if texts and message.calls and not thoughts.beside_calls:
            made[thoughts.key] = "\n\n".join([message.thought, *texts])
            made["content"] = ""
        case Place.KEY:
            made[thoughts.key] = message.thought
        case Place.PART:
            made["content"] = thinking_parts(message.thought, texts)
        case Place.BLOCKS:
            made["content"] = thought_blocks(message.thought, texts)
        case Place.TEXT:
            made["content"] = f"{THINK}\n{message.thought}\n{END_THINK}\n\n{message.text}"
        case Place.NONE:
            pass


def _call(call: Call, reads: Capabilities) -> Json:
    arguments = call.arguments_text if reads.arguments_are_text else call.arguments
    return {
        "type": "function",
        "id": _call_id(call.id, reads),
        "function": {"name": call.name, "arguments": arguments},
    }


def _call_id(call_id: str, reads: Capabilities) -> str:
    """Some templates take ids of 9 letters and digits alone: theirs are made from those of the messages."""
    if (len(call_id) == 9 and call_id.isascii() and call_id.isalnum()) or reads.takes_long_ids:
        return call_id
    return blake2b(call_id.encode(), digest_size=5).hexdigest()[:9]


def parsed(arguments: str) -> Json | None:
    """The object that a JSON text spells, if it does."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
