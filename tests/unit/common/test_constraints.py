"""Which constraints are taken, what becomes of a JSON schema, and that masks lead to what was asked for."""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from harness import schemas
from harness.profiles import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.constraint_limits import MAX_BYTES, MAX_CHOICES, MAX_ENFORCED_BYTES
from inferflux.common.contract.requests.generation_limits import check_params
from inferflux.common.llama.vocab import Vocab
from inferflux.common.text.constraints.checking import ConstraintError
from inferflux.common.text.constraints.compiling import Compiled, Compiler
from inferflux.common.text.constraints.formats import CHECKED_FORMATS, FORMATS
from inferflux.common.text.constraints.schema import KEYWORDS, LEVELS, read_schema, refuse_unenforced
from inferflux.v1 import generation_pb2

DEMO_MODEL = Path(__file__).parents[3] / "models" / "inferflux-demo.gguf"
Params = generation_pb2.GenerationParams
Constraint = generation_pb2.StructuredConstraint
Choice = generation_pb2.ChoiceConstraint


@functools.cache
def vocab() -> Vocab:
    return Vocab.load(DEMO_MODEL)


@functools.cache
def compiler() -> Compiler:
    return Compiler(vocab())


def matches(schema: schemas.Schema, answer: bytes) -> bool:
    """What another reader says; of a number beyond all floats it may know no value."""
    value = json.loads(answer, parse_float=lambda text: min(max(float(text), -1e308), 1e308))
    return jsonschema_rs.is_valid(schema, value)


