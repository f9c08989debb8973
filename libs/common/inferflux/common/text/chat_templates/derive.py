"""Answer format of a template's model, derived from what the template makes of known messages (pure).

The idea is that of llama.cpp's auto-parser: render messages that differ in one thing, and compare.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from inferflux.v1 import generation_pb2

# Renders messages with tools; None where the template refuses them or breaks down.
Renders = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str | None]

CONTENT: Final = "qzcontentqz"
THOUGHT: Final = "qzthoughtqz"
NAMES: Final = ("qzfna", "qzfnb")
KEYS: Final = ("qzka", "qzkb")
VALUES: Final = ("qzva", "qzvb")
IDS: Final = ("qzida0001", "qzidb0002")
DESCRIPTION: Final = "A function that probes."

USER: Final = {"role": "user", "content": "Hello"}
_ARGUMENTS: Final = dict(zip(KEYS, VALUES, strict=True))
_OBJECT = re.compile(rf'\{{\s*"{KEYS[0]}"\s*:\s*"{VALUES[0]}"\s*,\s*"{KEYS[1]}"\s*:\s*"{VALUES[1]}"\s*\}}')
_MARKER = re.compile(r"(?:</?[^<>]*>|\[/?[A-Z][A-Z _]*\])")
_MARKER_AT_END = re.compile(rf"{_MARKER.pattern}[A-Za-z]*\s*$")
_MARKER_AT_BEGIN = re.compile(rf"\s*{_MARKER.pattern}\s*")
_END_OF_TURN = re.compile(r"<[^<>]*(?:eos|eot|eom|end▁of|end_of|im_end|tool_response)[^<>]*>\s*$")
# Markers of thoughts that templates name without rendering them.
KNOWN_THOUGHTS: Final = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
    ("◁think▷", "◁/think▷"),
)


def tools_of(names: Sequence[str] = NAMES) -> list[dict[str, Any]]:
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string", "description": "A text."} for key in KEYS},
        "required": [KEYS[0]],
    }
    return [
        {"type": "function", "function": {"name": name, "description": DESCRIPTION, "parameters": parameters}}
        for name in names
    ]


def calling(*arguments: Any, **rest: Any) -> dict[str, Any]:
    """A message with a call for each of the arguments."""
    calls = [
        {"type": "function", "id": call_id, "function": {"name": name, "arguments": each}}
        for call_id, name, each in zip(IDS, NAMES, arguments, strict=False)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls, **rest}


def thinking(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with a thought, under every name that templates read."""
    names = ("reasoning_content", "reasoning", "thinking", "thought")
    return {**message, **dict.fromkeys(names, THOUGHT)}


def syntax_of(render: Renders, source: str) -> generation_pb2.AnswerSyntax:
    """The syntax of answers as a template shows it: calls, thoughts and what encloses content."""
    made = generation_pb2.AnswerSyntax()
    tools = tools_of()
    said = {"role": "assistant", "content": CONTENT}
    content = render([USER, said], tools) or render([USER, said], ()) or ""
    after_content = content.partition(CONTENT)[2]
    calls = _calls_of(render, tools, after_content)
    if calls is not None:
        made.calls.CopyFrom(calls)
    thought = _thought_of(render, tools, content, source)
    if thought is not None and thought.end.strip() in made.calls.begin:
        made.calls.begin = made.calls.begin.rpartition(thought.end.strip())[2].lstrip()
    if thought is not None:
        made.thought.CopyFrom(thought)
    made.content_begin, made.content_end = _enclosure_of(render, tools, content, made.thought.end.strip())
    return made


def _thought_of(
    render: Renders, tools: Sequence[Mapping[str, Any]], content: str, source: str
) -> generation_pb2.ThoughtSyntax | None:
    before = _last_line(content.partition(CONTENT)[0])
    for message in (
        thinking({"role": "assistant", "content": CONTENT}),
        thinking(calling(_ARGUMENTS)),
        thinking(calling(_ARGUMENTS, content=CONTENT)),
    ):
        text = render([USER, message], tools)
        if not text or text.count(THOUGHT) != 1:
            continue
        head, _, tail = text.partition(THOUGHT)
        begin, end = _MARKER_AT_END.search(head), _MARKER_AT_BEGIN.match(tail)
        if end is None:
            continue
        is_header = begin is None or before.endswith(begin[0])
        known = next((one for one in KNOWN_THOUGHTS if one[1] == end[0].strip()), None)
        return generation_pb2.ThoughtSyntax(
            begin=(known[0] if known else "") if is_header or begin is None else begin[0], end=end[0]
        )
    for begin_text, end_text in KNOWN_THOUGHTS:
        if end_text in source:
            return generation_pb2.ThoughtSyntax(begin=begin_text, end=end_text)
    return None


