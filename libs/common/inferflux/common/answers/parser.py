"""What of an answer is content, what reasoning, and what calls of tools, told while the text comes (pure).

However a text is cut into parts, the pieces of a kind together are the same. Blanks beside calls and around
reasoning belong to neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

from inferflux.v1 import generation_pb2

from .json_scanner import ObjectScanner
from .syntax import END_THINK, SYNTAXES, THINK, CallSyntax

_HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_HEADER_BEGIN = '{"name":"'
_BLANKS = re.compile(r"\s+")


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
        self._reasoning = reasoning
        self._is_exact = is_exact
        self._state: Callable[[], bool] = self._begin
        self._pieces: list[Piece] = []
        # What is not read yet.
        self._buffer = ""
        self._is_final = False
        # Blanks that are dropped if a call, or the end of reasoning, follows.
        self._blanks = ""
        self._drops_blanks = False
        # What of a call was read before it is known to be one.
        self._spelled = ""
        self._collected = ""
        self._scanner = ObjectScanner()
        self.n_calls = 0

    @property
    def is_cut(self) -> bool:
        """Whether the arguments of the last call are not complete."""
        return self._state == self._read_arguments

    def push(self, text: str) -> list[Piece]:
        """What is certain with this part of the text."""
        self._buffer += text
        return self._read()

    def finish(self) -> list[Piece]:
        """The rest, when nothing follows."""
        self._is_final = True
        pieces = self._read()
        if self._blanks and not self._drops_blanks and self._state != self._think:
            pieces.append(Content(self._blanks))
            self._blanks = ""
        return pieces

    def _read(self) -> list[Piece]:
        self._pieces = []
        while self._state():
            pass
        return self._pieces

    # Each state reads from the buffer. It returns False where it needs more text.

    def _begin(self) -> bool:
        if self._reasoning == generation_pb2.REASONING_FORMAT_OPEN:
            return self._go_on(self._think, drops_blanks=True)
        if self._reasoning == generation_pb2.REASONING_FORMAT_OPTIONAL:
            text = self._buffer.lstrip()
            if self._may_become(text, THINK):
                return False
            if text.startswith(THINK):
                self._buffer = text.removeprefix(THINK)
                return self._go_on(self._think, drops_blanks=True)
        return self._go_on(self._open)

    def _think(self) -> bool:
        at = self._buffer.find(END_THINK)
        if at < 0:
            self._say(self._certain(END_THINK), Reasoning)
            return False
        self._say(self._buffer[:at], Reasoning)
        self._buffer = self._buffer[at + len(END_THINK) :]
        self._blanks = ""
        return self._go_on(self._open, drops_blanks=True)

    def _open(self) -> bool:
        """Content begins, or a call that is the whole answer."""
        syntax = self._syntax
        if syntax is None or syntax.opening:
            return self._go_on(self._read_content)
        text = self._buffer.lstrip()
        if self._may_become(text, syntax.optional_opening):
            return False
        text = text.removeprefix(syntax.optional_opening).lstrip()
        if not text and not self._is_final:
            return False
        if not text.startswith("{"):
            return self._go_on(self._read_content)
        self._spelled = self._buffer[: len(self._buffer) - len(text)]
        self._buffer = text
        return self._go_on(self._read_call)

    def _read_content(self) -> bool:
        syntax = self._syntax
        if syntax is None or not syntax.opening:
            self._say(self._buffer, Content)
            self._buffer = ""
            return False
        at = self._buffer.find(syntax.opening)
        if at < 0:
            self._say(self._certain(syntax.opening), Content)
            return False
        self._say(self._buffer[:at], Content)
        self._buffer = self._buffer[at + len(syntax.opening) :]
        self._spelled = syntax.opening
        return self._go_on(self._read_lead)

    def _read_lead(self) -> bool:
        """What is between the opening and the first call."""
        lead = self._syntax.lead.strip() if self._syntax else ""
        text = self._buffer.lstrip()
        if not text and not self._is_final:
            return False
        if not text.startswith(lead):
            return self._give_up()
        text = text.removeprefix(lead)
        self._spelled += self._buffer[: len(self._buffer) - len(text)]
        self._buffer = text
        return self._go_on(self._read_call)

    def _read_call(self) -> bool:
        if self._is_exact:
            return self._read_header()
        text = self._buffer.lstrip()
        if not text and not self._is_final:
            return False
        if not text.startswith("{"):
            return self._give_up()
        self._collected, self._scanner = "", ObjectScanner()
        self._spelled += self._buffer[: len(self._buffer) - len(text)]
        self._buffer = text
        return self._go_on(self._collect)

    def _collect(self) -> bool:
        """A whole call, which may be broken."""
        n = self._scanner.take(self._buffer)
        self._collected += self._buffer[:n]
        self._buffer = self._buffer[n:]
        if not self._scanner.is_done:
            return self._give_up() if self._is_final else False
        call = _call_of(self._collected, self._names)
        if call is None:
            return self._give_up()
        name, arguments = call
        self._begin_call(name)
        self._pieces.append(CallArguments(self.n_calls - 1, arguments))
        return self._go_on(self._end_call)

    def _read_header(self) -> bool:
        header = _HEADER.match(self._buffer)
        if header is None:
            begin = _BLANKS.sub("", self._buffer)[: len(_HEADER_BEGIN)]
            return self._give_up() if self._is_final or not _HEADER_BEGIN.startswith(begin) else False
        if header[1] not in self._names:
            return self._give_up()
        self._begin_call(header[1])
        self._buffer = self._buffer[header.end() :]
        self._scanner = ObjectScanner()
        return self._go_on(self._read_arguments)

    def _read_arguments(self) -> bool:
        n = self._scanner.take(self._buffer)
        if n:
            self._pieces.append(CallArguments(self.n_calls - 1, self._buffer[:n]))
        self._buffer = self._buffer[n:]
        return self._go_on(self._end_object) if self._scanner.is_done else False

    def _end_object(self) -> bool:
        text = self._buffer.lstrip()
        if not text and not self._is_final:
            return False
        self._buffer = text.removeprefix("}")
        return self._go_on(self._end_call)

    def _end_call(self) -> bool:
        """Another call follows, or the closing, or content."""
        syntax = self._syntax
        text = self._buffer.lstrip()
        if syntax is None or (not text and not self._is_final):
            return False
        if syntax.separator and text.startswith(syntax.separator):
            self._buffer = text.removeprefix(syntax.separator)
            self._spelled = syntax.separator
            return self._go_on(self._read_call)
        if self._may_become(text, syntax.closing):
            return False
        is_cut = self._is_final and syntax.closing.startswith(text)
        self._buffer = "" if is_cut else text.removeprefix(syntax.closing)
        return self._go_on(self._read_content)

    def _give_up(self) -> bool:
        """It is no call: what it began with is content, and the rest is read again."""
        self._say(self._spelled, Content)
        self._buffer = self._collected + self._buffer
        self._spelled = self._collected = ""
        return self._go_on(self._read_content)

    def _begin_call(self, name: str) -> None:
        self._pieces.append(CallName(self.n_calls, name))
        self.n_calls += 1
        self._blanks = self._spelled = self._collected = ""
        self._drops_blanks = True

    def _go_on(self, state: Callable[[], bool], *, drops_blanks: bool = False) -> bool:
        self._state = state
        self._drops_blanks |= drops_blanks
        return True

    def _may_become(self, text: str, marker: str) -> bool:
        """Whether `text` may be the beginning of `marker`, and more is to come."""
        return not self._is_final and len(text) < len(marker) and marker.startswith(text)

    def _certain(self, marker: str) -> str:
        """Take from the buffer what cannot belong to a marker that is not complete yet."""
        keep = 0 if self._is_final else _overlap(self._buffer, marker)
        cut = len(self._buffer) - keep
        text, self._buffer = self._buffer[:cut], self._buffer[cut:]
        return text

    def _say(self, text: str, kind: type[Content | Reasoning]) -> None:
        """Tell a text, but for blanks at its end, which wait for what follows."""
        if self._drops_blanks:
            text = text.lstrip()
            if not text:
                return
            self._drops_blanks = False
        text = self._blanks + text
        told = text if self._syntax is None and kind is Content else text.rstrip()
        self._blanks = text[len(told) :]
        if told:
            self._pieces.append(kind(told))


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


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` with which `marker` begins."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)


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
