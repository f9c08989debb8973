"""Texts of an answer's syntax, taken apart into markers and placeholders (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from inferflux.v1 import generation_pb2

_PLACEHOLDER = re.compile(r"\$(name|arguments|id|index|number|key|value|type|is_string)(?![a-z])")
# A marker says by itself that structure begins, or ends.
_MARKER = re.compile(r"[<\[\]({>/|:]|^\W{2}")
_DISTINCT = re.compile(r"<|^\[[A-Za-z]|^\]<\]|>>>")
# Names of the parts of a call, besides those of the family.
NAME_KEYS: Final = ("name", "tool_name", "function_name", "tool", "function")
ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input")


@dataclass(frozen=True, slots=True)
class Part:
    """A marker without the blanks around it, or a placeholder."""

    text: str
    is_placeholder: bool = False

    @property
    def is_distinct(self) -> bool:
        """Return whether no ordinary text has it."""
        return not self.is_placeholder and bool(_DISTINCT.search(self.text))

    @property
    def is_optional(self) -> bool:
        """Return whether models leave it out: a word without any sign of structure."""
        return not self.is_placeholder and not _MARKER.search(self.text)


def split(text: str) -> list[Part]:
    """The placeholders of a text, and what is between them, with its blanks."""
    made: list[Part] = []
    at = 0
    for found in _PLACEHOLDER.finditer(text):
        made.append(Part(text[at : found.start()]))
        made.append(Part(found[1], is_placeholder=True))
        at = found.end()
    made.append(Part(text[at:]))
    return [part for part in made if part.text]


def words(text: str) -> list[Part]:
    """The same, cut at blanks, and without them."""
    made: list[Part] = []
    for part in split(text):
        made += [part] if part.is_placeholder else map(Part, part.text.split())
    return made


def markers(text: str) -> list[Part]:
    """The same with markers that stand by themselves: cut between brackets too."""
    made: list[Part] = []
    for part in words(text):
        made += [part] if part.is_placeholder else map(Part, _apart(part.text))
    return made


# Between `<a>` and `<b>`, `]` and `[`; `>>>` and MiniMax's `]<]minimax[>[` are one each.
_BETWEEN = re.compile(r"(?<=>)(?!\[<)(?=[^>])|(?<=[^<\]\[])(?=<)|(?<=\[)(?=[\[{])|(?<=\])(?!<\])(?=[\[<])")


def _apart(word: str) -> list[str]:
    return [one for one in _BETWEEN.split(word) if one]


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """A call that is one JSON object, as `{"name": "$name", "arguments": $arguments}` describes it."""

    name_keys: tuple[str, ...]
    argument_keys: tuple[str, ...]
    id_keys: tuple[str, ...]
    is_keyed_by_name: bool


@dataclass(frozen=True, slots=True)
class Spelling:
    """The parts of a `CallSyntax` that readers need.

    Attributes:
        begin, head: markers before the first call of a run, and before a call's arguments.
        tail: after them; `separator` and `end` as in the syntax.
        form: of calls that are objects; the head ends before the object then.
        exact: the head with the object's beginning.
        before_key, after_key, after_value: markers of a parameter.
        value_blanks: blanks that the family writes before and after a value.
    """

    begin: Sequence[Part]
    head: Sequence[Part]
    tail: Sequence[Part]
    separator: Sequence[Part]
    end: Sequence[Part]
    form: ObjectForm | None
    exact: Sequence[Part]
    before_key: str
    after_key: Sequence[str]
    after_value: str
    value_blanks: tuple[str, str]

    @property
    def opening(self) -> list[Part]:
        """List what may come before a call's name, or its object."""
        names = [i for i, part in enumerate(self.head) if part == Part("name", is_placeholder=True)]
        return [*self.begin, *self.head[: names[0] if names else len(self.head)]]


