"""Arguments of a call that are written one by one, between markers (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from html import unescape
from typing import Any, Final

from inferflux.common.contract.requests.answer_spelling import Spelling

from .arguments import typed
from .scanner import BracketScanner
from .tape import AHEAD, Markers, Steps, Tape

# Ids, indices, keys and attributes are shorter, as is noise before the first call of a run.
LONGEST: Final = 256
_IS_STRING = re.compile(r'(?:string|type)="?(\w+)')
_BRACKETS: Final = ("{", "[")


class ParameterReader:
    """Reads them from a tape.

    Args:
        tail: markers that end a call.
        openings: texts with which the next one may begin.
        is_exact: whether a constraint holds them to their syntax.
    """

    def __init__(
        self,
        spelling: Spelling,
        tape: Tape,
        *,
        tail: Sequence[str],
        openings: Sequence[str],
        is_exact: bool = False,
    ) -> None:
        self._spelling = spelling
        self._is_exact = is_exact
        self._tape = tape
        self._tail = tail
        self.openings = openings
        # A constraint has a value end with its marker, wherever that comes first.
        others = () if is_exact else (spelling.before_key, *tail[:2])
        self._value_stops = Markers([spelling.after_value, *others])

    def read(self, types: Mapping[str, str]) -> Steps[dict[str, Any] | None]:
        """The arguments, up to what ends the call; None if they are none.

        Args:
            types: JSON types of the parameters.
        """
        tape, arguments = self._tape, dict[str, Any]()
        first = self._spelling.before_key
        while True:
            yield from tape.blanks()
            while any(map(tape.may_become, self._tail)) and not tape.starts_with(first):
                yield
            if any(map(tape.starts_with, self._tail)) or (tape.is_final and not tape):
                return None if not tape and tape.is_cut else arguments
            if not (yield from tape.taking(first)) or not (yield from self._parameter(arguments, types)):
                return None

    def _parameter(self, arguments: dict[str, Any], types: Mapping[str, str]) -> Steps[bool]:
        """Key and value, which is added to the arguments."""
        after_key = self._spelling.after_key
        key = yield from self._tape.taking_until(after_key[0], LONGEST)
        if key is None:
            return False
        key, attributes = key.strip().strip("\"'"), ""
        if after_key[0].startswith('"'):
            key = unescape(key)
        if len(after_key) > 1:
            rest = yield from self._tape.taking_until(after_key[-1].lstrip('"'), LONGEST)
            if rest is None:
                return False
            attributes = rest
        kinds = types.get(key, "string")
        if said := _IS_STRING.search(attributes):
            kinds = "string" if said[1] in ("true", "string") else kinds if kinds != "string" else ""
        is_json = self._is_exact and (said[1] not in ("true", "string") if said else "string" not in kinds)
        value = yield from self._value({*arguments, key}, types, is_json=is_json and bool(said or kinds))
        if value is None:
            return False
        arguments[key] = typed(value, kinds)
        return True

    def _value(self, keys: Collection[str], types: Mapping[str, str], *, is_json: bool) -> Steps[str | None]:
        """A parameter's value. A marker within it that nothing of the syntax follows is a part of it.

        Args:
            is_json: texts within it may have markers, too.
        """
        tape, parts = self._tape, list[str]()
        if is_json:
            yield from tape.blanks()
            scanner = BracketScanner()
            is_bracketed = tape.next in _BRACKETS
            while is_bracketed and not scanner.is_done:
                parts.append(tape.take_object(scanner))
                if not scanner.is_done:
                    if scanner.is_broken or tape.is_final:
                        return None
                    yield
        end = self._spelling.after_value
        before, after = self._spelling.value_blanks
        while True:
            text, stop = tape.take_before(self._value_stops)
            parts.append(text)
            if stop is None:
                if tape.is_final:
                    return None
                yield
                continue
            is_end = self._is_exact or (yield from self._is_end(stop, keys, types, parts))
            if is_end:
                if stop == end:
                    tape.skip(len(stop))
                value = "".join(parts)
                value = value.removeprefix(before) if before else value
                return value.removesuffix(after) if after else value
            parts.append(tape.take(len(stop)))

    def _is_end(
        self, stop: str, keys: Collection[str], types: Mapping[str, str], parts: Sequence[str]
    ) -> Steps[bool]:
        """Return whether the marker that comes next ends the value."""
        first, end = self._spelling.before_key, self._spelling.after_value
        if stop == first and stop != end:
            return (yield from self._is_next_key(keys, types, parts))
        tail = self._tail[self._tail.index(stop) + 1 :] if stop in self._tail else self._tail
        following = [*tail, *self.openings] if stop != end else [first, *tail]
        while True:
            rest = self._tape.peek(AHEAD)[len(stop) :].lstrip()
            if any(rest.startswith(one) for one in following):
                return True
            if not rest or any(one.startswith(rest) for one in following):
                if self._tape.is_final:
                    return not rest
                if len(self._tape.peek(AHEAD)) < AHEAD:
                    yield
                    continue
            return False

    def _is_next_key(
        self, keys: Collection[str], types: Mapping[str, str], parts: Sequence[str]
    ) -> Steps[bool]:
        """Return whether a value without its closing marker ends where the next parameter begins."""
        after = self._spelling.value_blanks[1]
        written = next((part for part in reversed(parts) if part), "")
        if after and not written.endswith(after):
            return False
        first, after_key = self._spelling.before_key, self._spelling.after_key[0]
        while True:
            ahead = self._tape.peek(LONGEST)
            at = ahead.find(after_key, len(first))
            if at >= 0:
                key = ahead[len(first) : at].strip()
                return key in types and key not in keys
            if self._tape.is_final or len(ahead) >= LONGEST:
                return False
            yield
