"""Tool calls as a grammar: llguidance's Lark, with a JSON schema for each function's arguments (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from inferflux.common.answers.syntax import END_THINK, SYNTAXES, THINK, CallSyntax
from inferflux.v1 import generation_pb2

# The id of the control token that is spelled so; None where the marker is text.
ControlToken = Callable[[str], int | None]

_ANY = r"(.|\n)*"
_BLANKS = r"[ \n]{0,4}"
_SPECIAL = re.compile(r"[^A-Za-z0-9_ <>]")


def lark_of(
    calls: generation_pb2.ToolCallsConstraint, json_options: Mapping[str, Any], control: ControlToken
) -> str:
    """The grammar of an answer with calls.

    Args:
        calls: as `limits` takes them; schemas are normalised.
        json_options: llguidance's, for every schema.
    """
    return _Grammar(calls, json_options, control).text()


class _Grammar:
    def __init__(
        self,
        calls: generation_pb2.ToolCallsConstraint,
        json_options: Mapping[str, Any],
        control: ControlToken,
    ) -> None:
        self._calls = calls
        self._syntax = SYNTAXES[calls.format]
        self._options = json_options
        self._control = control
        # Reasoning may come before what the rules below say.
        self._may_think = calls.reasoning == generation_pb2.REASONING_FORMAT_OPTIONAL

    def text(self) -> str:
        rules = ["%llguidance {}", f"start: {self._start()}", *self._thinking(), *self._answer()]
        return "\n".join([*rules, *self._functions()]) + "\n"

    def _start(self) -> str:
        match self._calls.reasoning:
            case generation_pb2.REASONING_FORMAT_OPEN:
                return "think_end answer"
            case generation_pb2.REASONING_FORMAT_OPTIONAL:
                return f"({self._spelled(THINK)} think_end)? answer"
            case _:
                return "answer"

    def _thinking(self) -> list[str]:
        if not self._calls.reasoning:
            return []
        return [self._until("think_end", END_THINK), f"BLANKS: /{_BLANKS}/"]

    def _answer(self) -> list[str]:
        syntax = self._syntax
        # Mistral's vocabularies have tokens that begin with the blank.
        blank = '" "? ' if syntax.lead.startswith("[") else ""
        calls = f"{blank}{self._spelled(syntax.lead)} calls {self._spelled(syntax.tail + syntax.closing)}"
        blanks = "BLANKS? " if self._calls.reasoning and syntax.opening else ""
        if self._calls.is_required:
            return [f"answer: {blanks}{self._spelled(syntax.opening)} {calls}"]
        if not syntax.opening:
            return self._text_or_call(syntax, calls)
        if self._control(syntax.opening) is not None:
            return [f"answer: TEXT? | TEXT? {self._spelled(syntax.opening)} {calls}", self._text()]
        without_opening = f"~/{_ANY}{_pattern(syntax.opening)}{_ANY}/"
        return [
            f"answer: TEXT | head {calls}",
            self._text(without_opening),
            "head[lazy]: HEAD",
            f"HEAD: /{_ANY}{_pattern(syntax.opening)}/{self._not_thinking()}",
        ]

    def _text_or_call(self, syntax: CallSyntax, calls: str) -> list[str]:
        """A call is the whole answer. After reasoning its first terminal begins with blanks, as text does:
        which of both it is shows later."""
        opening = syntax.optional_opening
        is_control = self._control(opening) is not None
        excluded = [rf'~/\s*\{{\s*"name"{_ANY}/']
        if not is_control:
            excluded.append(rf"~/\s*{_pattern(opening)}{_ANY}/")
        return [f"answer: TEXT | ({self._spelled(opening)})? {calls}", self._text(*excluded)]

    def _text(self, *conditions: str) -> str:
        return f"TEXT: /{_ANY}/" + "".join(f" & {one}" for one in conditions) + self._not_thinking()

    def _not_thinking(self) -> str:
        """Text that begins with a thought is a thought."""
        return rf" & ~/\s*{_pattern(THINK)}{_ANY}/" if self._may_think else ""

    def _functions(self) -> list[str]:
        names = [f"call_{i}" for i in range(len(self._calls.functions))]
        between = "" if self._calls.is_single else self._syntax.between
        more = f" ({self._spelled(between)} call)*" if between else ""
        return [
            f"calls: call{more}",
            f"call: {' | '.join(names)}",
            *(self._function(*pair) for pair in zip(names, self._calls.functions, strict=True)),
        ]

    def _function(self, rule: str, function: generation_pb2.FunctionSchema) -> str:
        schema = json.loads(function.parameters) | {"x-guidance": dict(self._options)}
        head = f'{{"name": "{function.name}", "{self._syntax.key}": '
        terminal = json.dumps(head)
        if self._calls.reasoning and not self._syntax.opening:
            terminal = f"/{_BLANKS}{_pattern(head)}/"
        return f"{rule}: {terminal} %json {json.dumps(schema, ensure_ascii=False)} " + json.dumps("}")

    def _until(self, rule: str, marker: str) -> str:
        """A rule for all text up to a marker."""
        if self._control(marker) is not None:
            return f"{rule}: ANY? {self._spelled(marker)}\nANY: /{_ANY}/"
        return f"{rule}[lazy]: /{_ANY}{_pattern(marker)}/"

    def _spelled(self, text: str) -> str:
        """A text with markers, as terminals; "" for no text."""
        found = ((marker, self._control(marker)) for marker in self._syntax.markers)
        tokens = {marker: token for marker, token in found if token is not None}
        if not tokens:
            return json.dumps(text) if text else ""
        parts = re.split("(" + "|".join(map(re.escape, tokens)) + ")", text)
        return " ".join(f"<[{tokens[p]}]>" if p in tokens else json.dumps(p) for p in parts if p)


def _pattern(text: str) -> str:
    """A regular expression of exactly this text."""
    return _SPECIAL.sub(lambda found: "\\" + found[0], text)
