"""What of an answer is content, what reasoning, and what calls of tools, told while the text comes (pure).

However a text is cut into parts, what was told after each of them is the same. Blanks beside calls and around
reasoning belong to neither. The work grows with the length of the text, whatever the text is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

from inferflux.v1 import generation_pb2

from .json_scanner import ObjectScanner
from .syntax import END_THINK, SYNTAXES, THINK, CallSyntax
from .tape import Tape

# What a call has before its arguments: parts, each with its spellings. Those of the name the parser knows.
_HEAD = (("{",), ('"name"',), (":",), (), (",",), ('"arguments"', '"parameters"'), (":",))
_NAME_PART, _N_HEAD = 3, len(_HEAD)


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallName:
    """A call begins."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A part of the arguments, which are JSON text."""

    index: int
    text: str


Piece: TypeAlias = Content | Reasoning | CallName | CallArguments


class AnswerParser:
    """Reads one answer.

    Args:
        syntax: how its calls are spelled; None: it has none.
        names: what may be called. Anything else is content.
        reasoning: what of it may be reasoning.
        is_exact: whether a constraint holds calls to their syntax. Their parts are told at once then. Without
            one a call is told when it is complete, since a broken one is content.

    Attributes:
        n_calls: calls that have begun.
        has_reasoned: whether reasoning has begun.
    """

    def __init__(
        self,
        *,
        syntax: CallSyntax | None = None,
        names: AbstractSet[str] = frozenset(),
        reasoning: generation_pb2.ReasoningFormat.ValueType = generation_pb2.REASONING_FORMAT_UNSPECIFIED,
        is_exact: bool = False,
    ) -> None:
        self._syntax = syntax
        self._names = names
        self._names_as_spelled = tuple(f'"{name}"' for name in names)
        self._reasoning = reasoning
        self._is_exact = is_exact
        self._state: Callable[[], bool] = self._begin
        self._pieces: list[Piece] = []
        self._is_final = False
        # What is not read yet. It is marked where reading goes back to if what seemed to be a call is none.
        self._tape = Tape()
        self._tape.mark()
        # What was read right before the mark, and is content if there is no call after it.
        self._lead = ""
        # Blanks that are dropped if a call, or the end of reasoning, follows.
        self._blanks: list[str] = []
        self._drops_blanks = False
        # Of the call that is read: how many parts of its head were, and its object.
        self._n_head = 0
        self._name = ""
        self._object: list[str] = []
        self._scanner = ObjectScanner()
        self.n_calls = 0
        self.has_reasoned = False

    @property
    def is_cut(self) -> bool:
        """Whether the arguments of the last call are not complete."""
        return self._state == self._read_arguments

    @property
    def may_reason(self) -> bool:
        """Whether what comes next may be reasoning. `has_reasoned` says whether it has begun."""
        return self._state in (self._begin, self._think)

    def push(self, text: str) -> list[Piece]:
        """What is certain with this part of the text."""
        self._tape.feed(text)
        return self._read()

    def finish(self) -> list[Piece]:
        """The rest, when nothing follows."""
        self._is_final = True
        pieces = self._read()
        if self._blanks and not self._drops_blanks and self._state != self._think:
            pieces.append(Content("".join(self._blanks)))
            self._blanks = []
        return pieces

    def _read(self) -> list[Piece]:
        self._pieces = []
        while self._state():
            pass
        return self._pieces

    # Each state reads from the tape. It returns False where it needs more text. It decides as soon as it can:
    # what is told after a text must not depend on its parts.

    def _begin(self) -> bool:
        if self._reasoning == generation_pb2.REASONING_FORMAT_OPEN:
            return self._begin_to_think()
        if self._reasoning == generation_pb2.REASONING_FORMAT_OPTIONAL:
            self._tape.skip_blanks()
            if self._awaits(THINK):
                return False
            if self._has_taken(THINK):
                return self._begin_to_think()
            self._tape.rewind()
        return self._begin_answer()

    def _begin_to_think(self) -> bool:
        self._tape.unmark()
        self.has_reasoned = True
        return self._go_on(self._think, drops_blanks=True)

    def _think(self) -> bool:
        text, has_ended = self._tape.take_until(END_THINK, is_final=self._is_final)
        self._say(text, Reasoning)
        if not has_ended:
            return False
        self._blanks = []
        self._drops_blanks = True
        return self._begin_answer()

    def _begin_answer(self) -> bool:
        """Content begins, or a call that is the whole answer."""
        if self._syntax is None or self._syntax.opening:
            self._tape.unmark()
            return self._go_on(self._read_content)
        self._tape.mark()
        self._lead = ""
        return self._go_on(self._open)

    def _open(self) -> bool:
        """What may come before a call that is the whole answer."""
        self._tape.skip_blanks()
        opening = self._syntax.optional_opening if self._syntax else ""
        if self._awaits(opening):
            return False
        self._has_taken(opening)
        return self._go_on(self._begin_object)

    def _read_content(self) -> bool:
        syntax = self._syntax
        if syntax is None or not syntax.opening:
            self._say(self._tape.take_all(), Content)
            return False
        text, is_opened = self._tape.take_until(syntax.opening, is_final=self._is_final)
        self._say(text, Content)
        return is_opened and self._may_call(self._read_lead, after=syntax.opening)

    def _read_lead(self) -> bool:
        """What is between the opening and the first call."""
        lead = self._syntax.lead.strip() if self._syntax else ""
        self._tape.skip_blanks()
        if self._awaits(lead):
            return False
        return self._go_on(self._begin_object) if self._has_taken(lead) else self._give_up()

    def _begin_object(self) -> bool:
        self._tape.skip_blanks()
        if not self._tape and not self._is_final:
            return False
        if self._tape.next != "{":
            return self._give_up()
        self._n_head, self._object = 0, []
        self._scanner = ObjectScanner(is_strict=not self._is_exact)
        return self._go_on(self._read_head if self._is_exact else self._collect)

    def _collect(self) -> bool:
        """A whole call, which may be broken."""
        self._object.append(self._tape.take_object(self._scanner))
        if not self._scanner.is_done:
            return self._give_up() if self._is_final or self._scanner.is_broken else False
        call = _call_of("".join(self._object), self._names)
        if call is None:
            return self._give_up()
        name, arguments = call
        self._begin_call(name)
        self._pieces.append(CallArguments(self.n_calls - 1, arguments))
        return self._go_on(self._end_call)

    def _read_head(self) -> bool:
        """What comes before the arguments, part by part."""
        self._tape.skip_blanks()
        if self._n_head == _N_HEAD:
            return self._begin_arguments()
        parts = self._names_as_spelled if self._n_head == _NAME_PART else _HEAD[self._n_head]
        found = next((part for part in parts if self._has_taken(part)), None)
        if found is None:
            return False if any(map(self._awaits, parts)) else self._give_up()
        if self._n_head == _NAME_PART:
            self._name = found.strip('"')
        self._n_head += 1
        return True

    def _begin_arguments(self) -> bool:
        if not self._tape and not self._is_final:
            return False
        if self._tape.next != "{":
            return self._give_up()
        self._begin_call(self._name)
        return self._go_on(self._read_arguments)

    def _read_arguments(self) -> bool:
        text = self._tape.take_object(self._scanner)
        if text:
            self._pieces.append(CallArguments(self.n_calls - 1, text))
        return self._go_on(self._end_object) if self._scanner.is_done else False

    def _end_object(self) -> bool:
        self._tape.skip_blanks()
        if self._awaits("}"):
            return False
        self._has_taken("}")
        return self._go_on(self._end_call)

    def _end_call(self) -> bool:
        """Another call follows, or the closing, or content."""
        syntax = self._syntax
        self._tape.skip_blanks()
        if syntax is None or (not self._tape and not self._is_final):
            return False
        if syntax.separator and self._has_taken(syntax.separator):
            return self._may_call(self._begin_object, after=syntax.separator)
        if self._awaits(syntax.closing):
            return False
        if not self._has_taken(syntax.closing) and self._tape.may_become(syntax.closing):
            self._tape.take_all()  # cut
        return self._go_on(self._read_content)

    def _may_call(self, state: Callable[[], bool], *, after: str) -> bool:
        """A call may follow what was read; without one that is content."""
        self._tape.mark()
        self._lead = after
        return self._go_on(state)

    def _give_up(self) -> bool:
        """It is no call: what it began with is content, and the rest is read again."""
        self._tape.rewind()
        self._say(self._lead, Content)
        return self._go_on(self._read_content)

    def _begin_call(self, name: str) -> None:
        self._tape.unmark()
        self._pieces.append(CallName(self.n_calls, name))
        self.n_calls += 1
        self._blanks = []
        self._drops_blanks = True

    def _go_on(self, state: Callable[[], bool], *, drops_blanks: bool = False) -> bool:
        self._state = state
        self._drops_blanks |= drops_blanks
        return True

    def _awaits(self, marker: str) -> bool:
        """Whether what is left may be the beginning of `marker`, and more is to come."""
        return not self._is_final and self._tape.may_become(marker)

    def _has_taken(self, marker: str) -> bool:
        """Whether `marker` comes next; it is read then."""
        is_next = self._tape.starts_with(marker)
        if is_next:
            self._tape.skip(len(marker))
        return is_next

    def _say(self, text: str, kind: type[Content | Reasoning]) -> None:
        """Tell a text, but for blanks at its end, which wait for what follows."""
        if self._drops_blanks:
            text = text.lstrip()
            if not text:
                return
            self._drops_blanks = False
        told = text if self._syntax is None and kind is Content else text.rstrip()
        if told:
            self._pieces.append(kind("".join([*self._blanks, told])))
            self._blanks = []
        if len(told) < len(text):
            self._blanks.append(text[len(told) :])


def calls_in(
    answer: str,
    form: generation_pb2.ToolCallFormat.ValueType,
    *,
    names: AbstractSet[str],
    reasoning: generation_pb2.ReasoningFormat.ValueType,
) -> list[tuple[str, str]]:
    """Names and arguments of the complete calls of a whole answer that was held to its syntax."""
    parser = AnswerParser(syntax=SYNTAXES[form], names=names, reasoning=reasoning, is_exact=True)
    calls: list[tuple[str, str]] = []
    for piece in parser.push(answer) + parser.finish():
        if isinstance(piece, CallName):
            calls.append((piece.name, ""))
        elif isinstance(piece, CallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    return calls[:-1] if parser.is_cut else calls


def _call_of(text: str, names: AbstractSet[str]) -> tuple[str, str] | None:
    """Name and arguments of a call as a model may spell it; None if it is none."""
    try:
        call = json.loads(text)
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        spelled = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError, AttributeError):
        return None
    name = call.get("name")
    is_call = isinstance(name, str) and name in names and isinstance(arguments, dict)
    return (name, spelled) if is_call else None
