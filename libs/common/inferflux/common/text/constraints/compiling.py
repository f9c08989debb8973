"""Compiling of a constraint to llguidance's matcher, which says which tokens may come next.

Its work is bounded by counts, not by a clock: what compiles in one process compiles in another.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from inferflux.common.llama.native import llama
from inferflux.common.llama.vocab import Vocab
from inferflux.common.text.answers.families import syntax_in
from inferflux.v1 import generation_pb2

from .answers.answer import lark_of as answer_lark
from .answers.lark import ControlToken, SpellingError
from .checking import ConstraintError, check_of, is_checked, readable
from .schema import NOTHING_MATCHES

# Whitespace is a blank, or a new line and its indentation: a model cannot go on with it for ever.
_JSON_OPTIONS: Any = {
    "whitespace_pattern": r"(\x20|\n[\x20\t]{0,40})",
    "coerce_one_of": False,
    "lenient": False,
    # Any character of a text may be escaped; a text under a pattern has its own characters.
    "json_allow_general_unicode_escapes": True,
}


_UNSATISFIABLE = "Unsatisfiable schema: "
# Of a parser's state. Of an object's optional properties each has four, and 64 KiB hold some 3,000 of them.
_MOST_ITEMS = 20_000
# Functions that are compiled one by one to find the one at fault.
_MOST_TRIED = 64
# What llguidance takes for a token that stands for no text.
_SPECIAL = b"\xff"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A constraint that can be used.

    Attributes:
        matcher: at the beginning of an answer. Answers work on copies of it.
        constraint: what it was compiled from.
    """

    matcher: LLMatcher
    constraint: generation_pb2.StructuredConstraint

    @property
    def is_checked(self) -> bool:
        """True if an answer needs a check beyond the matcher."""
        return is_checked(self.constraint)

    def why_wrong(self, answer: str) -> str:
        """Why a complete answer is not what was asked for; "" if it is. May take for ever: see `checking`.

        Raises:
            ConstraintError: a schema that cannot be checked.
        """
        return check_of(self.constraint)(answer)


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
                self._tokenizer = _tokenizer_of(self._vocab)
            return self._tokenizer

    def compile(self, constraint: generation_pb2.StructuredConstraint) -> Compiled:
        """Releases the GIL for most of its work.

        Raises:
            ConstraintError: it does not parse, is too large, or no answer satisfies it.
        """
        tokenizer = self.read_vocabulary()
        grammar = grammar_of(constraint, self._vocab.control_token, self._vocab.eog)
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_limits())
        if prefix := _prefix_of(constraint):
            matcher.consume_tokens(
                self._vocab.tokenize(prefix.encode(), add_special=False, parse_special=True)
            )
        if warnings := matcher.get_grammar_warnings():
            raise ConstraintError(readable(warnings[0]))
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error():
            raise ConstraintError(_culprit(constraint, tokenizer) or why_failed(matcher))
        if not any(mask):
            raise ConstraintError(NOTHING_MATCHES)
        return Compiled(matcher, constraint)


def _tokenizer_of(vocab: Vocab) -> LLTokenizer:
    """Every token as the text it adds to an answer: control tokens add none, whatever their name looks like.

    It keeps a pointer into `vocab`, which must live longer. Takes about a second for 128,000 tokens.

    Raises:
        ConstraintError: no token ends a generation, or llguidance cannot read the vocabulary.
    """
    ends = sorted(vocab.eog, key=lambda token: (token != vocab.eos, token))
    if not ends:
        raise ConstraintError("the vocabulary has no token that ends an answer")
    make: Any = LLTokenizer.from_llamacpp  # type: ignore[attr-defined]
    texts = [vocab.piece(token) or _SPECIAL + vocab.text(token).encode() for token in range(vocab.size)]
    try:
        tokenizer: LLTokenizer = make(
            tokens=texts,
            vocab_ptr=vocab.pointer,
            tokenize_fptr=ctypes.cast(llama._lib.llama_tokenize, ctypes.c_void_p).value,  # noqa: SLF001
            eos_token=ends,
            slices=None,
        )
    except ValueError as error:
        raise ConstraintError(str(error)) from None
    return tokenizer


