"""Calls in an answer's text, told while it comes (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inferflux.common.contract.requests.answer_spelling import Part, spelling_of, ways_of
from inferflux.v1 import generation_pb2

from .arguments import arguments_of, call_of, dumped, unnested
from .parameters import LONGEST, ParameterReader
from .pieces import Tells
from .scanner import BracketScanner, GemmaScanner
from .tape import Markers, Steps, Tape

_TEXT, _GEMMA = generation_pb2.ARGUMENT_STYLE_TEXT, generation_pb2.ARGUMENT_STYLE_GEMMA
# Llama's models write either.
_EITHER = {'"parameters":': ['"parameters":', '"arguments":']}


@dataclass(slots=True)
class _Call:
    name: str = ""
    id: str = ""
    index: str = ""
    # Written as `<invoke name="f"/>`.
    is_closed: bool = False


class CallReader:
    """Reads calls from a tape.

    Args:
        types: for each function that may be called the JSON types of its parameters.
        is_exact: whether a constraint holds calls to their syntax: a call is told as soon as it begins.

    Attributes:
        openings: texts with which a call may begin.
        is_within: a call has been told whose arguments are not complete.
        has_run_out: the answer has ended within what comes before a call's name.
    """

    def __init__(
        self,
        calls: generation_pb2.CallSyntax,
        tape: Tape,
        tells: Tells,
        *,
        types: Mapping[str, Mapping[str, str]],
        is_exact: bool,
    ) -> None:
        self._calls = calls
        self._spelling = spelling = spelling_of(calls)
        self._tape = tape
        self._tells = tells
        self._types = types
        self._is_exact = is_exact
        # Names by their spellings: within an object a name is a JSON string.
        self._names = {name: name for name in types}
        if spelling.form is not None:
            self._names |= {json.dumps(name, ensure_ascii=False)[1:-1]: name for name in types}
        self._call = _Call()
        self._ways = ways_of(spelling, calls.style)
        first = [way[0].text for way in self._ways if way]
        self.openings = [text for text, way in zip(first, self._ways, strict=False) if way[0].is_distinct]
        if calls.is_whole_answer:
            self.openings = list(calls.optional_begins)
        elif not self.openings and len(spelling.begin) > 1:
            # Words alone may be text; before a fence, as "Action:\n```json", they are not.
            self.openings = [text for text in [calls.begin.rstrip("[{ \n")] if text.endswith("json")]
        self._tail = [part.text for part in (*spelling.tail, *spelling.end)]
        self._parameter_reader = ParameterReader(
            spelling, tape, tail=self._tail, openings=self.openings, is_exact=is_exact
        )
        self.is_within = False
        self.has_run_out = False
        # The calls of a run are in brackets that the family does not write.
        self._is_listed = False

    def is_empty_run(self) -> Steps[bool]:
        """Return whether a run begins and ends here without a call; it is read then."""
        begin, end = self._spelling.begin, self._spelling.end
        if not begin or not end or not begin[0].is_distinct or not end[-1].is_distinct:
            return False
        for part in (*begin, *end):
            yield from self._tape.blanks()
            if not (yield from self._tape.taking(part.text)):
                return False
        return True

    def run(self) -> Steps[bool]:
        """Calls from here on. The tape is marked. Returns whether there was one; what follows is not read."""
        tape = self._tape
        if not (yield from self._begins()):
            return False
        while True:
            if not (yield from self._one()):
                return False
            tape.mark()
            if not (yield from self._next()):
                return True

    @property
    def has_name(self) -> bool:
        """Return whether the call that is read has the name of a function."""
        return bool(self._call.name)

    def one(self, name: str) -> Steps[bool]:
        """The arguments of a call whose name has been read; whether there were any."""
        self._call = _Call(name)
        if self._is_exact:
            self._begin()
        return (yield from self._json())

    def _begins(self) -> Steps[bool]:
        """Read up to the first call's arguments, or its object."""
        tape = self._tape
        self._is_listed = False
        if self._calls.is_whole_answer:
            yield from tape.blanks()
            yield from tape.taking_one(self._calls.optional_begins)
        for way in self._ways:
            if (yield from self._matches(way)):
                return True
            self.has_run_out |= tape.is_final and not tape
            tape.rewind()
            if self._calls.is_whole_answer:
                yield from tape.blanks()
                yield from tape.taking_one(self._calls.optional_begins)
        return False

    def _matches(self, parts: Sequence[Part]) -> Steps[bool]:
        """Read these parts; blanks may be between them, and words that are no markers may be missing."""
        self._call = _Call()
        i = 0
        while i < len(parts):
            part, following = parts[i], parts[i + 1 : i + 2]
            i += 1
            if part.is_placeholder:
                if not (yield from self._takes(part.text, following)):
                    return False
                continue
            yield from self._tape.blanks()
            if (yield from self._tape.taking(part.text)):
                continue
            if following and following[0].text in ("id", "index", "number") and following[0].is_placeholder:
                i += 1
            elif part.text.endswith(">") and (yield from self._tape.taking(part.text[:-1] + "/>")):
                self._call.is_closed = True
            elif (
                i > 1
                and parts[i - 2].text == "name"
                and self._tape.next == "{"
                and not self._spelling.before_key
            ):
                continue  # what separates the name from the arguments is missing
            elif not part.is_optional and not (yield from self._is_noise_before(part)):
                return False
        return True

    def _takes(self, placeholder: str, following: Sequence[Part]) -> Steps[bool]:
        tape = self._tape
        if placeholder == "name":
            yield from tape.blanks()
            spelt = yield from tape.taking_one(self._names)
            self._call.name = self._names.get(spelt, "")
            return bool(spelt)
        end = following[0].text if following else "{"
        text = yield from tape.taking_until(end, LONGEST)
        if text is None:
            return False
        tape.skip(-len(end))
        if placeholder == "id":
            self._call.id = text.strip()
        else:
            self._call.index = text.strip()
        return True

    def _is_noise_before(self, part: Part) -> Steps[bool]:
        """Return whether a run has begun, and the marker of its first call follows some words."""
        spelling = self._spelling
        if not (spelling.begin and spelling.head and part is spelling.head[0] and part.is_distinct):
            return False
        return (yield from self._tape.taking_until(part.text, LONGEST)) is not None

    def _one(self) -> Steps[bool]:
        """A call's arguments, or its object."""
        if self._spelling.form is not None:
            return (yield from (self._exact_object() if self._is_exact else self._object()))
        if self._is_exact:
            self._begin()
        if self._call.is_closed:
            return self._end("{}")
        match self._calls.style:
            case generation_pb2.ARGUMENT_STYLE_JSON:
                return (yield from self._json())
            case generation_pb2.ARGUMENT_STYLE_PYTHON | generation_pb2.ARGUMENT_STYLE_GEMMA:
                return (yield from self._bracketed())
            case generation_pb2.ARGUMENT_STYLE_NESTED:
                return (yield from self._nested())
            case _:
                return (yield from self._parameters())

    def _begin(self) -> None:
        call_id = self._call.id
        if self._calls.id_form:
            call_id = self._calls.id_form.replace("$name", self._call.name)
            call_id = call_id.replace("$index", self._call.index or "$index")
        self._tells.begin_call(self._call.name, call_id)
        self.is_within = True

    def _end(self, arguments: str) -> bool:
        """Tell a call that is complete, or the rest of one that has been told."""
        if not self.is_within:
            self._begin()
        if arguments:
            self._tells.add_arguments(arguments)
        self.is_within = False
        return True

    def _object(self) -> Steps[bool]:
        """A call that is an object, or the first of a list where the family writes none."""
        if self._spelling.head or self._calls.is_whole_answer:
            yield from self._tape.blanks()
            self._is_listed |= yield from self._tape.taking("[")
        text = yield from self._collected(BracketScanner(is_strict=True), "{")
        form = self._spelling.form
        found = call_of(text, form, self._types) if text and form else None
        if found is None:
            return False
        self._call.name, self._call.id, arguments = found
        return self._end(arguments)

    def _exact_object(self) -> Steps[bool]:
        """The same, as the syntax has it. The rest of the object is read with what follows."""
        parts = self._spelling.exact[len(self._spelling.head) :]
        scanner = BracketScanner()
        if not (yield from self._matches_exactly(parts, scanner)):
            return False
        self._begin()
        if not (yield from self._streams()):
            return False
        self.is_within = False
        while not scanner.is_done:
            self._tape.take_object(scanner)
            if self._tape.is_final:
                break
            if not scanner.is_done:
                yield
        return True

    def _matches_exactly(self, parts: Sequence[Part], scanner: BracketScanner) -> Steps[bool]:
        for part in parts:
            yield from self._tape.blanks()
            text = part.text
            if part == Part("name", is_placeholder=True):
                if not (yield from self._takes("name", ())):
                    return False
                text = json.dumps(self._call.name, ensure_ascii=False)[1:-1]
            elif part.is_placeholder:
                text = (yield from self._tape.taking_until('"', LONGEST)) or ""
                self._call.id = text if part.text == "id" else self._call.id
                self._tape.skip(-1)
            elif not (text := (yield from self._tape.taking_one(_EITHER.get(text, [text])))):
                return False
            scanner.take(text)
        return True

    def _json(self) -> Steps[bool]:
        tape = self._tape
        yield from tape.blanks()
        if self._is_exact:
            self.is_within = not (yield from self._streams())
            return not self.is_within
        if tape.next != "{":
            return (yield from self._has_none())
        text = yield from self._collected(BracketScanner(is_strict=True), "{")
        arguments = arguments_of(text) if text else None
        return arguments is not None and self._end(arguments)

    def _has_none(self) -> Steps[bool]:
        """A call may have no arguments at all."""
        if not self._tail:
            return False
        while any(map(self._tape.may_become, self._tail)):
            yield
        return any(map(self._tape.starts_with, self._tail)) and self._end("{}")

    def _streams(self) -> Steps[bool]:
        """Tell an object as it comes."""
        inner = BracketScanner()
        yield from self._tape.blanks()
        if self._tape.next != "{":
            return False
        while not inner.is_done:
            if text := self._tape.take_object(inner):
                self._tells.add_arguments(text)
            if not inner.is_done:
                if self._tape.is_final:
                    return False
                yield
        return True

    def _collected(self, scanner: BracketScanner, first: str) -> Steps[str]:
        """A bracketed text; "" where it is none, or does not end."""
        yield from self._tape.blanks()
        if self._tape.next != first:
            self.has_run_out |= not self._tape
            return ""
        return (yield from self._collected_on(scanner))

    def _collected_on(self, scanner: BracketScanner) -> Steps[str]:
        parts: list[str] = []
        while True:
            parts.append(self._tape.take_object(scanner))
            if scanner.is_done:
                return "".join(parts)
            if scanner.is_broken or self._tape.is_final:
                return ""
            yield

    def _bracketed(self) -> Steps[bool]:
        """Arguments whose opening bracket the head ends with."""
        is_gemma = self._calls.style == _GEMMA
        scanner = GemmaScanner() if is_gemma else BracketScanner()
        scanner.take("{" if is_gemma else "(")
        text = yield from self._collected_on(scanner)
        arguments = arguments_of(text, self._calls.style) if text else None
        return arguments is not None and self._end(arguments)

    def _nested(self) -> Steps[bool]:
        after = self._calls.call.partition("$arguments")[2].strip()
        text = yield from self._tape.until(Markers([after]))
        if text is None:
            return False
        types = self._types.get(self._call.name, {})
        arguments = unnested(text, self._calls.parameter, types)
        return arguments is not None and self._end(arguments)

    def _parameters(self) -> Steps[bool]:
        """Arguments one by one, up to what ends the call, or as an object."""
        yield from self._tape.blanks()
        if self._tape.next == "{":
            text = yield from self._collected(BracketScanner(is_strict=True), "{")
            given = arguments_of(text) if text else None
            return given is not None and self._end(given)
        types = self._types.get(self._call.name, {})
        arguments = yield from self._parameter_reader.read(types)
        return arguments is not None and self._end(dumped(arguments))

    def _next(self) -> Steps[bool]:
        """Read what ends a call, and what begins the next one. The tape is marked behind what was read."""
        tape, spelling = self._tape, self._spelling
        if (yield from self._is_in_list()):
            return True
        yield from tape.skipping([part.text for part in spelling.tail])
        tape.mark()
        yield from tape.blanks()
        separators = [part.text for part in spelling.separator] or [";", ","][: 2 * self._is_bare]
        is_separated = bool((yield from tape.taking_one(separators)))
        if is_separated:
            yield from tape.blanks()
        if is_separated or (spelling.begin and not spelling.head):
            if self._is_bare and tape.next == "{":
                return True
            if spelling.head and (yield from self._matches(spelling.head)):
                return True
            tape.rewind()
            yield from tape.blanks()
        if self.openings and not self._calls.is_whole_answer:
            while any(map(tape.may_become, self.openings)):
                yield
            if any(map(tape.starts_with, self.openings)):
                at_opening = tape.position
                tape.mark()
                if (yield from self._begins()):
                    return True
                tape.rewind()
                if tape.position != at_opening:
                    raise RuntimeError("the tape went back too far")
                return False
        tape.rewind()
        yield from self._tape.skipping([part.text for part in spelling.end])
        tape.mark()
        return False

    def _is_in_list(self) -> Steps[bool]:
        """Return whether another object follows before what ends the call."""
        tape = self._tape
        if self._is_listed:
            yield from tape.blanks()
            if (yield from tape.taking(",")):
                yield from tape.blanks()
                return tape.next == "{"
            yield from tape.taking("]")
        if self._spelling.form is None or not self._spelling.tail:
            return False
        yield from tape.blanks()
        return tape.next == "{"

    @property
    def _is_bare(self) -> bool:
        """Return whether the next call is an object without a marker of its own."""
        return self._spelling.form is not None and (self._is_listed or not self._spelling.head)
