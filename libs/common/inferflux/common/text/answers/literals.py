"""Values as models write them: JSON and its usual slips, Python's literals, Gemma's strings (pure).

A text that can be read in one way alone is read. Anything else is an error.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final

GEMMA_QUOTE: Final = '<|"|>'

_DEEPEST = 200
_BLANKS = re.compile(r"\s*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[A-Za-z_$][\w$-]*")
_WORDS: Final = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_STRINGS: Final = {quote: re.compile(rf"(?:[^{quote}\\]|\\.)*{quote}", re.DOTALL) for quote in "\"'"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""} | {c: c for c in "\"'\\/"}
_AFTER_STRING = re.compile(r"\s*(?:[,:\]})]|\Z)")
_BARE = re.compile(r"[^,:{}\[\]]*")
_CLOSINGS: Final = {"{": "}", "[": "]", "(": ")"}


def _finite(text: str) -> float:
    """A number that JSON has; of those that no float holds, the largest."""
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def read_json(text: str) -> Any:
    """The value of a JSON text, or of one with single quotes, trailing commas, bare keys, Python's words, or
    line feeds and quotes within strings.

    Raises:
        ValueError: it is none, or has NaN, or is nested more than 200 deep.
    """
    try:
        return json.loads(text, strict=False, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:
        return _Reader(text).whole()


def read_gemma(text: str) -> Any:
    """The value of Gemma's notation: strings between `<|"|>`, keys without quotes.

    Raises:
        ValueError: as `read_json`.
    """
    return _Reader(text, is_gemma=True).whole()


def read_keywords(text: str) -> dict[str, Any]:
    """Arguments of a Python-like call, what is between its parentheses.

    Raises:
        ValueError: as `read_json`; or one has no name.
    """
    reader = _Reader(text)
    arguments: dict[str, Any] = {}
    while reader.next():
        name = reader.match(_WORD)
        if not reader.has_taken("="):
            raise ValueError("an argument has no name")
        arguments[name] = reader.value(0)
        if not reader.has_taken(",") and reader.next():
            raise ValueError("no comma between arguments")
    return arguments


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


class _Reader:
    def __init__(self, text: str, *, is_gemma: bool = False) -> None:
        self._text = text
        self._is_gemma = is_gemma
        self._at = 0

    def whole(self) -> Any:
        value = self.value(0)
        if self.next():
            raise ValueError("something follows the value")
        return value

    def next(self) -> str:
        """The next character that is no blank; "" at the end."""
        found = _BLANKS.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._text[self._at : self._at + 1]

    def match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError(f"nothing that is known at {self._at}")
        self._at = found.end()
        return found[0]

    def has_taken(self, sign: str) -> bool:
        is_next = self.next() == sign
        self._at += is_next
        return is_next

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        first = self.next()
        if first == "{":
            return self._object(depth)
        if first and first in "[(":
            return self._array(depth)
        if self._is_gemma:
            return self._bare()
        if first and first in "\"'":
            return self._string()
        if _NUMBER.match(self._text, self._at):
            return self._number(self.match(_NUMBER))
        word = self.match(_WORD)
        if word not in _WORDS:
            raise ValueError(f"{word[:40]!r} is no value")
        return _WORDS[word]

    def _object(self, depth: int) -> dict[str, Any]:
        self._at += 1
        made: dict[str, Any] = {}
        while not self.has_taken("}"):
            key = self._key()
            if not self.has_taken(":"):
                raise ValueError("a key has no value")
            made[key] = self.value(depth + 1)
            if not self.has_taken(",") and self.next() != "}":
                raise ValueError("no comma between values")
        return made

    def _key(self) -> str:
        first = self.next()
        if self._is_gemma:
            return str(self._quoted()) if self._is_quoted() else self.match(_BARE).strip()
        return self._string() if first and first in "\"'" else self.match(_WORD)

    def _array(self, depth: int) -> list[Any]:
        closing = _CLOSINGS[self._text[self._at]]
        self._at += 1
        made: list[Any] = []
        while not self.has_taken(closing):
            made.append(self.value(depth + 1))
            if not self.has_taken(",") and self.next() != closing:
                raise ValueError("no comma between values")
        return made

    def _string(self) -> str:
        """A quote that no sign of structure follows is a part of the string."""
        quote = self._text[self._at]
        begin = self._at = self._at + 1
        while True:
            found = _STRINGS[quote].match(self._text, self._at)
            if found is None:
                raise ValueError("a string does not end")
            self._at = found.end()
            if _AFTER_STRING.match(self._text, self._at):
                return _ESCAPE.sub(_unescaped, self._text[begin : self._at - 1])

    def _number(self, text: str) -> int | float:
        try:
            return int(text)
        except ValueError:
            value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError("a number is too large")
        return value

    def _is_quoted(self) -> bool:
        return self._text.startswith(GEMMA_QUOTE, self._at)

    def _quoted(self) -> str:
        begin = self._at + len(GEMMA_QUOTE)
        end = self._text.find(GEMMA_QUOTE, begin)
        if end < 0:
            raise ValueError("a string does not end")
        self._at = end + len(GEMMA_QUOTE)
        return self._text[begin:end]

    def _bare(self) -> Any:
        if self._is_quoted():
            return self._quoted()
        if self.next() == '"':
            return self._string()
        text = self.match(_BARE).strip()
        if not text:
            raise ValueError("a value is missing")
        if text in _WORDS:
            return _WORDS[text]
        return self._number(text) if _NUMBER.fullmatch(text) else text


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    if code in _ESCAPED:
        return _ESCAPED[code]
    if len(code) == 1:
        return found[0]
    value = int(code[1:], 16)
    return chr(value) if value <= 0x10FFFF and not 0xD800 <= value < 0xE000 else "\ufffd"
