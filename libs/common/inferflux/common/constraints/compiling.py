"""From a constraint to what says which tokens may come next: llguidance's matcher.

Its work is bounded by counts, not by a clock: what compiles in one process compiles in another.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from inferflux.common.llama.vocab import Vocab
from inferflux.v1 import generation_pb2

from .vocabulary import NoEndError, tokenizer_of

# Whitespace is a blank, or a new line and its indentation: a model cannot go on with it for ever.
_JSON_OPTIONS: Any = {
    "whitespace_pattern": r"(\x20|\n[\x20\t]{0,40})",
    "coerce_one_of": False,
    "lenient": False,
}
# Python reads no longer integers; those of models do not end by themselves.
_MOST_DIGITS = 4000


class ConstraintError(Exception):
    """The constraint cannot be used; says why."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A constraint that can be used.

    Attributes:
        matcher: at the beginning of an answer. Answers work on copies of it.
        validator: of the schema that an answer has to match; None where none is given.
    """

    matcher: LLMatcher
    validator: jsonschema_rs.Draft202012Validator | None

    def why_wrong(self, answer: str) -> str:
        """Why a complete answer is not what was asked for; "" if it is."""
        if self.validator is None:
            return ""
        try:
            value = json.loads(answer, parse_float=_number, parse_int=_number)
            error = next(self.validator.iter_errors(value), None)
        except (ValueError, RecursionError) as broken:
            return f"it cannot be read: {broken}"
        return "" if error is None else _readable(str(error.message))


class Compiler:
    """Compiles for one vocabulary; several threads may call it at once.

    Args:
        vocab: must live longer. Reading it is put off until the first constraint.
    """

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._tokenizer: LLTokenizer | None = None
        self._reading = threading.Lock()

    def read_vocabulary(self) -> LLTokenizer:
        """Do the part that all constraints need.

        Raises:
            ConstraintError: with this vocabulary there are no constraints.
        """
        with self._reading:
            if self._tokenizer is None:
                try:
                    self._tokenizer = tokenizer_of(self._vocab)
                except (NoEndError, ValueError) as error:
                    raise ConstraintError(str(error)) from None
            return self._tokenizer

    def compile(self, constraint: generation_pb2.StructuredConstraint) -> Compiled:
        """Releases the GIL for most of its work.

        Raises:
            ConstraintError: it does not parse, is too large, or no answer satisfies it.
        """
        tokenizer = self.read_vocabulary()
        matcher = LLMatcher(tokenizer, grammar_of(constraint), log_level=0, limits=_limits())
        if warnings := matcher.get_grammar_warnings():
            raise ConstraintError(_readable(warnings[0]))
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error():
            raise ConstraintError(why_failed(matcher))
        if not any(mask):
            raise ConstraintError("no answer satisfies it")
        return Compiled(matcher, _validator_of(constraint))


def _number(text: str) -> float:
    """Any number that JSON can spell; those that no float holds count as the largest one."""
    if len(text) <= _MOST_DIGITS and text.lstrip("-").isdigit():
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else math.copysign(sys.float_info.max, number)


def _validator_of(
    constraint: generation_pb2.StructuredConstraint,
) -> jsonschema_rs.Draft202012Validator | None:
    match constraint.WhichOneof("constraint"):
        case "json_object":
            schema: Any = {"type": "object"}
        case "json_schema":
            schema = json.loads(constraint.json_schema)
        case _:
            return None
    try:
        return jsonschema_rs.Draft202012Validator(
            schema, validate_formats=False, pattern_options=jsonschema_rs.RegexOptions()
        )
    except ValueError as error:
        raise ConstraintError(_readable(str(error))) from None


def grammar_of(constraint: generation_pb2.StructuredConstraint) -> str:
    """The constraint as llguidance reads it.

    Raises:
        ConstraintError: it does not parse.
    """
    try:
        match constraint.WhichOneof("constraint"):
            case "json_object":
                return LLMatcher.grammar_from_json_schema('{"type":"object"}', overrides=_JSON_OPTIONS)
            case "json_schema":
                return LLMatcher.grammar_from_json_schema(constraint.json_schema, overrides=_JSON_OPTIONS)
            case "gbnf":
                return LLMatcher.grammar_from_lark(_lark_of(constraint.gbnf))
            case "lark":
                return LLMatcher.grammar_from_lark(constraint.lark)
            case "regex":
                return LLMatcher.grammar_from_regex(constraint.regex)
            case "choice":
                return LLMatcher.grammar_from_lark(_lark_of_choices(list(constraint.choice.texts)))
            case _:
                raise ConstraintError("it is empty")
    except ValueError as error:
        raise ConstraintError(_readable(str(error))) from None


def why_failed(matcher: LLMatcher) -> str:
    """Why a matcher is in error."""
    error = matcher.get_error()
    if "NoExtension" in error:
        return "no answer satisfies it"
    return _readable(error)


def _limits() -> LLParserLimits:
    return LLParserLimits(verbose_errors=False)


def _lark_of(gbnf: str) -> str:
    try:
        return gbnf_to_lark(gbnf)
    except RecursionError:
        raise ConstraintError("its brackets are nested too deep") from None
    except Exception as error:  # noqa: BLE001 - llguidance's parser raises many kinds
        raise ConstraintError(_readable(str(error))) from None


def _lark_of_choices(texts: list[str]) -> str:
    """One terminal: alternatives of a rule would each be followed by themselves."""
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def _readable(message: str) -> str:
    """In one line, without what llguidance adds for its authors."""
    return " ".join(message.replace("<non-verbose/>", "").split())[:500]
