"""Readers read what a grammar lets through: random answers under masks are whole calls of their schemas."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

import jsonschema_rs
import numpy as np
import pytest
from harness.answer_syntaxes import FAMILIES, FUNCTIONS, calls_of
from llguidance import LLMatcher

from inferflux.common.answers.parser import AnswerParser
from inferflux.common.answers.pieces import CallArguments, CallName, Content
from inferflux.common.constraints.answers.schemas import parameter_types
from inferflux.common.constraints.compiling import Compiler
from inferflux.common.llama.vocab import Vocab
from inferflux.v1 import generation_pb2

DEMO_MODEL = Path(__file__).parents[3] / "models" / "inferflux-demo.gguf"
TYPES = {name: parameter_types(schema) for name, schema in FUNCTIONS.items()}
MOST_TOKENS = 250
# What ends values and markers, so that a walk comes to an end.
SIGNS = "<>]})|/\"'\n"


@functools.cache
def vocab() -> Vocab:
    return Vocab.load(DEMO_MODEL)


@functools.cache
def compiler() -> Compiler:
    return Compiler(vocab())


@functools.cache
def sign_tokens() -> frozenset[int]:
    pieces = ((token, vocab().piece(token).decode("utf-8", "replace")) for token in range(vocab().size))
    return frozenset(token for token, piece in pieces if piece and piece[0] in SIGNS)


def walked(matcher: LLMatcher, draw: random.Random) -> str | None:
    """A random answer; None if it does not end."""
    tokens: list[int] = []
    while len(tokens) < MOST_TOKENS:
        if matcher.is_stopped() or (tokens and matcher.is_accepting() and draw.random() < 0.5):
            return b"".join(map(vocab().piece, tokens)).decode("utf-8", "replace")
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = [int(i) for i in np.flatnonzero(bits) if i < vocab().size and i not in vocab().eog]
        signs = [token for token in allowed if token in sign_tokens()]
        if not allowed:
            return None
        token = draw.choice(signs if signs and draw.random() < 0.7 else allowed)
        assert matcher.consume_token(token)
        tokens.append(token)
    return None


@pytest.mark.parametrize("name", FAMILIES)
def test_a_random_answer_under_the_grammar_is_read_as_calls_of_their_schemas(name: str) -> None:
    calls = calls_of(name, is_required=True)
    made = compiler().compile(generation_pb2.StructuredConstraint(tool_calls=calls))
    draw = random.Random(name)
    prefix = "<|start|>assistant" if FAMILIES[name].HasField("channels") else ""
    n_read = 0
    for _ in range(10):
        answer = walked(made.matcher.deep_copy(), draw)
        if answer is None:
            continue
        parser = AnswerParser(syntax=FAMILIES[name], names=TYPES, is_exact=True, prefix=prefix)
        read: list[tuple[str, str]] = []
        for piece in parser.push(answer) + parser.finish():
            assert not isinstance(piece, Content), answer
            if isinstance(piece, CallName):
                read.append((piece.name, ""))
            elif isinstance(piece, CallArguments):
                read[-1] = (read[-1][0], read[-1][1] + piece.text)
        assert read, answer
        for function, arguments in read:
            assert jsonschema_rs.is_valid(FUNCTIONS[function], json.loads(arguments)), answer
        n_read += 1
    assert n_read
