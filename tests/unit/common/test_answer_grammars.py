"""Answers of every family: what the grammar lets through, and what it holds once a call begins."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from harness.answer_syntaxes import FAMILIES, RIGHT, calls_of

from inferflux.common.llama.vocab import Vocab
from inferflux.common.text.constraints.checking import ConstraintError
from inferflux.common.text.constraints.compiling import Compiled, Compiler
from inferflux.v1 import generation_pb2

DEMO_MODEL = Path(__file__).parents[3] / "models" / "inferflux-demo.gguf"
OPTIONAL, OPEN = generation_pb2.REASONING_FORMAT_OPTIONAL, generation_pb2.REASONING_FORMAT_OPEN
Constraint = generation_pb2.StructuredConstraint
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
)
CONTENTS: dict[str, dict[str, Any]] = {
    '{"a": 1}': {"json_schema": SCHEMA},
    '{"b": [1]}': {"json_object": True},
    "abcx": {"regex": "[a-z]{3}x"},
    "yes": {"choice": generation_pb2.ChoiceConstraint(texts=["yes", "no"])},
    "no": {"gbnf": 'root ::= "yes" | "no"'},
    "maybe": {"lark": 'start: "maybe"'},
}
THINKING = [name for name, syntax in FAMILIES.items() if syntax.HasField("thought")]


@functools.cache
def vocab() -> Vocab:
    return Vocab.load(DEMO_MODEL)


@functools.cache
def compiler() -> Compiler:
    return Compiler(vocab())


def compiled(**constraint: Any) -> Compiled:
    return compiler().compile(Constraint(**constraint))


def allows(made: Compiled, answer: str) -> bool:
    """Return whether this may be the whole answer."""
    matcher = made.matcher.deep_copy()
    ids = vocab().tokenize(answer.encode(), add_special=False, parse_special=False)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def only_calls(name: str) -> list[str]:
    """Right answers of a family that are calls alone, without a thought."""
    thought = FAMILIES[name].thought.end
    said = [one.rpartition(thought)[2] if thought else one for one in RIGHT[name]]
    opening = (FAMILIES[name].calls.begin + FAMILIES[name].calls.call).split("$")[0].strip()[:5]
    return [one for one in said if one.startswith(opening) and ("get_weather" in one or "now" in one)]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_own_answers_get_through_with_and_without_a_thought(name: str) -> None:
    syntax = FAMILIES[name]
    forms = (OPTIONAL,) if syntax.HasField("channels") else (0, OPTIONAL) if name in THINKING else (0,)
    for form in forms:
        made = compiled(tool_calls=calls_of(name, reasoning=form))
        for answer in RIGHT[name]:
            assert allows(made, answer), answer
    if name in THINKING:
        opened = compiled(tool_calls=calls_of(name, reasoning=OPEN))
        for answer in only_calls(name):
            assert allows(opened, f"I call {answer[:20]}?{syntax.thought.end}{answer}"), answer
            assert not allows(opened, answer)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_required_call_is_nothing_else(name: str) -> None:
    made = compiled(tool_calls=calls_of(name, is_required=True))
    answers = only_calls(name)
    assert answers
    for answer in answers:
        assert allows(made, answer), answer
        assert not allows(made, f"Well: {answer}")
    for answer in ("", "19."):
        assert not allows(made, answer)


@pytest.mark.parametrize("name", FAMILIES)
def test_from_its_first_marker_on_a_call_is_held(name: str) -> None:
    made = compiled(tool_calls=calls_of(name))
    for answer in only_calls(name):
        # Without a marker, what calls something else is text.
        unknown = "" if name == "pyth" else answer.replace("now", "then").replace("get_weather", "sub")
        for broken in filter(
            None,
            (
                unknown,
                answer.replace("city", "town") if "get_weather" in answer else answer.replace("now", "sub"),
                answer[:-1],
                answer + " more",
            ),
        ):
            assert not allows(made, broken), broken


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_are_several_unless_they_are_single(name: str) -> None:
    for answer in only_calls(name):
        if answer.count("get_weather") + answer.count("now") > 1:
            assert not allows(compiled(tool_calls=calls_of(name, is_single=True)), answer)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("name", THINKING)
def test_a_constraint_holds_what_comes_after_the_thought(name: str, content: str) -> None:
    syntax, wanted = FAMILIES[name], CONTENTS[content]
    begin = syntax.content_begin if syntax.HasField("channels") else ""
    opened = compiled(syntax=syntax, reasoning=OPEN, **wanted)
    assert allows(opened, f"Is it {content}?{syntax.thought.end}{begin}{content}")
    assert not allows(opened, begin + content)
    assert not allows(opened, f"hm{syntax.thought.end}{begin}hm")
    optional = compiled(syntax=syntax, reasoning=OPTIONAL, **wanted)
    assert allows(optional, begin + content)
    assert allows(optional, f"{syntax.thought.begin}hm{syntax.thought.end}{begin}{content}")


@pytest.mark.parametrize("name", FAMILIES)
def test_with_tools_and_a_format_an_answer_is_calls_or_of_that_format(name: str) -> None:
    syntax = FAMILIES[name]
    begin = syntax.content_begin if syntax.HasField("channels") else ""
    made = compiled(tool_calls=calls_of(name, content=Constraint(json_schema=SCHEMA)))
    assert allows(made, begin + '{"a": 1}')
    for answer in only_calls(name):
        if not FAMILIES[name].calls.is_whole_answer or "python_tag" not in answer:
            assert allows(made, answer), answer
    for answer in ("hello", begin + '{"a": "1"}', begin + '{"b": 1}'):
        assert not allows(made, answer), answer


def test_parameters_come_in_any_order_each_once_and_required_ones_always() -> None:
    made = compiled(tool_calls=calls_of("coder", is_required=True))

    def call(*keys: str) -> str:
        values = {"city": "Paris", "days": "3", "unit": "c"}
        parameters = "".join(f"<parameter={key}>\n{values[key]}\n</parameter>\n" for key in keys)
        return f"<tool_call>\n<function=get_weather>\n{parameters}</function>\n</tool_call>"

    for keys in (("city",), ("days", "city"), ("unit", "city", "days")):
        assert allows(made, call(*keys)), keys
    for wrong in ((), ("days",), ("city", "city"), ("days", "city", "days")):
        assert not allows(made, call(*wrong)), wrong
    assert not allows(made, call("city", "unit").replace("\nc\n", "\nk\n"))
    assert not allows(made, call("city", "days").replace("\n3\n", "\nthree\n"))


@pytest.mark.parametrize(("name", "is_told"), [("a b", False), ("x>y", False), ("a.b/c:d-é", True)])
def test_a_name_that_a_call_cannot_spell_is_refused(name: str, is_told: bool) -> None:
    calls = calls_of("coder")
    calls.functions[1].name = name
    if is_told:
        compiled(tool_calls=calls)
    else:
        with pytest.raises(ConstraintError, match="name"):
            compiled(tool_calls=calls)
    calls.syntax.CopyFrom(FAMILIES["hermes"])
    call = json.dumps({"name": name, "arguments": {}}, ensure_ascii=False)
    assert allows(compiled(tool_calls=calls), f"<tool_call>\n{call}\n</tool_call>")


@pytest.mark.parametrize("name", THINKING)
def test_what_is_around_content_is_not_checked(name: str) -> None:
    syntax = FAMILIES[name]
    is_message = syntax.HasField("channels")
    form, lead = (OPTIONAL, syntax.thought.begin) if is_message else (OPEN, "")
    begin = syntax.content_begin if is_message else ""
    alone = compiled(syntax=syntax, reasoning=form, json_schema=SCHEMA)
    beside_tools = compiled(tool_calls=calls_of(name, reasoning=form, content=Constraint(json_schema=SCHEMA)))
    for made in (alone, beside_tools):
        assert made.why_wrong(f'{lead}{{"a": "1"}}{syntax.thought.end}{begin}{{"a": 1}}') == ""
        assert made.why_wrong(f'{lead}{{"a": 1}}{syntax.thought.end}{begin}{{"a": "1"}}')
    for answer in only_calls(name):
        assert beside_tools.why_wrong(f"{lead}hm{syntax.thought.end}{answer}") == ""
