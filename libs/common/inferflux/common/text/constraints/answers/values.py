"""Values in notations that are not JSON: Python's literals and Gemma's, as rules of a grammar (pure)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inferflux.v1 import generation_pb2

from .lark import Lark, pattern_of, quoted
from .members import Spelling, members_of
from .schemas import Root, Schema, types_of

_INTEGER: Final = r"-?(0|[1-9][0-9]{0,17})"
_NUMBER: Final = rf"{_INTEGER}(\.[0-9]{{1,17}})?([eE][+-]?[0-9]{{1,2}})?"
_ESCAPE: Final = r"\\([\\\/nrt\"']|u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))"
# Some templates write ends of lines as they are.
_PYTHON_STRING: Final = (
    rf"/'([^'\\\x00-\x08\x0b-\x1f]|{_ESCAPE})*'" + "|" + (rf"\"([^\"\\\x00-\x08\x0b-\x1f]|{_ESCAPE})*\"/")
)
_QUOTE: Final = '<|"|>'
_BARE_KEY = r"[A-Za-z_]([A-Za-z0-9_. -]{0,62}[A-Za-z0-9_.-])?"


@dataclass(frozen=True, slots=True)
class Notation:
    """Notation of values.

    Attributes:
        words: of booleans and null.
        string: terms of any string. literal: of one string. key: of a property's name; none: of any.
    """

    words: Mapping[str, Sequence[str]]
    string: Callable[[Lark], str]
    literal: Callable[[Lark, str], str]
    key: Callable[[Lark, str | None], str]


def _python_literal(_lark: Lark, text: str) -> str:
    spellings = dict.fromkeys([repr(text), json.dumps(text, ensure_ascii=False)])
    return "(" + " | ".join(map(quoted, spellings)) + ")"


def _gemma_key(lark: Lark, key: str | None) -> str:
    if key is None:
        return f"/{_BARE_KEY}/"
    is_bare = key.replace("_", "").replace("-", "").replace(".", "").isalnum()
    return quoted(key) if is_bare else lark.exact(f"{_QUOTE}{key}{_QUOTE}")


NOTATIONS: Final[Mapping[int, Notation]] = {
    generation_pb2.ARGUMENT_STYLE_PYTHON: Notation(
        words={"boolean": ("True", "False"), "null": ("None",)},
        string=lambda lark: lark.shared("STRING", _PYTHON_STRING),
        literal=_python_literal,
        key=lambda lark, key: (
            lark.shared("STRING", _PYTHON_STRING) if key is None else _python_literal(lark, key)
        ),
    ),
    generation_pb2.ARGUMENT_STYLE_GEMMA: Notation(
        words={"boolean": ("true", "false"), "null": ("null",)},
        string=lambda lark: f"{lark.exact(_QUOTE)} {lark.until(_QUOTE)}",
        literal=lambda lark, text: lark.exact(f"{_QUOTE}{text}{_QUOTE}"),
        key=_gemma_key,
    ),
}


class Values:
    """Rules of values, one for each schema."""

    def __init__(self, lark: Lark, notation: Notation) -> None:
        self._lark = lark
        self._notation = notation
        self._known: dict[str, str] = {}

    def of(self, schema: Any, root: Root) -> str:
        """The name of the rule of values that match a schema, as far as a notation can tell."""
        key = json.dumps([schema, root.schema if "$ref" in json.dumps(schema) else None], sort_keys=True)
        if key not in self._known:
            name = self._known[key] = self._lark.fresh("value")
            written = [
                self._one(one, kind, root) for one in root.alternatives(schema) for kind in types_of(one)
            ]
            self._lark.rule(name, " | ".join(dict.fromkeys(written)))
        return self._known[key]

    def _one(self, schema: Schema, kind: str, root: Root) -> str:
        """Values of one type."""
        if "enum" in schema:
            return " | ".join(self._literal(value) for value in schema["enum"])
        match kind:
            case "string":
                return self._notation.string(self._lark)
            case "integer":
                return f"/{_INTEGER}/"
            case "number":
                return f"/{_NUMBER}/"
            case "boolean" | "null":
                return " | ".join(map(quoted, self._notation.words[kind]))
            case "array":
                return self._array(schema, root)
            case _:
                return self._object(schema, root)

    def _array(self, schema: Schema, root: Root) -> str:
        items = schema.get("items", {})
        value = self.of(items if isinstance(items, Mapping) else {}, root)
        comma, least, most = self._comma(), schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[" "]"'
        more = f"({comma} {value}){{{max(least - 1, 0)},{'' if most is None else max(most - 1, 0)}}}"
        whole = f"{value} {more}"
        return f'"[" {whole if least else f"({whole})?"} "]"'

    def _object(self, schema: Schema, root: Root) -> str:
        spelling = Spelling(self._comma(), lambda key, value: f"{self._key(key)} {self.of(value, root)}")
        return f'"{{" {members_of(self._lark, root.object_of(schema), spelling)} "}}"'

    def _key(self, key: str | None) -> str:
        return f"{self._notation.key(self._lark, key)} /:[ ]?/"

    def _comma(self) -> str:
        return "/,[ ]?/"

    def _literal(self, value: Any) -> str:
        """Write one value. A list or an object may be any: it is compared when the answer is complete."""
        match value:
            case bool():
                return quoted(self._notation.words["boolean"][0 if value else 1])
            case None:
                return quoted(self._notation.words["null"][0])
            case str():
                return self._notation.literal(self._lark, value)
            case int() | float():
                return f"/{pattern_of(json.dumps(value))}/"
            case _:
                return self._one({}, "array" if isinstance(value, list) else "object", Root({}))
