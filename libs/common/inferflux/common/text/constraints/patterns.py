"""A schema's regular expression, written so that everyone reads it alike (pure).

JSON Schema means ECMA-262's expressions. llguidance reads Rust's, and many clients' libraries read their
own: a class, `.`, `\\d`, `\\w` and `\\s` are other characters there. So a class becomes the list of its
characters; an escape that only some of them know is refused. Syntax that is wrong everywhere is left to the
parsers that read the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

MOST_CHARS = 64 << 10
"""The length of an expression whose classes are spelled out: `\\S` alone takes 36."""

Range = tuple[int, int]
"""Code points from the first to the last one."""

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_CONTROLS = (0x00, 0x1F)

_DIGIT: list[Range] = [(0x30, 0x39)]
_WORD: list[Range] = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE: list[Range] = [
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
]
_LINE_END: list[Range] = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
_SETS = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROL_ESCAPES = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D, "0": 0x00}

_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})")
_PROPERTY = re.compile(r"[pP]\{[A-Za-z0-9_=]+\}")
_GROUP = re.compile(r"\((?:\?(?:(?P<look><?[=!])|:|<[A-Za-z_$][\w$]*>|(?P<flags>)))?")
_COUNT = re.compile(r"[*+?]|\{(?P<least>[0-9]+)(?:,(?P<most>[0-9]*))?\}")
# Without a meaning of its own in any syntax.
_MOST_DIGITS = 9
_PLAIN = re.compile(r"[^\[\]\\.(){}|^$*+?]+")
_MOST_NESTED = 100


class PatternError(ValueError):
    """Error that names the part of an expression that is not supported."""


def portable(pattern: str, *, most_chars: int = MOST_CHARS, for_masks: bool = True) -> str:
    """The expression in the syntax that ECMA-262, Rust and others share.

    Args:
        for_masks: leave control characters out of classes that have them beside others. In a string under a
            pattern, llguidance escapes control characters alone as `\\uXXXX`: a model that begins another
            character so would be led to one of them.

    Raises:
        PatternError: it has what they read in different ways or masks cannot hold, or becomes longer than
            `most_chars`.
    """
    parts: list[str] = []
    left = most_chars
    for part in _Reader(pattern, for_masks=for_masks).parts():
        left -= len(part)
        if left < 0:
            raise PatternError(f"what is longer than {most_chars} characters, its classes spelled out,")
        parts.append(part)
    return "".join(parts)


@dataclass(slots=True)
class _Group:
    """One that is being read, or the whole expression.

    Attributes:
        begins: whether it stands where the text may begin.
        is_at_start: whether what comes next does.
        is_over: whether the alternative that is being read has come to the end of the text.
        may_be_over: whether one of those before has.
        has_anchor: whether there is one in it.
    """

    begins: bool
    is_at_start: bool
    is_over: bool = False
    may_be_over: bool = False
    has_anchor: bool = False


class _Reader:
    def __init__(self, pattern: str, *, for_masks: bool) -> None:
        self._text = pattern
        self._at = 0
        self._for_masks = for_masks
        self._groups = [_Group(begins=True, is_at_start=True)]
        # Whether a count may follow.
        self._is_countable = False

    def parts(self) -> Iterator[str]:
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in "(|)^$*+?{":
                yield self._structure(char)
                continue
            self._atom()
            if plain := _PLAIN.match(self._text, self._at):
                self._at = plain.end()
                yield plain[0]
            elif char == "[":
                yield self._class()
            elif char == "\\":
                yield self._escape()
            else:
                self._at += 1
                yield self._spelled_set(".") if char == "." else f"\\{char}"
        if len(self._groups) > 1:
            raise PatternError("a group without an end")

    def _atom(self) -> None:
        group = self._groups[-1]
        if group.is_over:
            raise PatternError("an end of the text before the end")
        group.is_at_start = False
        self._is_countable = True

    def _structure(self, char: str) -> str:
        if char in "*+?{":
            return self._counted()
        begin = self._at
        self._at += 1
        group = self._groups[-1]
        self._is_countable = False
        match char:
            case "(":
                self._open(begin)
            case ")":
                self._close()
            case "|":
                group.may_be_over |= group.is_over
                group.is_over, group.is_at_start = False, group.begins
            case _:
                if char == "^" and not group.is_at_start:
                    raise PatternError("a beginning of the text after the beginning")
                group.has_anchor = True
                group.is_over |= char == "$"
        return self._text[begin : self._at]

    def _open(self, begin: int) -> None:
        found = _GROUP.match(self._text, begin)
        if found is None or found["look"] is not None:
            raise PatternError("look-around")
        self._at = found.end()
        if found["flags"] is not None:
            raise PatternError(f"the group {self._text[begin : self._at + 1]!r}")
        group = self._groups[-1]
        if group.is_over:
            raise PatternError("an end of the text before the end")
        if len(self._groups) > _MOST_NESTED:
            raise PatternError("deeper nesting")
        self._groups.append(_Group(begins=group.is_at_start, is_at_start=group.is_at_start))

    def _close(self) -> None:
        if len(self._groups) == 1:
            raise PatternError("an end of no group")
        closed = self._groups.pop()
        group = self._groups[-1]
        group.is_at_start = False
        group.is_over = closed.is_over or closed.may_be_over
        group.has_anchor |= closed.has_anchor
        self._is_countable = not closed.has_anchor

    def _counted(self) -> str:
        found = _COUNT.match(self._text, self._at)
        if found is None:  # a brace that stands for itself
            self._atom()
            self._at += 1
            return "\\{"
        if not self._is_countable:
            raise PatternError("a count of nothing")
        self._is_countable = False
        self._at = found.end()
        if max(map(len, found.groups(default=""))) > _MOST_DIGITS:
            raise PatternError("a count of too many digits")
        if found["most"] and int(found["most"]) < int(found["least"]):
            raise PatternError("a count in the wrong order")
        if self._text.startswith("?", self._at):
            self._at += 1
        return self._text[found.start() : self._at]

    def _escape(self) -> str:
        """One that stands outside of a class."""
        begin = self._at
        self._at += 1
        if found := _PROPERTY.match(self._text, self._at):
            self._at = found.end()
            return self._text[begin : self._at]
        if self._text.startswith(("b", "B"), self._at):
            raise PatternError("a word boundary")
        if self._text[self._at : self._at + 1] in tuple("123456789k"):
            raise PatternError("a back reference")
        if (char := self._text[self._at : self._at + 1]).lower() in _SETS:
            self._at += 1
            return self._spelled_set(char)
        return _spelled(self._escaped(), for_masks=self._for_masks)

    def _spelled_set(self, char: str) -> str:
        return _spelled_set(char, for_masks=self._for_masks)

    def _escaped(self) -> list[Range]:
        """The characters of an escape, whose backslash has been read."""
        char = self._text[self._at : self._at + 1]
        if found := _HEX.match(self._text, self._at):
            self._at = found.end()
            code = int(found[1] or found[2], 16)
            if _SURROGATES[0] <= code <= _SURROGATES[1]:
                raise PatternError("half of a surrogate pair")
            return [(code, code)]
        self._at += 1
        if char.lower() in _SETS:
            return _set_of(char)
        if (code := _CONTROL_ESCAPES.get(char, -1)) >= 0:
            if char == "0" and self._text[self._at : self._at + 1].isdigit():
                raise PatternError("an octal escape")
            return [(code, code)]
        if not char or char.isalnum():
            raise PatternError(f"the escape \\{char}")
        return [(ord(char), ord(char))]

    def _class(self) -> str:
        begin = self._at
        self._at += 1
        is_negated = self._text.startswith("^", self._at)
        self._at += is_negated
        found: list[Range] = []
        properties = ""
        while not self._text.startswith("]", self._at):
            if self._at >= len(self._text):
                raise PatternError(f"the class {self._text[begin : begin + 16]!r} has no end")
            if named := _PROPERTY.match(self._text, self._at + 1) if self._text[self._at] == "\\" else None:
                properties += "\\" + named[0]
                self._at = named.end()
                continue
            item = self._class_item(begin)
            if self._has_range_to(item):
                self._at += 1
                end = self._class_item(begin)
                if len(end) != 1 or end[0][0] != end[0][1] or end < item:
                    raise PatternError("a range between what are no characters, or in the wrong order")
                item = [(item[0][0], end[0][1])]
            found += item
        self._at += 1
        if properties:
            inside = "".join(map(_range_spelled, _merged(found)))
            return f"[{'^' if is_negated else ''}{inside}{properties}]"
        if not found:
            raise PatternError("an empty class")
        ranges = _complement(found) if is_negated else _merged(found)
        return _spelled(ranges, for_masks=self._for_masks)

    def _has_range_to(self, item: list[Range]) -> bool:
        is_character = len(item) == 1 and item[0][0] == item[0][1]
        text = self._text[self._at : self._at + 2]
        if not text.startswith("-") or text == "-]":
            return False
        if not is_character:
            raise PatternError("a range between what are no characters, or in the wrong order")
        return True

    def _class_item(self, begin: int) -> list[Range]:
        if self._at >= len(self._text):
            raise PatternError(f"the class {self._text[begin : begin + 16]!r} has no end")
        char = self._text[self._at]
        self._at += 1
        if char != "\\":
            return [(ord(char), ord(char))]
        if self._text.startswith("b", self._at):
            self._at += 1
            return [(0x08, 0x08)]
        return self._escaped()


def _set_of(char: str) -> list[Range]:
    """The characters that `.` stands for, or an escape such as `\\d` or `\\D`."""
    if char == ".":
        return _complement(_LINE_END)
    characters = _SETS[char.lower()]
    return characters if char.islower() else _complement(characters)


@cache
def _spelled_set(char: str, *, for_masks: bool) -> str:
    return _spelled(_set_of(char), for_masks=for_masks)


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """In order, and apart from each other."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _complement(ranges: Iterable[Range]) -> list[Range]:
    """All other characters."""
    left: list[Range] = []
    begin = 0
    for first, last in [*_merged([*ranges, _SURROGATES]), (_LAST + 1, _LAST + 1)]:
        if begin < first:
            left.append((begin, first - 1))
        begin = last + 1
    return left