def _enclosure_of(
    render: Renders, tools: Sequence[Mapping[str, Any]], content: str, end_of_thought: str
) -> tuple[str, str]:
    """Markers of its own that a template has around content."""
    base = render([USER], tools) or ""
    head, _, tail = content.partition(CONTENT)
    text = head[_boundary(head, _common(base, head)) :].strip()
    if end_of_thought and end_of_thought in text:
        text = text.rpartition(end_of_thought)[2].strip()
    if not _MARKER.fullmatch(text):
        return "", ""
    end = _MARKER_AT_BEGIN.match(tail)
    other = text.replace("START", "END").replace("begin", "end").replace("<|", "<|")
    return text, end[0].strip() if end and end[0].strip() in (other, text.replace("<", "</")) else ""


def _calls_of(
    render: Renders, tools: Sequence[Mapping[str, Any]], after_content: str
) -> generation_pb2.CallSyntax | None:
    for as_text in (False, True):

        def made(*arguments: Mapping[str, Any], as_text: bool = as_text) -> str | None:
            given = [json.dumps(each) if as_text else each for each in arguments]
            text = render([USER, calling(*given)], tools)
            return text if text and NAMES[0] in text[_start(text) :] else None

        one = made(_ARGUMENTS)
        if one is None:
            continue
        calls = _call_of(one, made, render([USER], tools) or "", after_content)
        if calls is not None:
            return calls
    return None


def _start(text: str) -> int:
    """Start of the answer: behind the tools, which name the functions too."""
    return max(text.rfind(USER["content"]), 0)


def _call_of(
    one: str, render: Callable[..., str | None], base: str, after_content: str
) -> generation_pb2.CallSyntax | None:
    text = _Text(_without_ids(one[_boundary(one, _common(one, base)) :]))
    if not text.is_readable:
        return None
    two = render(_ARGUMENTS, _ARGUMENTS)
    second = text.second(_without_ids(two[_boundary(two, _common(two, base)) :])) if two is not None else None
    call = generation_pb2.CallSyntax(is_single=second is None, style=text.style)
    head, middle, tail = text.head, text.middle, text.tail
    if second is None:
        tail = tail[: len(tail) - _common_end(tail, after_content)]
    else:
        between, middle_2 = second
        n_tail = len(tail[: _common(between, tail)].rstrip())
        head, before_name = _indexed(head, between[n_tail:])
        middle, _ = _indexed(middle, middle_2)
        n_head = _common_end(before_name, head)
        call.separator = before_name[: len(before_name) - n_head]
        call.begin, head = head[: len(head) - n_head], head[len(head) - n_head :]
        tail, end = tail[:n_tail], tail[n_tail:]
        end = end[: len(end) - _common_end(end, after_content)]
        ended = _MARKER.match(after_content)
        call.end = _END_OF_TURN.sub("", end.partition(ended[0])[0] if ended else end).rstrip()
    has_marker = _has_markers(call.begin + head)
    if not has_marker and not head.endswith('"') and text.style != generation_pb2.ARGUMENT_STYLE_PYTHON:
        return None
    blanks = head[: len(head) - len(head.lstrip())]
    call.separator += blanks
    call.begin = (call.begin + blanks).lstrip()
    call.call = f"{head.lstrip()}$name{middle}$arguments{tail}".replace(NAMES[0], "$name")
    parameter, call.parameter_separator = text.parameter
    call.parameter = parameter.replace('string="true"', 'string="$is_string"').replace(
        'type="string"', 'type="$type"'
    )
    call.is_whole_answer = not has_marker
    return call


def _without_ids(text: str) -> str:
    return text.replace(IDS[0], "$id").replace(IDS[1], "$id")


