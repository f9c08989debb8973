"""Answers that call tools: what the grammar lets through, for each family, and what is checked at the end."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TypeAlias

import pytest
from harness.answer_syntaxes import HERMES, LLAMA3, MISTRAL, with_thoughts
from harness.tokenizers import write_tokenizer

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.constraint_limits import MAX_FUNCTIONS, MAX_FUNCTIONS_BYTES
from inferflux.common.contract.requests.generation_limits import check_params
from inferflux.common.llama.vocab import Vocab
from inferflux.common.text.constraints.checking import ConstraintError
from inferflux.common.text.constraints.compiling import Compiled, Compiler, grammar_of
from inferflux.v1 import generation_pb2

DEMO_MODEL = Path(__file__).parents[3] / "models" / "inferflux-demo.gguf"
FORMATS = (HERMES, LLAMA3, MISTRAL)
NO_REASONING = generation_pb2.REASONING_FORMAT_UNSPECIFIED
OPTIONAL, OPEN = generation_pb2.REASONING_FORMAT_OPTIONAL, generation_pb2.REASONING_FORMAT_OPEN
Params = generation_pb2.GenerationParams
Calls = generation_pb2.ToolCallsConstraint
Syntax: TypeAlias = generation_pb2.AnswerSyntax

ADD_SCHEMA = (
    '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}'
)
NOW_SCHEMA = '{"type":"object","properties":{},"additionalProperties":false}'
ADD, NOW = ("add", '{"a": 1}'), ("now", "{}")


@functools.cache
def compiler() -> Compiler:
    return Compiler(Vocab.load(DEMO_MODEL))


@functools.cache
def vocab() -> Vocab:
    return Vocab.load(DEMO_MODEL)


def calls(
    form: Syntax = HERMES,
    *,
    is_required: bool = False,
    is_single: bool = False,
    reasoning: generation_pb2.ReasoningFormat.ValueType = NO_REASONING,
) -> Calls:
    made = Calls(
        syntax=with_thoughts(form, reasoning),
        is_required=is_required,
        is_single=is_single,
        reasoning=reasoning,
    )
    made.functions.add(name="add", parameters=ADD_SCHEMA)
    made.functions.add(name="now", parameters=NOW_SCHEMA)
    return made


def compiled(constraint: Calls) -> Compiled:
    return compiler().compile(generation_pb2.StructuredConstraint(tool_calls=constraint))


def allows(constraint: Compiled, answer: str) -> bool:
    """Whether this may be the whole answer."""
    matcher = constraint.matcher.deep_copy()
    ids = vocab().tokenize(answer.encode(), add_special=False, parse_special=False)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def spelled(form: Syntax, *made: tuple[str, str]) -> str:
    key = "parameters" if form == LLAMA3 else "arguments"
    objects = [f'{{"name": "{name}", "{key}": {arguments}}}' for name, arguments in made]
    if form == HERMES:
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)
    return f"[TOOL_CALLS][{', '.join(objects)}]" if form == MISTRAL else objects[0]


@pytest.mark.parametrize("form", FORMATS)
def test_a_call_that_is_not_required_may_be_text(form: Syntax) -> None:
    made = compiled(calls(form))
    for answer in ("", "19.", "<b> {x} [1]", spelled(form, ADD), spelled(form, NOW)):
        assert allows(made, answer), answer
    assert allows(made, "Let me see.\n" + spelled(form, ADD))
    for answer in (
        spelled(form, ("add", "{}")),
        spelled(form, ("sub", "{}")),
        spelled(form, ("add", '{"a": 1, "b": 2}')),
        spelled(form, ADD) + " more",
        spelled(form, ADD)[:-1],
    ):
        assert not allows(made, answer), answer


@pytest.mark.parametrize("form", FORMATS)
def test_a_required_call_is_nothing_else(form: Syntax) -> None:
    made = compiled(calls(form, is_required=True))
    assert allows(made, spelled(form, ADD))
    for answer in ("", "19.", "a " + spelled(form, ADD), spelled(form, ("add", "{}"))):
        assert not allows(made, answer), answer


@pytest.mark.parametrize("form", [HERMES, MISTRAL])
@pytest.mark.parametrize("is_required", [False, True])
def test_calls_are_several_unless_they_are_single(form: Syntax, is_required: bool) -> None:
    several = spelled(form, ADD, NOW, ADD)
    assert allows(compiled(calls(form, is_required=is_required)), several)
    assert not allows(compiled(calls(form, is_required=is_required, is_single=True)), several)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("is_required", [False, True])
def test_reasoning_comes_before_calls(form: Syntax, is_required: bool) -> None:
    call = spelled(form, ADD)
    thought = f"I call {call}?\n</think>\n\n"
    opened = compiled(calls(form, is_required=is_required, reasoning=OPEN))
    assert allows(opened, thought + call)
    assert not allows(opened, call)
    optional = compiled(calls(form, is_required=is_required, reasoning=OPTIONAL))
    assert allows(optional, "<think>" + thought + call)
    assert allows(optional, call)
    assert allows(opened, thought + "19.") is not is_required


def test_a_marker_that_is_a_control_token_is_named_by_its_id() -> None:
    constraint = generation_pb2.StructuredConstraint(tool_calls=calls(MISTRAL))
    grammar = grammar_of(constraint, {"[TOOL_CALLS]": 5}.get)
    assert " <[5]>" in grammar
    assert "TOOL_CALLS" not in grammar


def test_a_call_that_a_control_token_opens_is_held_to_its_schema(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    write_tokenizer(path, template=None, controls=["[TOOL_CALLS]"])
    own = Vocab.load(path)
    (opening,) = own.tokenize(b"[TOOL_CALLS]", add_special=False, parse_special=True)
    assert own.control_token("[TOOL_CALLS]") == opening
    assert own.control_token("he") is None
    assert own.control_token("[TOOL") is None
    constraint = generation_pb2.StructuredConstraint(tool_calls=calls(MISTRAL))
    made = Compiler(own).compile(constraint)
    spelling = '[{"name": "add", "arguments": {"a": 1}}]'

    def taken(before: str, after: str) -> bool:
        matcher = made.matcher.deep_copy()
        texts = (
            own.tokenize(text.encode(), add_special=False, parse_special=False) for text in (before, after)
        )
        first, second = texts
        ids = [*first, opening, *second]
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    assert taken("", spelling)
    assert taken("Well. ", " " + spelling)
    assert not taken("", spelling.replace("1", "true"))
    assert not taken("", spelling + "!")


def test_a_complete_call_is_checked_against_its_schema() -> None:
    made = compiled(calls(is_required=True))
    assert made.why_wrong(spelled(HERMES, ADD, NOW)) == ""
    assert "the call of add" in made.why_wrong(spelled(HERMES, NOW, ("add", "{}")))
    assert made.why_wrong("19.") == "it has no call"
    huge = ("add", '{"a": ' + "9" * 5000 + "}")
    assert made.why_wrong(spelled(HERMES, huge)) == ""
    cut = spelled(HERMES, ADD, NOW).removesuffix("}}\n</tool_call>")
    assert cut.endswith("{")
    assert compiled(calls()).why_wrong(cut) == ""


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"syntax": Syntax()}, "syntax.calls"),
        ({"reasoning": 99}, "reasoning"),
        ({"functions": []}, "functions"),
        ({"functions": [{"name": "a\tb"}]}, "functions[0].name"),
        ({"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name"),
        ({"functions": [{"name": f"f{i}"} for i in range(MAX_FUNCTIONS + 1)]}, "functions"),
        ({"functions": [{"name": "f", "parameters": " " * (MAX_FUNCTIONS_BYTES + 1)}]}, "functions"),
    ],
)
def test_a_constraint_beyond_its_limits_is_refused_by_name(change: dict[str, object], field: str) -> None:
    fields = {"syntax": HERMES, "functions": [{"name": "f"}]} | change
    constraint = Calls(**fields)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument) as refused:
        check_params(Params(constraint=generation_pb2.StructuredConstraint(tool_calls=constraint)))
    assert refused.value.field == f"params.constraint.tool_calls.{field}"


def test_stop_strings_go_together_with_calls_that_are_not_required() -> None:
    constraint = generation_pb2.StructuredConstraint(tool_calls=calls())
    check_params(Params(constraint=constraint, stop=["x"], stop_token_ids=[1]))
    with pytest.raises(InvalidArgument):
        check_params(Params(constraint=constraint, ignore_eos=True))
    constraint.tool_calls.is_required = True
    with pytest.raises(InvalidArgument) as refused:
        check_params(Params(constraint=constraint, stop=["x"]))
    assert refused.value.field == "params.stop"


def test_parameters_that_nothing_satisfies_are_told_by_their_function() -> None:
    constraint = calls()
    small = {"type": "string", "pattern": "^a$", "minLength": 3}
    schema = {"type": "object", "properties": {"x": small}, "required": ["x"]}
    constraint.functions.add(name="odd", parameters=json.dumps(schema))
    with pytest.raises(ConstraintError, match="odd: no answer satisfies it: required property 'x'"):
        compiled(constraint)


def test_many_functions_compile() -> None:
    constraint = Calls(syntax=HERMES)
    schema = json.loads(ADD_SCHEMA)
    for i in range(MAX_FUNCTIONS):
        schema["properties"] = {f"field_{i}_{j}": {"type": "string"} for j in range(6)}
        schema["required"] = list(schema["properties"])
        constraint.functions.add(name=f"function_{i}", parameters=json.dumps(schema, separators=(",", ":")))
    made = compiled(constraint)
    arguments = json.dumps({f"field_77_{j}": "x" for j in range(6)})
    assert allows(made, spelled(HERMES, ("function_77", arguments)))