def compiled(schema: schemas.Schema | str) -> Compiled:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return compiler().compile(Constraint(json_schema=read_schema(text).enforced))


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (Params(constraint=Constraint()), "params.constraint"),
        (Params(constraint=Constraint(json_object=False)), "params.constraint.json_object"),
        (Params(constraint=Constraint(json_schema="")), "params.constraint.json_schema"),
        (
            Params(constraint=Constraint(json_schema=" " * (MAX_ENFORCED_BYTES + 1))),
            "params.constraint.json_schema",
        ),
        (Params(constraint=Constraint(gbnf="é" * (MAX_BYTES // 2 + 1))), "params.constraint.gbnf"),
        (Params(constraint=Constraint(lark="")), "params.constraint.lark"),
        (Params(constraint=Constraint(regex="")), "params.constraint.regex"),
        (Params(constraint=Constraint(choice=Choice())), "params.constraint.choice.texts"),
        (Params(constraint=Constraint(choice=Choice(texts=["a", ""]))), "params.constraint.choice.texts[1]"),
        (
            Params(constraint=Constraint(choice=Choice(texts=["a"] * 10_000))),
            "params.constraint.choice.texts",
        ),
        (
            Params(constraint=Constraint(choice=Choice(texts=["a" * MAX_BYTES, "b"]))),
            "params.constraint.choice.texts",
        ),
        (Params(constraint=Constraint(json_object=True), stop=["x"]), "params.stop"),
        (Params(constraint=Constraint(json_object=True), stop_token_ids=[1]), "params.stop_token_ids"),
        (Params(constraint=Constraint(json_object=True), ignore_eos=True), "params.ignore_eos"),
    ],
)
def test_what_is_not_taken_is_refused_by_its_field(params: Params, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_params(params)
    assert refused.value.field == field


def test_both_ends_of_every_limit_are_taken() -> None:
    for constraint in (
        Constraint(json_object=True),
        Constraint(regex="a"),
        Constraint(lark="x" * MAX_BYTES),
        Constraint(choice=Choice(texts=["a"])),
        Constraint(choice=Choice(texts=[str(i) for i in range(MAX_CHOICES)])),
    ):
        check_params(Params(constraint=constraint))


def test_a_schema_loses_what_asserts_nothing_and_keeps_its_order() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/person",
        "title": "Person",
        "properties": {
            "title": {"type": "string", "description": "of honour", "default": ""},
            "age": {"type": "integer", "examples": [3], "$comment": "years"},
        },
        "required": ["title", "age", "title"],
        "const": {"title": "kept", "description": 1},
    }
    read = read_schema(json.dumps(schema, indent=3))
    assert not read.unenforced
    assert read.enforced == read.checked
    assert read.enforced == (
        '{"properties":{"title":{"type":"string"},"age":{"type":"integer"}},'
        '"required":["title","age"],"const":{"title":"kept","description":1}}'
    )


def test_definitions_that_nothing_refers_to_are_not_read() -> None:
    unused = {"type": "text", "pattern": "(?=", "$ref": "#/nowhere", "items": 3}
    for where in ("$defs", "definitions", "components"):
        read = read_schema(json.dumps({"type": "null", where: {"unused": unused}}))
        assert (read.enforced, read.unenforced) == ('{"type":"null"}', ())


def test_arguments_are_an_object_whatever_else_their_schema_says() -> None:
    of_reference = {"$ref": "#/definitions/a", "definitions": {"a": {"type": "object", "required": ["b"]}}}
    for schema, is_read_as in (
        (True, {"type": "object"}),
        ({"properties": {}}, {"properties": {}, "type": "object"}),
        ({"type": "string", "maxLength": 3}, {"type": "object"}),
        ({"type": ["object", "null"]}, {"type": "object"}),
        (
            {"type": "object", "properties": {"a": {"$ref": "#/no"}}},
            {"type": "object", "properties": {"a": {}}},
        ),
        ({"type": "object", "required": True}, {"type": "object"}),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, {"properties": {"a": {}}, "type": "object"}),
        (
            of_reference,
            {
                "$ref": "#/$defs/definitions_a",
                "$defs": {"definitions_a": {"type": "object", "required": ["b"]}},
            },
        ),
    ):
        assert json.loads(read_schema(json.dumps(schema), is_arguments=True).enforced) == is_read_as


@pytest.mark.parametrize("name", schemas.accepted())
def test_every_complete_answer_matches_its_schema(name: str) -> None:
    schema = schemas.accepted()[name]
    ready = compiled(schema)
    n_complete = 0
    for seed in range(2):
        walked = schemas.walk(ready, vocab(), np.random.default_rng(seed))
        assert not walked.error
        if walked.is_complete:
            n_complete += 1
            assert not ready.why_wrong(walked.answer.decode()), walked.answer
            assert matches(schema, walked.answer), walked.answer
    assert n_complete


def test_an_object_of_a_thousand_optional_properties_is_held() -> None:
    properties = {f"p{i}": schemas.INT for i in range(1000)}
    ready = compiled({"type": "object", "properties": properties, "additionalProperties": False})
    matcher = ready.matcher.deep_copy()
    answer = b'{"p7": 1, "p400": 2, "p999": 3}'
    for token in vocab().tokenize(answer, add_special=False, parse_special=False):
        assert matcher.consume_token(int(token)), matcher.get_error()
    assert matcher.is_accepting()


def test_of_a_long_list_of_tagged_alternatives_one_alone_can_match() -> None:
    tagged = [schemas.obj(kind={"const": f"k{i}"}, value=schemas.INT) for i in range(400)]
    assert not read_schema(json.dumps({"oneOf": tagged})).unenforced
    again = read_schema(json.dumps({"oneOf": [*tagged, tagged[7]]}))
    assert list(map(str, again.unenforced)) == ["oneOf (#)"]


@pytest.mark.parametrize("name", schemas.left_to_the_check())
def test_what_cannot_be_enforced_is_named_and_refused_where_it_has_to_be(name: str) -> None:
    schema, keyword = schemas.left_to_the_check()[name]
    for level in range(LEVELS):
        read = read_schema(json.dumps(schema), level=level)
        with contextlib.suppress(ConstraintError):
            compiler().compile(Constraint(json_schema=read.enforced, checked_schema=read.checked))
            break
    assert keyword in map(str, read.unenforced)
    with pytest.raises(InvalidArgument) as refused:
        refuse_unenforced(read.unenforced)
    assert keyword in refused.value.message


@pytest.mark.parametrize("name", schemas.refused())
def test_what_is_no_schema_is_refused_by_its_place(name: str) -> None:
    schema, named = schemas.refused()[name]
    with pytest.raises(InvalidArgument) as refused:
        compiled(schema if isinstance(schema, str) else json.dumps(schema))
    assert named in refused.value.message
    assert refused.value.field == "params.constraint.json_schema"


@pytest.mark.parametrize("name", schemas.impossible())
def test_what_nothing_matches_does_not_compile(name: str) -> None:
    with pytest.raises(ConstraintError):
        compiled(schemas.impossible()[name])


def test_the_set_is_as_large_as_it_is_said_to_be() -> None:
    assert len(schemas.accepted()) + len(schemas.refused()) + len(schemas.impossible()) >= 200


def _schemas() -> st.SearchStrategy[Any]:
    """Schemas of the keywords that are taken, nested, maybe contradictory."""
    numbers = st.integers(-20, 20) | st.sampled_from([0.5, -1.5])
    counts = st.integers(0, 4)
    leaf = st.one_of(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["integer", "number"])},
            optional={"minimum": numbers, "maximum": numbers, "exclusiveMinimum": numbers},
        ),
        st.fixed_dictionaries(
            {"type": st.just("string")},
            optional={
                "minLength": counts,
                "maxLength": counts,
                "pattern": st.sampled_from(["^[a-c]+$", "^\\d*$", "b"]),
            },
        ),
        st.fixed_dictionaries(
            {
                "enum": st.lists(
                    st.sampled_from(["a", "b", 1, 2.5, None, True, [], {"a": 1}]), min_size=1, max_size=3
                )
            }
        ),
        st.sampled_from([{"type": "null"}, {"type": "boolean"}, {}, True]),
    )
    names = st.sampled_from(["a", "b", "c d", "é"])

    def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.fixed_dictionaries(
                {"type": st.just("object"), "properties": st.dictionaries(names, inner, max_size=3)},
                optional={
                    "required": st.lists(names, unique=True, max_size=2),
                    "additionalProperties": inner | st.just(False),
                },
            ),
            st.fixed_dictionaries(
                {"type": st.just("array"), "items": inner}, optional={"minItems": counts, "maxItems": counts}
            ),
            st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)}),
            st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
        )

    return st.recursive(leaf, deeper, max_leaves=8)