def grammar_of(
    constraint: generation_pb2.StructuredConstraint,
    control: ControlToken = lambda _text: None,
    ends: AbstractSet[int] = frozenset(),
) -> str:
    """The constraint as llguidance reads it.

    Args:
        control: which markers of an answer are control tokens.
        ends: control tokens that end a generation.

    Raises:
        ConstraintError: it does not parse.
    """
    if constraint.HasField("tool_calls"):
        calls = constraint.tool_calls
        syntax = syntax_in(calls.syntax, calls.reasoning)
        content = calls.content if calls.HasField("content") else None
        return _answer(syntax, calls.reasoning, calls, content, control, ends)
    if constraint.HasField("syntax"):
        return _answer(constraint.syntax, constraint.reasoning, None, constraint, control, ends)
    return _plain(constraint)


def _answer(
    syntax: generation_pb2.AnswerSyntax,
    reasoning: generation_pb2.ReasoningFormat.ValueType,
    calls: generation_pb2.ToolCallsConstraint | None,
    content: generation_pb2.StructuredConstraint | None,
    control: ControlToken,
    ends: AbstractSet[int],
) -> str:
    """An answer with thoughts and calls; its content is a grammar of its own."""
    try:
        lark = answer_lark(
            syntax,
            reasoning=reasoning,
            calls=calls,
            content="" if content is None else "@content",
            json_options=_JSON_OPTIONS,
            control=control,
            ends=ends,
        )
    except SpellingError as error:
        raise ConstraintError(str(error)) from None
    if content is None:
        return LLMatcher.grammar_from_lark(lark)
    plain = _plain(content)
    held = json.loads(plain)["grammars"][0] if plain.startswith('{"grammars"') else {"lark_grammar": plain}
    grammars: list[Any] = [{"lark_grammar": lark}, {**held, "name": "content"}]
    return json.dumps({"grammars": grammars})


def _prefix_of(constraint: generation_pb2.StructuredConstraint) -> str:
    """Return the grammar's prefix. A grammar of messages begins behind the first one's header."""
    of = constraint.tool_calls if constraint.HasField("tool_calls") else constraint
    return "" if of.syntax.HasField("channels") else of.prefix


def _plain(constraint: generation_pb2.StructuredConstraint) -> str:
    """A constraint of a whole answer."""
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
        raise ConstraintError(readable(str(error))) from None


def why_failed(matcher: LLMatcher) -> str:
    """Why a matcher is in error."""
    error = matcher.get_error()
    if "NoExtension" in error:
        return NOTHING_MATCHES
    if _UNSATISFIABLE in error:
        return f"{NOTHING_MATCHES}: {readable(error.replace(_UNSATISFIABLE, ''))}"
    return readable(error)


def _culprit(constraint: generation_pb2.StructuredConstraint, tokenizer: LLTokenizer) -> str:
    """Name the function whose parameters do not compile, and say why; "" if none is found."""
    for function in constraint.tool_calls.functions[:_MOST_TRIED]:
        grammar = LLMatcher.grammar_from_json_schema(function.parameters, overrides=_JSON_OPTIONS)
        alone = LLMatcher(tokenizer, grammar, log_level=0, limits=_limits())
        if alone.is_error():
            return f"{function.name}: {why_failed(alone)}"
    return ""


def _limits() -> LLParserLimits:
    return LLParserLimits(verbose_errors=False, max_items_in_row=_MOST_ITEMS)


def _lark_of(gbnf: str) -> str:
    try:
        return gbnf_to_lark(gbnf)
    except RecursionError:
        raise ConstraintError("its brackets are nested too deep") from None
    except Exception as error:  # noqa: BLE001 - llguidance's parser raises many kinds
        raise ConstraintError(readable(str(error))) from None


def _lark_of_choices(texts: list[str]) -> str:
    """One terminal: alternatives of a rule would each be followed by themselves."""
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