def spelling_of(calls: generation_pb2.CallSyntax) -> Spelling:
    """A syntax taken apart.

    Raises:
        ValueError: it is none.
    """
    is_json = calls.style == generation_pb2.ARGUMENT_STYLE_JSON
    if "$arguments" not in calls.call:
        raise ValueError("a call without $arguments")
    if not is_json and not re.search(r"\$key.*\S.*\$value.*\S|\$key\S\$value", calls.parameter, re.DOTALL):
        raise ValueError("a parameter without $key, $value and what ends them")
    before, _, after = calls.call.partition("$arguments")
    if calls.style in (generation_pb2.ARGUMENT_STYLE_PYTHON, generation_pb2.ARGUMENT_STYLE_GEMMA):
        after = after[1:]  # the bracket that ends the arguments
    form, tail = (
        None,
        markers(after) if is_json else [Part(one.strip()) for one in after.splitlines() if one.strip()],
    )
    head = exact = markers(before)
    if is_json and '"$name"' in before:
        form, after = _form_of(calls.call)
        head = markers(before[: before.index("{")])
        tail = markers(after)
    before_key, _, rest = calls.parameter.partition("$key")
    after_key, _, after_value = rest.partition("$value")
    return Spelling(
        begin=markers(calls.begin),
        head=head,
        tail=tail,
        separator=markers(calls.separator),
        end=markers(calls.end),
        form=form,
        exact=exact,
        before_key=before_key.strip(),
        after_key=[part.text for part in markers(after_key) if not part.is_placeholder],
        after_value=after_value.strip(),
        value_blanks=(
            after_key[len(after_key.rstrip()) :],
            after_value[: len(after_value) - len(after_value.lstrip())],
        ),
    )


def ways_of(spelling: Spelling, style: int) -> list[Sequence[Part]]:
    """Markers that may come before a call: with or without the beginning of a run, or of the call."""
    whole = [*spelling.begin, *spelling.head]
    ways: list[Sequence[Part]] = [whole]
    if spelling.begin and spelling.head:
        ways += [whole[i:] for i, part in enumerate(spelling.begin) if i and part.is_distinct]
        ways.append(list(spelling.head))
    if style == generation_pb2.ARGUMENT_STYLE_TEXT:
        for i, part in enumerate(spelling.head[1:], 1):
            if part.is_distinct and not part.text.endswith(">") and not spelling.begin:
                ways.append(list(spelling.head[i:]))
    if spelling.begin and not spelling.head and spelling.begin[-1].text == "[":
        ways.append(list(spelling.begin[:-1]))
    return ways


def _form_of(call: str) -> tuple[ObjectForm, str]:
    """Form of a call's object, and the text that follows it."""
    text = call[call.index("{") :]
    for placeholder in ("$arguments", "$index", "$number", "$id"):
        text = re.sub(rf'(?<!")\{placeholder}(?![a-z"])', f'"{placeholder}"', text)
    made, end = json.JSONDecoder().raw_decode(text)
    if not isinstance(made, dict):
        raise ValueError("a call that is no object")
    keys: dict[str, list[str]] = {"$name": [], "$arguments": [], "$id": [], "$index": []}
    _note(made, keys)
    form = ObjectForm(
        name_keys=(*dict.fromkeys([*keys["$name"], *NAME_KEYS]),),
        argument_keys=(*dict.fromkeys([*keys["$arguments"], *ARGUMENT_KEYS]),),
        id_keys=(*keys["$id"],),
        is_keyed_by_name="$name" in made,
    )
    return form, text[end:]


def _note(value: Any, keys: dict[str, list[str]]) -> None:
    """Collect under which key each placeholder is."""
    for key, each in value.items():
        if isinstance(each, dict):
            _note(each, keys)
        elif each in keys:
            keys[each].append(key)


def control_texts(syntax: generation_pb2.AnswerSyntax) -> list[str]:
    """All texts of a syntax that may be one control token of a vocabulary."""
    calls, channels = syntax.calls, syntax.channels
    whole = [
        syntax.thought.begin,
        syntax.thought.end,
        syntax.content_begin,
        syntax.content_end,
        calls.begin,
        calls.call,
        calls.separator,
        calls.end,
        calls.parameter,
        calls.parameter_separator,
        *calls.optional_begins,
        *channels.begins,
        channels.header_end,
        *channels.ends,
        *syntax.noise,
    ]
    found = dict.fromkeys(one for text in whole for one in _controls(text))
    if calls.style == generation_pb2.ARGUMENT_STYLE_GEMMA:
        found['<|"|>'] = None
    return list(found)


def _controls(text: str) -> list[str]:
    """The markers within a text; beside each what may be a token together with it."""
    parts = [part.text for part in split(text) if not part.is_placeholder]
    made = [part.strip() for part in parts]
    for part in parts:
        made += re.findall(r"\]<\]\w+\[>\[|<\|?[^<>\s]*\|?>|\][^\s\[]*\[|\[/?[A-Z_]+\]|</?[^<>\s]+", part)
    return [one for one in made if len(one) > 1]