def _indexed(text: str, other: str) -> tuple[str, str]:
    """Both with a placeholder where the first call has the first number and the second one the next."""
    for numbers, placeholder in (("01", "$index"), ("12", "$number")):
        made = [
            _replaced_last(rf"(?<!\w){number}(?!\w)", placeholder, one)
            for number, one in zip(numbers, (text, other), strict=True)
        ]
        if made[0] != text and made[1] != other and _common_end(*made) > _common_end(text, other):
            return made[0], made[1]
    return text, other


def _replaced_last(pattern: str, by: str, text: str) -> str:
    found = [*re.finditer(pattern, text)]
    return text[: found[-1].start()] + by + text[found[-1].end() :] if found else text


class _Text:
    """The answer that a template writes for one call with two arguments.

    Attributes:
        head, middle, tail: what is before the name, between it and the arguments, and after these.
        parameter: how one argument is written, and what is between two; empty where they are an object.
        is_readable: whether name, keys and values are there, in order.
    """

    def __init__(self, text: str) -> None:
        at = text.find(NAMES[0])
        self.head = text[:at]
        self._rest = rest = text[at + len(NAMES[0]) :]
        found = _OBJECT.search(rest)
        places = [rest.find(one) for one in (KEYS[0], VALUES[0], KEYS[1], VALUES[1])]
        self.is_readable = at >= 0 and -1 not in places and places == sorted(places)
        self.middle, self.tail, self.parameter = "", "", ("", "")
        self.style = generation_pb2.ARGUMENT_STYLE_JSON
        if found:
            self.middle, self.tail = rest[: found.start()], rest[found.end() :]
        elif self.is_readable:
            self._read_parameters(rest, places)

    def _read_parameters(self, rest: str, places: Sequence[int]) -> None:
        k1, v1, k2, v2 = places
        first, inner = rest[:k1], rest[k1 + len(KEYS[0]) : v1]
        between, after = rest[v1 + len(VALUES[0]) : k2], rest[v2 + len(VALUES[1]) :]
        quote = next((one for one in ('<|"|>', "'", '"') if between.startswith(one)), "")
        if quote == '<|"|>':
            self.style = generation_pb2.ARGUMENT_STYLE_GEMMA
            self.parameter = ("$key:$value", between.removeprefix(quote))
        elif quote:
            self.style = generation_pb2.ARGUMENT_STYLE_PYTHON
            self.parameter = ("$key=$value", between.removeprefix(quote))
        if quote:
            self.middle, self.tail = first, after.removeprefix(quote)
            return
        is_nested = KEYS[0] in between
        self.style = generation_pb2.ARGUMENT_STYLE_NESTED if is_nested else generation_pb2.ARGUMENT_STYLE_TEXT
        n = _common_end(first, between)
        end = between[: len(between) - n]
        self.parameter = (f"{first[len(first) - n :]}$key{inner}$value{end}".replace(KEYS[0], "$key"), "")
        self.middle = first[: len(first) - n]
        self.tail = after.removeprefix(end.replace(KEYS[0], KEYS[1]))

    def second(self, two: str) -> tuple[str, str] | None:
        """Find, in an answer with a second call, the text between the first call's arguments and its name,
        and the text between that and its own arguments."""
        other = _Text(two[two.find(self.head) if self.head else 0 :])
        at = other.tail.find(NAMES[1])
        if not other.is_readable or at < 0:
            return None
        return other.tail[:at], other.tail[at + len(NAMES[1]) :][: len(self.middle)]


def _has_markers(text: str) -> bool:
    return bool(re.search(r"<\S|\[/?[A-Z]|>>>|```", text))


def _alike(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _common(a: str, b: str) -> int:
    """Length of the common beginning, up to a marker that it would cut."""
    n = _alike(a, b)
    return a.rfind("<", 0, n) if a.rfind("<", 0, n) > a.rfind(">", 0, n) else n


def _common_end(a: str, b: str) -> int:
    """Length of the common end, behind a marker that it would cut."""
    n = _alike(a[::-1], b[::-1])
    text = a[len(a) - n :]
    closed, begun = text.find(">"), text.find("<")
    return n - closed - 1 if closed >= 0 and (begun < 0 or closed < begun) else n


def _boundary(text: str, at: int) -> int:
    """The same place, or before a marker that it is within."""
    begin = max(text.rfind("<", 0, at), text.rfind("[", 0, at))
    closed = max(text.rfind(">", 0, at), text.rfind("]", 0, at))
    return begin if begin > closed else at


def _last_line(text: str) -> str:
    return text[-200:]
