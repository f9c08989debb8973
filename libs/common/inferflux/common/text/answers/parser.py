"""Incremental parser of an answer: content, reasoning and tool calls, told while the text comes (pure).

However a text is cut into parts, what was told after each of them is the same. Blanks beside calls and around
reasoning belong to neither. The work grows with the length of the text, whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from inferflux.v1 import generation_pb2

from .call_reader import CallReader
from .pieces import CallArguments, CallName, Content, Piece, Reasoning
from .tape import Markers, Steps, Tape

OPTIONAL, OPEN = generation_pb2.REASONING_FORMAT_OPTIONAL, generation_pb2.REASONING_FORMAT_OPEN
# How much may be read again because it was no call, as a multiple of what was read. Then all is content.
_MOST_REREAD: Final = 4
_ENOUGH_REREAD: Final = 4096
_LONGEST_HEADER: Final = 512
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class AnswerParser:
    """Reads one answer.

    Args:
        syntax: how it is written; None: all is content.
        names: what may be called, with the JSON types of the parameters where they are known. Any other
            call is content.
        reasoning: what of it may be reasoning.
        is_exact: whether a constraint holds calls to their syntax. Their parts are told at once then. Without
            one a call is told when it is complete, since a broken one is content.
        prefix: the end of the prompt, where the answer's spelling begins there.

    Attributes:
        n_calls: calls that have begun.
        has_reasoned: whether reasoning has begun.
    """

    def __init__(
        self,
        *,
        syntax: generation_pb2.AnswerSyntax | None = None,
        names: Mapping[str, Mapping[str, str]] | AbstractSet[str] = frozenset(),
        reasoning: generation_pb2.ReasoningFormat.ValueType = generation_pb2.REASONING_FORMAT_UNSPECIFIED,
        is_exact: bool = False,
        prefix: str = "",
    ) -> None:
        self._syntax = syntax or generation_pb2.AnswerSyntax()
        self._reasoning = reasoning
        self._is_exact = is_exact
        self._tape = Tape()
        self._pieces: list[Piece] = []
        self._calls: CallReader | None = None
        self._types = names if isinstance(names, Mapping) else {name: {} for name in names}
        if names and (self._syntax.HasField("calls") or self._syntax.channels.recipient):
            self._calls = CallReader(
                self._syntax.calls, self._tape, self, types=self._types, is_exact=is_exact
            )
        # Texts that are read in content besides calls: what they are part of is no content.
        self._dropped = {
            text.strip()
            for text in (self._syntax.content_begin, self._syntax.content_end, *self._syntax.noise)
        } - {""}
        # Around thoughts, where they are control tokens: a model may think again within its content.
        thought = self._syntax.thought
        is_control = thought.begin.startswith("<|") and not self._syntax.channels.begins
        self._thinks_again = [thought.begin.strip(), thought.end.strip()] if is_control else []
        # Blanks at the end of what has been told: dropped if a call or the end of reasoning follows.
        self._blanks = ""
        # Nothing has been told since reasoning or calls, and the last that was told is a call.
        self._drops_blanks = False
        self._is_after_call = False
        self._kind: type[Content | Reasoning] | None = None
        self._has_content = False
        self._n_reread = 0
        self._is_dropping = is_exact
        self._thinks = False
        self._may_think = self._syntax.HasField("thought")
        self.n_calls = 0
        self.has_reasoned = False
        self._prefix = prefix
        self._steps = self._answer()
        if prefix:
            self.push(prefix)
            self._pieces = []

    @property
    def is_cut(self) -> bool:
        """True if the arguments of the last call are not complete."""
        return self._calls is not None and self._calls.is_within

    @property
    def may_reason(self) -> bool:
        """True if what comes next may be reasoning. `has_reasoned` says whether it has begun."""
        return self._thinks or self._may_think

    @property
    def is_thinking(self) -> bool:
        """Return whether what comes next is reasoning, or ends it."""
        return self._thinks or (self._may_think and self._reasoning == OPEN)

    def push(self, text: str) -> list[Piece]:
        """Feed a part of the text and return the pieces that are certain with it."""
        self._tape.feed(text)
        return self._read()

    def finish(self, *, is_cut: bool = False) -> list[Piece]:
        """The rest, when nothing follows.

        Args:
            is_cut: the answer has ended by its length. A call that is not complete is dropped then.
        """
        self._tape.is_final = True
        self._tape.is_cut = is_cut
        self._is_dropping = is_cut or self._is_exact
        pieces = self._read()
        if (
            self._blanks
            and not self._drops_blanks
            and not self._is_after_call
            and self._kind is not Reasoning
        ):
            pieces.append(Content(self._blanks))
            self._blanks = ""
        return pieces

    def _read(self) -> list[Piece]:
        self._pieces = []
        next(self._steps, None)
        return self._pieces

    # What follows are generators. Each yields where it needs more text. It decides as soon as it can: what is
    # told after a text must not depend on its parts.

    def _answer(self) -> Steps[None]:
        if self._syntax.channels.begins:
            yield from self._messages()
            return
        yield from self._maybe_think()
        self._may_think = False
        if self._calls is not None and self._syntax.calls.is_whole_answer:
            yield from self._maybe_call("")
        yield from self._text(Content, ())

    def _maybe_think(self) -> Steps[None]:
        """Thoughts, where the answer may begin with them."""
        thought = self._syntax.thought
        begin, end = thought.begin.strip(), thought.end.strip()
        if not end:
            return
        is_open = self._reasoning == OPEN
        self._tape.mark()
        yield from self._tape.blanks()
        found = yield from self._tape.taking_one([one for one in (begin, "" if is_open else end) if one])
        if found == end and not is_open:
            self._tape.unmark()
            self._drops_blanks = True
            return
        if not found:
            self._tape.rewind()
        self._tape.unmark()
        if found or is_open:
            stop = yield from self._think([one for one in (end, self._syntax.content_begin.strip()) if one])
            if not stop:
                yield from self._tape.blanks()
                yield from self._tape.taking(end)
            self._tape.skip(len(stop))

    def _think(self, stops: Collection[str]) -> Steps[str]:
        self._thinks = True
        self._may_think = self._syntax.HasField("channels")
        if self.has_reasoned:
            self._blanks = "\n\n" if self._kind is Reasoning else self._blanks
        else:
            self._drops_blanks = True
        self.has_reasoned = True
        stop = yield from self._text(Reasoning, stops)
        self._thinks = False
        self._drops_blanks = not self._has_content
        return stop

    def _text(self, kind: type[Content | Reasoning], stops: Collection[str]) -> Steps[str]:
        """Text up to one of the stops, which is not read, or to the end. Content may have calls."""
        is_content = kind is Content
        openings = self._calls.openings if self._calls is not None else []
        dropped = self._dropped if is_content else ()
        thoughts = self._thinks_again if is_content else []
        markers = Markers([*stops, *openings, *dropped, *thoughts])
        while True:
            text, marker = self._tape.take_before(markers)
            if text:
                self._say(text, kind)
            if marker is None:
                if self._tape.is_final:
                    return ""
                yield
            elif marker in stops:
                return marker
            elif marker in thoughts:
                self._tape.skip(len(marker))
                if marker == thoughts[0]:
                    self._tape.skip(len((yield from self._think(thoughts[1:]))))
            elif marker in openings:
                if (yield from self._opened(marker, kind, stops)):
                    return ""
            else:
                self._tape.skip(len(marker))
                if marker not in dropped:
                    self._say(marker, kind)
                elif not self._has_content:
                    self._drops_blanks = True

    def _opened(self, marker: str, kind: type[Content | Reasoning], stops: Collection[str]) -> Steps[bool]:
        """Calls that may begin here. Returns whether the thought in which they are is none."""
        is_thought = kind is Reasoning
        # A thought that the prompt has opened, and that begins with a call, is none.
        if is_thought and not (self._reasoning == OPEN and self._drops_blanks):
            yield from self._maybe_last(stops)
            return False
        n_before = self.n_calls
        if self._has_reread_enough:
            self._say(self._tape.take(len(marker)), kind)
        else:
            yield from self._maybe_call(marker, kind)
        return is_thought and self.n_calls > n_before

    @property
    def _has_reread_enough(self) -> bool:
        return self._n_reread > _MOST_REREAD * self._tape.position + _ENOUGH_REREAD

    def _maybe_call(self, opening: str, kind: type[Content | Reasoning] = Content) -> Steps[None]:
        """Calls, or the text that seemed to be some. The tape is where they begin."""
        tape, calls = self._tape, self._calls
        if calls is None:
            return
        tape.mark()
        tape.has_run_out = False
        n_before = self.n_calls
        has_read = yield from calls.run()
        if calls.is_within:  # cut, or no call of this syntax, though a constraint should have seen to it
            tape.unmark()
            if tape.is_final:
                tape.take_all()
            else:
                calls.is_within = False
            return
        if not has_read:
            has_run_out = calls.has_run_out or tape.has_run_out or not tape
            if tape.is_final and has_run_out and self._is_begun(opening, n_before):
                tape.take_all()
                tape.unmark()
                return
            end = tape.position
            tape.rewind()
            self._n_reread += end - tape.position
            if opening and (yield from calls.is_empty_run()):
                tape.unmark()
                return
            tape.rewind()
            opening = opening if tape.starts_with(opening) else ""
            self._say(tape.take(len(opening)), kind)
        tape.unmark()

    def _maybe_last(self, stops: Collection[str]) -> Steps[None]:
        """Calls within a thought: they are some if the answer ends with them, the thought being open."""
        tape, ends = self._tape, Markers(stops)
        calls_alone = generation_pb2.AnswerSyntax(calls=self._syntax.calls)
        inner = AnswerParser(syntax=calls_alone, names=self._types)
        parts, pieces = list[str](), list[Piece]()
        while True:
            text, stop = tape.take_before(ends)
            for i, character in enumerate(text):
                pieces += inner.push(character)
                if pieces and isinstance(pieces[-1], Content):
                    tape.skip(i + 1 - len(text))
                    parts.append(text[: i + 1])
                    self._say("".join(parts), Reasoning)
                    return
            parts.append(text)
            if stop or tape.is_final:
                break
            yield
        pieces += [] if stop else inner.finish(is_cut=self._is_dropping)
        if not pieces or any(isinstance(piece, Content) for piece in pieces):
            self._say("".join(parts), Reasoning)
            return
        for piece in pieces:
            if isinstance(piece, CallName):
                self.begin_call(piece.name, piece.id)
            elif isinstance(piece, CallArguments):
                self.add_arguments(piece.text)

    def _is_begun(self, opening: str, n_before: int) -> bool:
        """Return whether an incomplete text is surely a call, which is dropped; so is a marker alone."""
        calls = self._calls
        if calls is None:
            return False
        is_begun = bool(opening) or self.n_calls > n_before or calls.has_name
        return is_begun and (self._is_dropping or calls.has_run_out)

    def begin_call(self, name: str, call_id: str) -> None:
        """Told by the reader of calls."""
        self._tape.unmark()
        self._pieces.append(CallName(self.n_calls, name, call_id.replace("$index", str(self.n_calls))))
        self.n_calls += 1
        self._is_after_call = True
        if not self._has_content:
            self._blanks = ""
            self._drops_blanks = True

    def add_arguments(self, text: str) -> None:
        """Told by the reader of calls."""
        self._pieces.append(CallArguments(self.n_calls - 1, text))

    def _say(self, text: str, kind: type[Content | Reasoning]) -> None:
        """Tell a text, but for blanks at its end, which wait for what follows."""
        if kind is not self._kind:
            self._blanks = ""
            self._kind = kind
        if self._drops_blanks:
            text = text.lstrip()
            if not text:
                return
            self._drops_blanks = False
        is_plain = kind is Content and self._calls is None and not self._dropped
        told = text if is_plain else text.rstrip()
        if told:
            self._pieces.append(kind(self._blanks + told))
            self._blanks = ""
            if kind is Content:
                self._may_think = False
                self._has_content, self._is_after_call = True, False
        self._blanks += text[len(told) :]

    def _messages(self) -> Steps[None]:
        """An answer of messages with headers."""
        channels, syntax = self._syntax.channels, self._syntax
        headers = [one for one in (syntax.thought.begin, syntax.content_begin) if one]
        # An answer may speak of what ends a call.
        own = [one for one in channels.ends if not syntax.calls.call.endswith(one)]
        ends = [*own, channels.begins[0], *headers]
        outside = Markers([*channels.begins, channels.header_end, *channels.ends])
        while True:
            text, marker = self._tape.take_before(outside)
            if text:
                self._say(text, Content)
            if marker is None:
                if self._tape.is_final:
                    return
                yield
                continue
            if marker in channels.ends:
                self._tape.skip(len(marker))
                continue
            header = yield from self._header()
            if header:
                yield from self._message(header, ends)

    def _header(self) -> Steps[str]:
        """A header; "" for one that is none: it is dropped."""
        channels = self._syntax.channels
        stops = Markers([channels.header_end, *channels.ends])
        parts: list[str] = []
        n = 0
        while True:
            text, stop = self._tape.take_before(stops)
            parts.append(text)
            n += len(text)
            if self._is_plain("".join(parts)):
                self._say("".join(parts).removeprefix(self._prefix), Content)
                return ""
            if stop == channels.header_end:
                self._tape.skip(len(stop))
                return "".join(parts) or " "
            if stop or n > _LONGEST_HEADER or self._tape.is_final:
                return ""
            yield

    def _is_plain(self, text: str) -> bool:
        """Return whether what follows the prompt's end is no header."""
        if not self._prefix or not text.startswith(self._prefix):
            return False
        rest = text.removeprefix(self._prefix).lstrip()
        return not ("<".startswith(rest[:1]) or "to=".startswith(rest[:3]))

    def _message(self, header: str, ends: Collection[str]) -> Steps[None]:
        channels = self._syntax.channels
        words = re.split(r"[\s<>|]+", header)
        recipient = _RECIPIENT.search(header)
        name = recipient[1] if recipient else ""
        if name and channels.recipient:
            calls = self._calls
            called = name.removeprefix(channels.recipient)
            if calls is not None and called in self._types:
                yield from self._addressed_call(calls, called, ends)
                return
            if name != "assistant":
                yield from self._tape.drop_before(Markers(ends))
                return
        if any(word in channels.thoughts for word in words):
            yield from self._think(ends)
        else:
            yield from self._text(Content, ends)

    def _addressed_call(self, calls: CallReader, name: str, ends: Collection[str]) -> Steps[None]:
        """A message that is a call's arguments. If it is none, it is content."""
        tape = self._tape
        tape.mark()
        if not (yield from calls.one(name)):
            if calls.is_within or (tape.is_final and self._is_dropping and not tape):
                calls.is_within &= tape.is_final
                yield from tape.drop_before(Markers(ends))
                return
            tape.rewind()
            tape.unmark()
            yield from self._text(Content, ends)
        tape.unmark()
