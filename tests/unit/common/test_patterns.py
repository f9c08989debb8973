"""Expressions of schemas, written so that all readers agree on them."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import jsonschema_rs
import pytest
from harness.profiles import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.llama.vocab import Vocab
from inferflux.common.text.constraints.compiling import Compiler
from inferflux.common.text.constraints.patterns import PatternError, portable
from inferflux.common.text.constraints.repeats import repeats
from inferflux.common.text.constraints.schema import read_schema, refuse_unenforced
from inferflux.v1 import generation_pb2

DEMO_MODEL = Path(__file__).parents[3] / "models" / "inferflux-demo.gguf"


@functools.cache
def _vocab() -> Vocab:
    return Vocab.load(DEMO_MODEL)


@functools.cache
def _compiler() -> Compiler:
    return Compiler(_vocab())


@functools.cache
def _bytes() -> dict[bytes, int]:
    """The tokens of single bytes."""
    pieces = {_vocab().piece(token): token for token in range(_vocab().size)}
    return {piece: token for piece, token in pieces.items() if len(piece) == 1}


def _may_be_answered(schema: str, answer: str) -> bool:
    """Whether the masks of a schema let a model say this."""
    constraint = generation_pb2.StructuredConstraint(json_schema=read_schema(schema).enforced)
    matcher = _compiler().compile(constraint).matcher.deep_copy()
    tokens = [_bytes()[bytes([byte])] for byte in answer.encode()]
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("pattern", "is_read_as"),
    [
        ("^ab|c$", "^ab|c$"),
        ("(?:a)(?<n>b){2,}?", "(?:a)(?<n>b){2,}?"),
        ("\\d\\w", "[0-9][0-9A-Z_a-z]"),
        ("[\\w.-]", "[\\--\\.0-9A-Z_a-z]"),
        ("[a&&[^b]]", "[\\&\\[\\^a-b]\\]"),
        ("[[:x:]]", "[:\\[x]\\]"),
        ("[+--]", "[\\+-\\-]"),
        ("[-a]", "[\\-a]"),
        ("\\u0041\\x42\\/", "AB\\/"),
        ("[\\b]", "\\x08"),
        ("^{a]}{2}$", "^\\{a\\]\\}{2}$"),
        ("(^a|^b)c(d$|$)", "(^a|^b)c(d$|$)"),
        ("[\\p{L}\\d]", "[0-9\\p{L}]"),
        ("[^\\p{L}]\\P{Lu}", "[^\\p{L}]\\P{Lu}"),
    ],
)
def test_an_expression_is_written_in_the_syntax_that_all_share(pattern: str, is_read_as: str) -> None:
    assert portable(pattern) == is_read_as
    assert portable(is_read_as) == is_read_as


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("(?i)a", "(?i"),
        ("(?P<n>a)", "(?P"),
        ("\\Aa", "\\A"),
        ("\\h", "\\h"),
        ("[\\e]", "\\e"),
        ("[\\pL]", "\\p"),
        ("\\07", "octal"),
        ("\\ud800", "surrogate"),
        ("[]", "empty class"),
        ("[^\\s\\S]", "without characters"),
        ("[\\d-x]", "range"),
        ("[z-a]", "range"),
        ("[a", "no end"),
        ("[a-", "no end"),
        ("\\", "escape"),
        ("\\1", "back reference"),
        ("(?<n>a)\\k<n>", "back reference"),
        ("(?=a)", "look-around"),
        ("(?<!a)b", "look-around"),
        ("a\\b", "word boundary"),
        ("a^b", "beginning"),
        ("(a$|b)c", "an end of the text"),
        ("(a", "group without an end"),
        ("a)", "end of no group"),
        ("*a", "count of nothing"),
        ("a**", "count of nothing"),
        ("(^a)*", "count of nothing"),
        ("a{3,2}", "wrong order"),
        ("(" * 200 + ")" * 200, "nesting"),
    ],
)
def test_what_is_read_in_different_ways_is_refused_by_name(pattern: str, named: str) -> None:
    with pytest.raises(PatternError) as refused:
        portable(pattern)
    assert named in str(refused.value)


def test_classes_that_take_too_much_room_are_refused_before_they_are_all_spelled_out() -> None:
    assert len(portable("\\S" * 1000)) == 36_000
    with pytest.raises(PatternError, match="longer than 65536 characters"):
        portable("\\S" * 1_000_000)


def test_the_patterns_of_a_schema_have_room_together() -> None:
    one = {"type": "string", "pattern": "\\S" * 1000}
    assert not read_schema(json.dumps({"type": "array", "items": one})).unenforced
    read = read_schema(json.dumps({"type": "object", "properties": {"a": one, "b": one}}))
    assert list(map(str, read.unenforced)) == ["pattern (#/properties/b)"]


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        ('^[^"]$', '"', False),
        ('^[^"]$', "\\", True),
        ('^[^"\\\\]$', "\\", False),
        ("^[^a\\\\]$", '"', True),
        ("^[\\x00-!]$", '"', False),
        ("^[\\x00-!]$", "\n", True),
        ("^.$", "\r", False),
        ("^.$", "\u2028", False),
        ("^.$", '"', True),
        ("^\\s$", "\x85", False),
        ("^\\s$", "\ufeff", True),
        ("^\\S$", "\x85", True),
        ("^\\d$", "\u0663", False),
        ("^[a-c&&[^b]]$", "c", False),
        ("^[a-c&&[^b]]$", "c]", True),
    ],
)
def test_masks_read_an_expression_as_ecma_262_does(pattern: str, text: str, *, is_match: bool) -> None:
    schema = json.dumps({"type": "string", "pattern": pattern})
    assert _may_be_answered(schema, json.dumps(text, ensure_ascii=False)) is is_match


@given(pattern=st.text(alphabet='^$.[]()\\\\--&~"abdDsSwWpx0{}|*+?,é', max_size=12))
@settings(max_examples=examples(300), deadline=None)
def test_what_is_accepted_stays_an_expression_wherever_it_was_one(pattern: str) -> None:
    try:
        jsonschema_rs.validator_for({"pattern": pattern})
        read = portable(pattern)
    except ValueError:
        return
    jsonschema_rs.validator_for({"pattern": read})


@pytest.mark.parametrize(
    ("pattern", "product"),
    [
        ("^a{1,10000}$", 1),
        ("^(a+){1,999}$", 1),
        ("^(a{1,30}){1,30}$", 900),
        ("^(((a{1,99}){1,99}){1,99}){1,99}$", 99**4),
        (r"^(\w{1,20}\s?){1,300}$", 6000),
        ("^([a-z]{1,99}|b){1,99}$", 9801),
        (r"^([a-z0-9]{1,63}[.]){1,127}[a-z]{2,63}$", 1),
        ("^([a-z]{1,99}a){1,99}$", 9801),
        (r"([\]a]{1,99}){1,99}", 9801),
    ],
)
def test_counts_within_counts_multiply_unless_something_is_between(pattern: str, product: int) -> None:
    assert repeats(portable(pattern)) == product


def test_counts_that_multiply_beyond_what_masks_hold_are_left_to_the_check_or_refused_by_place() -> None:
    schema = {"properties": {"x": {"type": "string", "pattern": "^(((a{1,99}){1,99}){1,99}){1,99}$"}}}
    read = read_schema(json.dumps(schema))
    assert [*map(str, read.unenforced)] == ["pattern (#/properties/x)"]
    assert "{1,99}" in read.checked
    assert "{1,99}" not in read.enforced
    with pytest.raises(InvalidArgument, match=r"pattern \(#/properties/x\)"):
        refuse_unenforced(read.unenforced)


def test_a_count_of_thousands_of_digits_is_none() -> None:
    with pytest.raises(PatternError):
        portable("x{1," + "9" * 5000 + "}")
