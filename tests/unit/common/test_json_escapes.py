"""Any character of a JSON text may be escaped, and what is spelled is what is read."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from inferflux.common.text.constraints.compiling import grammar_of
from inferflux.common.text.constraints.schema import read_schema
from inferflux.v1 import generation_pb2

FREE = '{"type":"string"}'
SHORT = '{"type":"string","minLength":1,"maxLength":2}'
OPEN = '{"type":"object","additionalProperties":{"type":"integer"}}'
ANY = "{}"


@cache
def matcher_of(schema: str) -> LLMatcher:
    constraint = generation_pb2.StructuredConstraint(json_schema=read_schema(schema).enforced)
    return LLMatcher(LLTokenizer("byte"), grammar_of(constraint), log_level=0)


def takes(schema: str, answer: str) -> bool:
    """Whether a mask lets an answer through, byte by byte, and it may end there."""
    matcher = matcher_of(schema).deep_copy()
    data = list(answer.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def escaped(text: str, *, upper: bool = False) -> str:
    """Every character as one escape, or as the two of a pair."""
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    return "".join(f"\\u{code:04X}" if upper else f"\\u{code:04x}" for code in codes)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.booleans())
def test_every_character_may_be_escaped_in_texts_and_names(text: str, upper: bool) -> None:
    spelled = f'"{escaped(text, upper=upper)}"'
    assert json.loads(spelled) == text
    assert takes(FREE, spelled)
    assert takes(ANY, spelled)
    assert takes(OPEN, f"{{{spelled}:1}}")
    assert takes(ANY, f"{{{spelled}:[{spelled}]}}")


def test_escapes_and_plain_characters_go_together() -> None:
    assert takes(FREE, '"caf\\u00e9 é \\ud83d\\ude42\\n\\"\\\\ / \\u0041"')


@pytest.mark.parametrize("text", ["a", "é", "€", "🙂", "\n", '"'])
def test_an_escape_is_one_character_of_a_length(text: str) -> None:
    spelled = escaped(text)
    assert takes(SHORT, f'"{spelled}"')
    assert takes(SHORT, f'"{spelled}b"')
    assert not takes(SHORT, f'"{spelled}bc"')
    assert not takes(SHORT, f'"{spelled * 3}"')


@pytest.mark.parametrize(
    "text",
    [
        "\\ud83d",
        "\\ude42",
        "\\ude42\\ud83d",
        "\\ud83d\\ud83d\\ude42",
        "\\ud83dx",
        "\\ud83d\\u0041",
        "\\udfff",
    ],
)
def test_no_half_of_a_pair_stands_alone(text: str) -> None:
    for spelled in (text, f"a{text}", f"{text}b"):
        assert not takes(FREE, f'"{spelled}"')
        assert not takes(OPEN, f'{{"{spelled}":1}}')
        assert not takes(ANY, f'"{spelled}"')


@pytest.mark.parametrize("text", ["\\/", "\\u", "\\u00", "\\u00g0", "\\x41", "\\", "\\u{41}"])
def test_other_escapes_are_not_spelled(text: str) -> None:
    assert not takes(FREE, f'"{text}"')