@settings(max_examples=examples(150))
@given(_schemas(), st.integers(0, 2**32))
def test_a_model_of_no_sense_gives_answers_that_match(schema: Any, seed: int) -> None:
    """Or the schema is refused, because nothing matches it."""
    try:
        ready = compiled(schema)
    except (ConstraintError, InvalidArgument):
        return
    walked = schemas.walk(ready, vocab(), np.random.default_rng(seed), eager=10, most=200)
    if walked.is_complete:
        assert not ready.why_wrong(walked.answer.decode())
        assert matches(schema, walked.answer), walked.answer


@settings(max_examples=examples(300))
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from([*sorted(KEYWORDS), "not", "title"]) | st.text(max_size=3), inner, max_size=4
            )
        ),
        max_leaves=20,
    )
)
def test_no_json_makes_the_check_raise_anything_else(value: Any) -> None:
    try:
        read = read_schema(json.dumps(value))
    except InvalidArgument:
        return
    again = read_schema(read.checked)
    assert (again.checked, again.enforced) == (read.checked, read.enforced)


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(gbnf="(" * MAX_BYTES),
        Constraint(gbnf='root ::= "a'),
        Constraint(gbnf='other ::= "a"'),
        Constraint(lark="start"),
        Constraint(lark="start: other"),
        Constraint(lark="start: start"),
        Constraint(lark='start: %json {"type": "object", "x-guidance": {"lenient": true}, "not": {}}'),
        Constraint(regex="("),
        Constraint(regex="(?=a)b"),
        Constraint(regex="[^\\s\\S]"),
        Constraint(regex="(" * 8000 + ")" * 8000),
    ],
)
def test_what_is_no_grammar_does_not_compile(constraint: Constraint) -> None:
    with pytest.raises(ConstraintError) as refused:
        compiler().compile(constraint)
    assert str(refused.value).isprintable()


HOSTILE = [
    Constraint(regex="(((a{0,100}){0,100}){0,100}){0,100}"),
    Constraint(regex=".*a.{30}"),
    Constraint(regex="(a?){200}a{200}"),
    Constraint(regex="(.*)*b"),
    Constraint(gbnf='root ::= (("a"? "b"?){0,40} "c"?){0,40}'),
    Constraint(lark='start: e\ne: e e | "a" | e e e'),
    Constraint(lark="start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(30)) + 'r30: "a"?'),
    Constraint(choice=Choice(texts=[f"{i:x}" for i in range(MAX_CHOICES)])),
]


@pytest.mark.parametrize("constraint", HOSTILE)
def test_a_bomb_is_refused_or_bounded(constraint: Constraint) -> None:
    """By counts of work, which the walk ends with an error of the matcher."""
    try:
        ready = compiler().compile(constraint)
    except ConstraintError:
        return
    walked = schemas.walk(ready, vocab(), np.random.default_rng(1), most=100)
    assert walked.error or walked.tokens or walked.is_complete


def test_a_control_token_stands_for_no_text() -> None:
    """`<|im_end|>` can be an answer's text only where it is spelled with other tokens."""
    ready = compiler().compile(Constraint(choice=Choice(texts=["<|im_end|>"])))
    walked = schemas.walk(ready, vocab(), np.random.default_rng(1))
    assert walked.answer == b"<|im_end|>"
    assert not set(walked.tokens) & vocab().eog


def test_the_manual_lists_what_is_enforced() -> None:
    page = (Path(__file__).parents[3] / "docs" / "structured-output.md").read_text(encoding="utf-8")
    for word in KEYWORDS | FORMATS | CHECKED_FORMATS:
        assert f"`{word}`" in page, word


@pytest.mark.parametrize(
    "answer",
    [
        "1e999",
        "-1e999999999999",
        "1375.0E7847237020390338141",
        "1" * 5000,
        "0.1e-99999999999",
        "1" * 5000 + ".5",
    ],
)
def test_a_number_of_any_size_is_checked_like_any_other(answer: str) -> None:
    ready = compiled({"type": "object", "properties": {"a": {"type": "number"}}})
    assert not ready.why_wrong('{"a":' + answer + "}")
    assert ready.why_wrong('{"a":"' + answer + '"}')


def test_what_cannot_be_read_is_wrong() -> None:
    ready = compiled(True)
    assert ready.why_wrong('{"a":')
    assert ready.why_wrong("[" * 100_000)