def _spelled(ranges: list[Range], *, for_masks: bool) -> str:
    """A character, or a class of several."""
    if for_masks:
        ranges = _without_controls(ranges)
    if not ranges:
        raise PatternError("a class without characters")
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _literal(ranges[0][0])
    return f"[{''.join(map(_range_spelled, ranges))}]"


def _without_controls(ranges: list[Range]) -> list[Range]:
    """Keep the ends of lines and the tab of a class that has most control characters, and others."""
    rest = [(max(first, _CONTROLS[1] + 1), last) for first, last in ranges if last > _CONTROLS[1]]
    if not rest or ranges[0] != (0, ranges[0][1]) or ranges[0][1] < 0x08:
        return ranges
    kept = [(0x09, 0x0A), (0x0D, 0x0D)] if _has(ranges, "\n") else []
    return [*kept, *_less(rest, 0x7F)]


def _less(ranges: list[Range], without: int) -> list[Range]:
    """The ranges, less a character."""
    left: list[Range] = []
    for first, last in ranges:
        pieces = ((first, min(last, without - 1)), (max(first, without + 1), last))
        left += [(a, b) for a, b in pieces if a <= b]
    return left


def _range_spelled(characters: Range) -> str:
    first, last = characters
    return _literal(first) if first == last else f"{_literal(first)}-{_literal(last)}"


def _has(ranges: list[Range], char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in ranges)


def _literal(code: int) -> str:
    char = chr(code)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    if code > 0x7F or char.isalnum() or char in " \"'!%,:;<=>@_`":
        return char
    return "\\" + char
