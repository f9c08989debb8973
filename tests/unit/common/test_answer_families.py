# ruff: noqa: E501
"""Answers of many families: recorded ones, each template's own spelling, slips of models, and any text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from harness import answer_syntaxes
from harness.answer_syntaxes import RIGHT
from harness.profiles import examples
from harness.reading import joined, read, read_in_every_way
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.right_answers import (
    TOOLS,
    USER,
    fixtures,
    own_answers,
    syntax_for,
    syntax_of,
    template,
    template_names,
)
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.answer_format import check_format
from inferflux.common.text.answers.families import HARMONY, HERMES
from inferflux.common.text.answers.parser import AnswerParser
from inferflux.common.text.answers.pieces import Piece
from inferflux.common.text.chat_templates.probe import prefix_of, reasoning_of
from inferflux.common.text.chat_templates.templates import ChatTemplate
from inferflux.common.text.constraints.answers.schemas import parameter_types
from inferflux.v1 import generation_pb2

TYPES = {
    "get_weather": {
        "city": "string",
        "days": "integer",
        "tags": "array",
        "where": "object",
        "opt": "string,null",
    },
    "now": {},
}
FAMILIES = answer_syntaxes.FAMILIES | {"oss": HARMONY}


def chat_template(name: str) -> ChatTemplate:
    try:
        return template(name)
    except FileNotFoundError as error:
        pytest.skip(f"no {error.filename}")


# Of a model that writes other thoughts than the template here, and of a list of which a part is complete.
_OTHER = {"mistral/vllm-v11-think-text", "llama/l4-truncated-missing-close-bracket"}


@pytest.mark.parametrize("fixture", [pytest.param(one, id=one["id"]) for one in fixtures()])
def test_recorded_answers_are_read_as_they_are_meant_in_every_split(fixture: dict[str, Any]) -> None:
    if fixture["id"] in _OTHER:
        pytest.skip("not of a template that is here")
    try:
        syntax, prompt = syntax_for(fixture), fixture["prompt"]
    except FileNotFoundError as error:
        pytest.skip(f"no {error.filename}")
    types = {}
    for tool in fixture["tools"]:
        schema = tool["function"].get("parameters") or {}
        types[tool["function"]["name"]] = parameter_types(schema)

    def made() -> AnswerParser:
        return AnswerParser(
            syntax=syntax,
            names=types,
            reasoning=reasoning_of(syntax, prompt),
            prefix=prefix_of(syntax, prompt),
        )

    is_cut = "truncated" in fixture["tags"]
    content, reasoning, calls = read_in_every_way(made, fixture["raw_output"], is_cut=is_cut)
    if "expected_error" in fixture:
        assert not calls
        return
    expected = fixture["expected"]
    meant = [(call["name"], call["arguments"]) for call in expected["tool_calls"]]
    assert [(name, json.loads(arguments)) for name, arguments in calls] == meant
    assert content.strip() == (expected["content"] or "").strip()
    assert reasoning.strip() == (expected["reasoning_content"] or "").strip()
    said = json.dumps(expected, ensure_ascii=False)
    assert not [one for one in fixture["markers"] if one in content + reasoning and one not in said]


_OWN_TYPES = {
    tool["function"]["name"]: {
        key: one["type"] for key, one in tool["function"]["parameters"]["properties"].items()
    }
    for tool in TOOLS
}


@pytest.mark.parametrize("name", template_names())
def test_each_templates_own_spelling_is_read_back(name: str) -> None:
    answers = [answer for answer in own_answers(name) if not answer.name.endswith(("content", "thought"))]
    if not answers:
        pytest.skip("a template without tools, or that shows no calls")
    for answer in answers:
        syntax, prompt = answer.syntax, answer.prompt
        reasoning, prefix = reasoning_of(syntax, prompt), prefix_of(syntax, prompt)

        def made(
            syntax: generation_pb2.AnswerSyntax = syntax,
            reasoning: generation_pb2.ReasoningFormat.ValueType = reasoning,
            prefix: str = prefix,
        ) -> AnswerParser:
            return AnswerParser(syntax=syntax, names=_OWN_TYPES, reasoning=reasoning, prefix=prefix)

        got = read_in_every_way(made, answer.text)
        assert [(called, json.loads(given)) for called, given in got[2]] == list(answer.calls), answer.text
        assert not got[0].strip()


@pytest.mark.parametrize("family", RIGHT)
def test_right_answers_of_each_family_are_read(family: str) -> None:
    for is_exact, answer in itertools.product((False, True), RIGHT[family]):

        def made(is_exact: bool = is_exact) -> AnswerParser:
            return AnswerParser(
                syntax=FAMILIES[family],
                names=TYPES,
                reasoning=generation_pb2.REASONING_FORMAT_OPTIONAL,
                is_exact=is_exact,
            )

        content, _, calls = read_in_every_way(made, answer)
        assert len(calls) == sum(answer.count(name) for name in TYPES) or not calls
        assert all(isinstance(json.loads(given), dict) for _, given in calls)
        assert not calls or "<" not in content


@pytest.mark.parametrize(
    "spelling",
    [
        "{'name': 'get_weather', 'arguments': {'city': 'Paris'}}",
        '{"name": "get_weather", "arguments": {"city": "Paris",},}',
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        '{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}',
        '{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}',
        '{{"name": "get_weather", "arguments": {"city": "Paris"}}}',
        '[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        '{name: "get_weather", arguments: {city: "Paris"}}',
        '{"arguments": {"city": "Paris"}, "name": "get_weather", "id": "x"}',
    ],
)
@pytest.mark.parametrize("closing", ["\n</tool_call>", "</tool_call>", ""])
def test_a_call_is_not_lost_because_its_json_is_unusual(spelling: str, closing: str) -> None:
    got = read_in_every_way(
        lambda: AnswerParser(syntax=HERMES, names=TYPES), f"<tool_call>\n{spelling}{closing}"
    )
    assert [(name, json.loads(given)) for name, given in got[2]] == [("get_weather", {"city": "Paris"})]
    assert not got[0]


def test_line_feeds_words_of_python_and_quotes_within_strings_are_understood() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "a\nb "c" d", "opt": None, "days": True}}</tool_call>'
    got = read_in_every_way(lambda: AnswerParser(syntax=HERMES, names=TYPES), text)
    assert json.loads(got[2][0][1]) == {"city": 'a\nb "c" d', "opt": None, "days": True}


_FRAGMENTS = [
    *(piece for answers in RIGHT.values() for piece in answers),
    *(
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
    ),
    *(
        "<function=get_weather>",
        "<parameter=city>",
        "</parameter>",
        "</function>",
        "<arg_key>",
        "</arg_value>",
    ),
    *(
        "<|start|>assistant",
        " to=functions.now",
        "get_weather",
        "now(",
        '<|"|>',
        "call:now{",
        "analysis",
        "final",
    ),
    *(
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        '"',
        "'",
        "\\",
        ",",
        ":",
        " ",
        "\n",
        "text",
        '{"name": "now", "arguments": {}}',
    ),
]
_TEXTS = st.lists(st.sampled_from(_FRAGMENTS) | st.text(max_size=3), max_size=7).map("".join)


@settings(max_examples=examples(300), deadline=None)
@given(
    text=_TEXTS,
    family=st.sampled_from(sorted(FAMILIES)),
    reasoning=st.sampled_from(generation_pb2.ReasoningFormat.values()),
    is_exact=st.booleans(),
    is_cut=st.booleans(),
    cuts=st.lists(st.integers(0, 300), max_size=5),
)
def test_no_text_of_any_family_depends_on_how_it_is_cut(
    text: str,
    family: str,
    reasoning: generation_pb2.ReasoningFormat.ValueType,
    is_exact: bool,
    is_cut: bool,
    cuts: list[int],
) -> None:
    def made() -> AnswerParser:
        return AnswerParser(syntax=FAMILIES[family], names=TYPES, reasoning=reasoning, is_exact=is_exact)

    whole = read_in_every_way(made, text, is_cut=is_cut)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    in_parts, said = made(), list[Piece]()
    for begin, end in itertools.pairwise(places):
        said += in_parts.push(text[begin:end])
        assert joined(said) == joined(made().push(text[:end]))
    if not is_exact:
        assert all(isinstance(json.loads(given), dict) for _, given in whole[2])


def _of_one_family(name: str, value: str) -> tuple[str, Callable[[], AnswerParser]]:
    style = FAMILIES[name].calls.style
    quoted = json.dumps(value)
    calls = {
        generation_pb2.ARGUMENT_STYLE_JSON: f'{{"city": {quoted}}}',
        generation_pb2.ARGUMENT_STYLE_PYTHON: f"city={quoted}",
        generation_pb2.ARGUMENT_STYLE_GEMMA: f'city:<|"|>{value}<|"|>',
    }
    parameter = FAMILIES[name].calls.parameter.replace("$key", "city").replace("$value", value)
    parameter = parameter.replace("$is_string", "true").replace("$type", "string")
    syntax = FAMILIES[name].calls
    call = syntax.call.replace("$name", "get_weather").replace("$arguments", calls.get(style, parameter))
    for word in ("$id", "$index", "$number"):
        call = call.replace(word, "1")
    return syntax.begin + call + syntax.end, lambda: AnswerParser(syntax=FAMILIES[name], names=TYPES)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_long_arguments_are_read_in_small_parts(family: str) -> None:
    """A megabyte would take hours if a part took time in proportion to what came before."""
    value = "a line of a file, and then some\n" * 4000
    text, made = _of_one_family(family, value)
    parts = [text[i : i + 5] for i in range(0, len(text), 5)]
    assert json.loads(read(made(), *parts)[2][0][1]) == {"city": value}


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ({"call": "$name"}, "arguments"),
        ({"call": '{"name": "$name", $arguments'}, "JSON|delimiter|property"),
        ({"call": "<f=$name>$arguments</f>", "style": generation_pb2.ARGUMENT_STYLE_TEXT}, "parameter"),
        ({"call": "<f=$name>$arguments</f>" + "x" * (16 << 10)}, "bytes"),
    ],
)
def test_a_format_that_says_no_way_to_write_calls_is_refused(calls: dict[str, Any], why: str) -> None:
    given = {"style": generation_pb2.ARGUMENT_STYLE_JSON} | calls
    syntax = generation_pb2.AnswerSyntax(calls=generation_pb2.CallSyntax(**given))
    with pytest.raises(InvalidArgument, match=why) as refused:
        check_format(generation_pb2.AnswerFormat(syntax=syntax), "answer_format")
    assert refused.value.field.startswith("answer_format.syntax")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_familys_format_is_taken(family: str) -> None:
    check_format(generation_pb2.AnswerFormat(syntax=FAMILIES[family]), "answer_format")


@pytest.mark.parametrize(
    ("template", "answer", "content", "n_calls"),
    [
        ("openai-gpt-oss-120b", "Hello <b>", "Hello <b>", 0),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "[TOOL_CALLS]now{}[TOOL_CALLS]now{}", "", 2),
        ("Qwen-Qwen3-0.6B", '<tool_call>\n{"name": "now"}\n{"name": "now"}\n</tool_call>', "", 2),
        ("meta-llama-Llama-3.3-70B-Instruct", '[{"name": "now", "parameters": {}}]', "", 1),
        ("meetkai-functionary-medium-v3.2", "all\nHi>>>now\n{}", "Hi", 1),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "<|START_RESPONSE|>Hi<|END_RESPONSE|>", "Hi", 0),
    ],
)
def test_what_models_leave_out_or_write_otherwise_is_understood(
    template: str, answer: str, content: str, n_calls: int
) -> None:
    syntax, prompt = syntax_of(template), chat_template(template).render([USER], TOOLS)
    prefix = prefix_of(syntax, prompt)
    got = read_in_every_way(lambda: AnswerParser(syntax=syntax, names=TYPES, prefix=prefix), answer)
    assert got == (content, "", [("now", "{}")] * n_calls)
