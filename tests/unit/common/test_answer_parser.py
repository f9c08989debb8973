"""What of an answer's text is content, reasoning and calls; however it is cut, the result is the same."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

import pytest
from harness.answer_syntaxes import HERMES, LLAMA3, MISTRAL, with_thoughts
from harness.profiles import examples
from harness.reading import Read, joined, read, read_in_every_way
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.common.text.answers.parser import AnswerParser
from inferflux.common.text.answers.pieces import CallArguments, CallName, Content, Piece
from inferflux.common.text.answers.scanner import BracketScanner
from inferflux.common.text.answers.tape import Markers, Tape
from inferflux.v1 import generation_pb2

FORMATS = (HERMES, LLAMA3, MISTRAL)
OPTIONAL, OPEN = generation_pb2.REASONING_FORMAT_OPTIONAL, generation_pb2.REASONING_FORMAT_OPEN
NAMES = frozenset({"add", "get_weather"})

Syntax: TypeAlias = generation_pb2.AnswerSyntax
NO_CALLS = Syntax()


def parser(
    form: Syntax = NO_CALLS,
    *,
    reasoning: generation_pb2.ReasoningFormat.ValueType = generation_pb2.REASONING_FORMAT_UNSPECIFIED,
    is_exact: bool = False,
) -> AnswerParser:
    syntax = with_thoughts(form, reasoning)
    return AnswerParser(syntax=syntax, names=NAMES, reasoning=reasoning, is_exact=is_exact)


ADD = ("add", '{"a": 1, "b": 2}')
WEATHER = ("get_weather", '{"city": "Br\\"}ssel {["}')


def spelled(form: Syntax, *calls: tuple[str, str]) -> str:
    """Calls as a model of the family spells them."""
    syntax = form.calls
    written = [
        syntax.call.replace("$name", name).replace("$arguments", arguments) for name, arguments in calls
    ]
    return syntax.begin + (syntax.separator or "; ").join(written) + syntax.end


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_calls_of_each_family_are_read(form: Syntax, is_exact: bool) -> None:
    assert read(parser(form, is_exact=is_exact), spelled(form, ADD)) == ("", "", [ADD])
    assert read(parser(form, is_exact=is_exact), spelled(form, ADD, WEATHER)) == ("", "", [ADD, WEATHER])


@pytest.mark.parametrize("form", [HERMES, MISTRAL])
def test_content_before_a_call_stays_content_without_the_blanks_between(form: Syntax) -> None:
    text = "Let me see.\n\n" + spelled(form, ADD)
    assert read(parser(form), text) == ("Let me see.", "", [ADD])


def test_content_after_calls_stays_content() -> None:
    assert read(parser(HERMES), spelled(HERMES, ADD) + "\nDone. ") == ("Done. ", "", [ADD])


def test_a_python_tag_before_a_call_is_no_content() -> None:
    assert read(parser(LLAMA3), "<|python_tag|>" + spelled(LLAMA3, ADD)) == ("", "", [ADD])


@pytest.mark.parametrize("is_exact", [False, True])
def test_an_answer_that_begins_with_another_object_is_content(is_exact: bool) -> None:
    text = '{"city": "Paris"} is JSON'
    assert read(parser(LLAMA3, is_exact=is_exact), text) == (text, "", [])


def test_a_name_comes_before_its_arguments_and_those_come_in_fragments() -> None:
    made = parser(HERMES, is_exact=True)
    assert made.push('<tool_call>\n{"name": "add", ') == []
    assert made.push('"arguments": {"a"') == [CallName(0, "add"), CallArguments(0, '{"a"')]
    assert made.push(": 1") == [CallArguments(0, ": 1")]
    assert made.push("}}\n</tool") == [CallArguments(0, "}")]
    assert made.push("_call>") == []
    assert made.finish() == []


def test_without_a_constraint_a_call_is_told_when_it_is_complete() -> None:
    made = parser(HERMES)
    assert made.push('<tool_call>\n{"name": "add", "arguments": {"a": 1}') == []
    assert made.push("}") == [CallName(0, "add"), CallArguments(0, '{"a": 1}')]


@pytest.mark.parametrize(
    ("spelling", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "add"}', '{"a": 1}'),
        ('{"name": "add", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "add", "parameters": {"a": "é"}}', '{"a": "é"}'),
        ('{"name": "add"}', "{}"),
    ],
)
def test_other_spellings_of_a_call_are_understood(spelling: str, arguments: str) -> None:
    assert read(parser(HERMES), f"<tool_call>{spelling}</tool_call>") == ("", "", [("add", arguments)])


@pytest.mark.parametrize(
    "text",
    [
        "a <tool_call> is a tag",
        '<tool_call>\n{"name": "add", "arguments": {"a": }}\n</tool_call>',
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": ["add"], "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"a": NaN}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"a": 1',
        "<tool_call>[1]</tool_call>",
        "a <tool",
        " \n",
    ],
)
def test_a_broken_call_stays_content(text: str) -> None:
    assert read(parser(HERMES), text) == (text, "", [])


def test_a_call_after_a_broken_one_is_read() -> None:
    text = "<tool_call>no\n" + spelled(HERMES, ADD)
    assert read(parser(HERMES), text) == ("<tool_call>no", "", [ADD])


def test_a_constrained_call_that_is_cut_keeps_what_was_told_of_it() -> None:
    assert read(parser(HERMES, is_exact=True), '<tool_call>\n{"name": "add", "arguments": {"a"') == (
        "",
        "",
        [("add", '{"a"')],
    )


@pytest.mark.parametrize(
    "cut",
    [
        "<tool_call>",
        '<tool_call>\n{"name": "ad',
        '<tool_call>\n{"name": "ad\ufffd',
        '<tool_call>\n{"name": "add", "arg',
    ],
)
def test_a_call_that_is_cut_before_it_is_told_leaves_nothing_of_itself(cut: str) -> None:
    assert read(parser(HERMES, is_exact=True), "Well.\n" + cut) == ("Well.\n", "", [])
    made = parser(HERMES)
    assert joined(made.push("Well.\n" + cut) + made.finish(is_cut=True)) == ("Well.\n", "", [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (spelled(HERMES, ADD) + "\nDone.", ("Done.", "", [ADD])),
        (spelled(HERMES, ADD) + "\n</think>\n\nDone.", ("Done.", "", [ADD])),
        ("<tool_call> is a marker.</think>C", ("C", "<tool_call> is a marker.", [])),
        ("I try " + spelled(HERMES, ADD) + " or so.</think>C", None),
    ],
)
def test_a_thought_of_the_prompt_that_begins_with_a_call_is_none(text: str, expected: Read | None) -> None:
    got = read_in_every_way(lambda: parser(HERMES, reasoning=OPEN), text)
    assert got == expected or (expected is None and not got[2])


def test_thoughts_between_control_tokens_are_told_wherever_they_are() -> None:
    syntax = generation_pb2.AnswerSyntax()
    syntax.thought.begin, syntax.thought.end = "<|channel>thought\n", "\n<channel|>"
    text = "<|channel>thought\nA\n<channel|>B<|channel>thought\nC\n<channel|>D<channel|>"
    got = read_in_every_way(lambda: AnswerParser(syntax=syntax, reasoning=OPTIONAL), text)
    assert got == ("BD", "A\nC", [])


def test_calls_behind_words_and_a_fence_are_read() -> None:
    call = '{\n        "tool_name": "$name",\n        "parameters": $arguments\n    }'
    syntax = generation_pb2.AnswerSyntax()
    syntax.calls.CopyFrom(
        generation_pb2.CallSyntax(
            begin="Action:\n```json\n[\n    ",
            call=call,
            separator=",\n    ",
            end="\n]\n```",
            style=generation_pb2.ARGUMENT_STYLE_JSON,
        )
    )
    text = 'Action:\n```json\n[{"tool_name": "add", "parameters": {"a": 1}}]\n```'
    got = read_in_every_way(lambda: AnswerParser(syntax=syntax, names=NAMES), text)
    assert got == ("", "", [("add", '{"a": 1}')])


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\tb/ü"])
def test_a_name_that_json_escapes_is_known(name: str, is_exact: bool) -> None:
    spelt = json.dumps(name, ensure_ascii=False)
    text = f'<tool_call>\n{{"name": {spelt}, "arguments": {{"a": 1}}}}\n</tool_call>'
    read_as = read_in_every_way(
        lambda: AnswerParser(syntax=HERMES, names={name: {}, "a": {}}, is_exact=is_exact), text
    )
    assert read_as == ("", "", [(name, '{"a": 1}')])


@pytest.mark.parametrize(
    ("reasoning", "text", "expected"),
    [
        (OPTIONAL, "<think>\nA. B.\n</think>\n\nC.", ("C.", "A. B.", [])),
        (OPTIONAL, "\n<think></think>C", ("C", "", [])),
        (OPTIONAL, "C <think>A</think>", ("C <think>A</think>", "", [])),
        (OPTIONAL, "<thi", ("<thi", "", [])),
        (OPTIONAL, "<think>A </thin", ("", "A </thin", [])),
        (OPEN, "A.\n</think>\n\nC.\n", ("C.\n", "A.", [])),
        (OPEN, "A.", ("", "A.", [])),
        (generation_pb2.REASONING_FORMAT_UNSPECIFIED, "<think>A</think>", ("<think>A</think>", "", [])),
    ],
)
def test_reasoning_is_told_from_content(
    reasoning: generation_pb2.ReasoningFormat.ValueType, text: str, expected: Read
) -> None:
    assert read(parser(reasoning=reasoning), text) == expected
    assert read(parser(reasoning=reasoning), *text) == expected


@pytest.mark.parametrize("form", FORMATS)
def test_calls_follow_reasoning(form: Syntax) -> None:
    text = "I have to add: <tool_call>?\n</think>\n\n" + spelled(form, ADD)
    assert read(parser(form, reasoning=OPEN), text) == ("", "I have to add: <tool_call>?", [ADD])


def test_without_tools_and_reasoning_text_passes_as_it_comes() -> None:
    made = parser()
    assert [made.push(part) for part in ("<tool", "_call> ", " ")] == [
        [Content("<tool")],
        [Content("_call> ")],
        [Content(" ")],
    ]
    assert made.finish() == []


_FRAGMENTS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "[",
        "]",
        "{",
        "}",
        '{"name": "add", "arguments": ',
        '{"name": "add", "parameters": ',
        '{"a": "}\\""}',
        '"',
        "\\",
        ",",
        ";",
        " ",
        "\n",
        "text",
        spelled(HERMES, ADD),
        spelled(LLAMA3, ADD, WEATHER),
        spelled(MISTRAL, WEATHER, ADD),
    ]
)
_TEXTS = st.lists(_FRAGMENTS | st.text(max_size=3), max_size=8).map("".join)


@settings(max_examples=examples(400))
@given(
    text=_TEXTS,
    form=st.sampled_from([NO_CALLS, *FORMATS]),
    reasoning=st.sampled_from(generation_pb2.ReasoningFormat.values()),
    is_exact=st.booleans(),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_the_result_does_not_depend_on_how_a_text_is_cut(
    text: str,
    form: Syntax,
    reasoning: generation_pb2.ReasoningFormat.ValueType,
    is_exact: bool,
    cuts: list[int],
) -> None:
    def made() -> AnswerParser:
        return parser(form, reasoning=reasoning, is_exact=is_exact)

    whole = read(made(), text)
    assert read(made(), *text) == whole
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[a:b] for a, b in itertools.pairwise(places)]
    assert read(made(), *parts) == whole
    # Also after each part: who takes a stream up again within an answer relies on it.
    in_parts, said = made(), list[Piece]()
    for part, end in zip(parts, places[1:], strict=True):
        said += in_parts.push(part)
        assert joined(said) == joined(made().push(text[:end]))


class CountingTape(Tape):
    """Counts the characters that are looked at or copied."""

    n = 0

    def feed(self, part: str) -> None:
        super().feed(part)
        type(self).n += len(self._text)

    def rewind(self) -> None:
        has_kept = bool(self._kept)
        super().rewind()
        type(self).n += len(self._text) if has_kept else 0

    def take_before(self, markers: Markers) -> tuple[str, str | None]:
        text, marker = super().take_before(markers)
        type(self).n += len(text)
        return text, marker

    def take_object(self, scanner: BracketScanner) -> str:
        text = super().take_object(scanner)
        type(self).n += 2 * len(text)  # the scanner's work, and the copy
        return text

    def skip_blanks(self) -> None:
        before = self._at
        super().skip_blanks()
        type(self).n += self._at - before


def work(monkeypatch: pytest.MonkeyPatch, made: Callable[[], AnswerParser], *parts: str) -> int:
    """What the parser does for a text: steps of its states, and characters that they look at or copy."""
    n_steps = 0

    def on_event(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal n_steps
        n_steps += event in ("call", "c_call")

    monkeypatch.setattr("inferflux.common.text.answers.parser.Tape", CountingTape)
    CountingTape.n = 0
    one = made()
    sys.setprofile(on_event)
    try:
        for part in parts:
            one.push(part)
        one.finish()
    finally:
        sys.setprofile(None)
    return n_steps + CountingTape.n


_HOSTILE = {
    "calls that do not end": "<tool_call>{",
    "calls in arrays": '<tool_call>{"a": [',
    "calls in strings": '<tool_call>{"',
    "calls in strings of each other": '<tool_call>{":"a,',
    "calls whose strings end in a backslash": '<tool_call>{"\\',
    "calls that are none": "<tool_call>[",
    "Mistral's": "[TOOL_CALLS][{",
    "Mistral's in strings": '[TOOL_CALLS][{"',
    "blanks": " ",
    "an object without an end": '{"a": ',
    "closings": "</tool_call>",
    "half markers": "<tool_cal",
    "reasoning": "<think>",
    "ends of reasoning": "</thin",
    "quotes": '"',
}
# Steps and characters for one character of a text. A text that is read again for each call takes more.
MOST = 60
_BEFORE = ("", "<tool_call>{", '<tool_call>{"name": "', "[TOOL_CALLS]")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("hostile", _HOSTILE.values(), ids=_HOSTILE)
def test_the_work_grows_with_the_text_whatever_it_is(
    monkeypatch: pytest.MonkeyPatch, hostile: str, form: Syntax
) -> None:
    """In one part, and character by character: per character at most some dozens of steps."""
    for before, is_exact in itertools.product(_BEFORE, (False, True)):

        def made(is_exact: bool = is_exact) -> AnswerParser:
            return parser(form, reasoning=OPTIONAL, is_exact=is_exact)

        text = before + hostile * (1000 // len(hostile))
        assert work(monkeypatch, made, text) < MOST * len(text)
        assert work(monkeypatch, made, *text) < MOST * len(text)


@settings(max_examples=examples(200))
@given(text=_TEXTS, form=st.sampled_from(FORMATS), is_exact=st.booleans())
def test_no_text_is_lost_but_blanks_and_the_spelling_of_calls(
    text: str, form: Syntax, is_exact: bool
) -> None:
    content, reasoning, calls = read(parser(form, is_exact=is_exact), text)
    assert not reasoning
    if not calls:
        assert text.startswith(content)
        rest = text[len(content) :].strip()
        assert is_exact or rest in ("", "<tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[TOOL_CALLS][")
    if not is_exact:
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(200))
@given(
    form=st.sampled_from(FORMATS),
    arguments=st.lists(st.dictionaries(st.text(max_size=5), _VALUES, max_size=4), min_size=1, max_size=3),
    is_exact=st.booleans(),
)
def test_any_arguments_are_read_as_they_are_spelled(
    form: Syntax, arguments: list[dict[str, object]], is_exact: bool
) -> None:
    calls = [("add", json.dumps(one, ensure_ascii=False)) for one in arguments]
    assert read(parser(form, is_exact=is_exact), *spelled(form, *calls)) == ("", "", calls)
