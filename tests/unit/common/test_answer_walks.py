"""Readers read what a grammar lets through: random answers under masks are whole calls of their schemas."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from harness.answer_syntaxes import FAMILIES, FUNCTIONS, RIGHT, calls_of
from llguidance import LLMatcher

from benchmarks.right_answers import Vocabulary, matcher_of, vocabulary_of
from inferflux.common.text.answers.parser import AnswerParser
from inferflux.common.text.answers.pieces import CallArguments, CallName, Content
from inferflux.common.text.constraints.answers.schemas import parameter_types
from inferflux.v1 import generation_pb2

TYPES = {name: parameter_types(schema) for name, schema in FUNCTIONS.items()}
MOST_TOKENS, MOST_TRIES, ENOUGH = 600, 30, 3
# What ends values and markers, so that a walk comes to an end.
SIGNS = b"<>]})|/\"'\n"
OPTIONAL = generation_pb2.REASONING_FORMAT_OPTIONAL
# By how a request asks for calls: what of the constraint is set.
ASKED: dict[str, dict[str, Any]] = {
    "required": {"is_required": True},
    "named": {"is_required": True, "is_single": True},
    "auto": {},
    "auto after a thought": {"reasoning": OPTIONAL},
}


def walked(matcher: LLMatcher, vocabulary: Vocabulary, draw: random.Random) -> str | None:
    """A random answer's rest; None if it does not end."""
    tokens: list[int] = []
    while len(tokens) < MOST_TOKENS:
        if matcher.is_stopped() or (tokens and matcher.is_accepting() and draw.random() < 0.5):
            return vocabulary.text(tokens)
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = [int(i) for i in np.flatnonzero(bits) if i < vocabulary.eos_token_id]
        signs = [token for token in allowed if token > 255 or token in SIGNS]
        if not allowed:
            return None
        token = draw.choice(signs if signs and draw.random() < 0.7 else allowed)
        assert matcher.consume_token(token)
        tokens.append(token)
    return None


def opening_of(name: str) -> str:
    """A right answer up to the name of what it calls; with it where a text may begin as the answer does."""
    thought = FAMILIES[name].thought.end
    for answer in RIGHT[name]:
        said = answer.rpartition(thought)[2] if thought else answer
        if found := [(said.find(function), function) for function in FUNCTIONS if function in said]:
            at, function = min(found)
            is_begun = FAMILIES[name].calls.is_whole_answer
            return said[: at + (len(function) + 1) * is_begun]
    raise AssertionError(name)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_random_answer_under_the_grammar_is_read_as_calls_of_their_schemas(name: str, asked: str) -> None:
    syntax = FAMILIES[name]
    if asked == "auto after a thought" and not syntax.HasField("thought"):
        pytest.skip("a family without thoughts")
    calls = calls_of(name, **ASKED[asked])
    if asked == "named":
        del calls.functions[1:]
    begin = opening_of(name) if asked.startswith("auto") else ""
    if calls.reasoning:
        begin = f"{syntax.thought.begin}hm{syntax.thought.end}{begin}"
    n_all = 0
    for has_controls in (False, True):
        vocabulary = vocabulary_of(syntax, has_controls=has_controls)
        made, draw, n_read = matcher_of(calls, has_controls=has_controls), random.Random(name), 0
        assert isinstance(made, LLMatcher), made
        for _ in range(MOST_TRIES):
            matcher = made.deep_copy()
            if begin:
                assert matcher.consume_tokens(vocabulary.ids(begin)), begin
            rest = walked(matcher, vocabulary, draw)
            if rest is None:
                continue
            check_is_read(begin + rest, calls)
            n_read += 1
            if n_read == ENOUGH:
                break
        n_all += n_read
    assert n_all


def check_is_read(answer: str, calls: generation_pb2.ToolCallsConstraint) -> None:
    """Assert that an answer is calls that match their schemas, and nothing else besides a thought."""
    parser = AnswerParser(
        syntax=calls.syntax,
        names={function.name: TYPES[function.name] for function in calls.functions},
        reasoning=calls.reasoning,
        is_exact=True,
        prefix="<|start|>assistant" if calls.syntax.HasField("channels") else "",
    )
    read: list[tuple[str, str]] = []
    for piece in itertools.chain(parser.push(answer), parser.finish()):
        assert not isinstance(piece, Content), answer
        if isinstance(piece, CallName):
            read.append((piece.name, ""))
        elif isinstance(piece, CallArguments):
            read[-1] = (read[-1][0], read[-1][1] + piece.text)
    assert read, answer
    assert not calls.is_single or len(read) == 1, answer
    for function, arguments in read:
        assert jsonschema_rs.is_valid(FUNCTIONS[function], json.loads(arguments)), answer
