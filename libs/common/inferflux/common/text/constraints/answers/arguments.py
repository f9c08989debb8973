"""The arguments of a call in each style, as rules of a grammar (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final, Protocol

from inferflux.v1 import generation_pb2

from .lark import Lark, SpellingError, loose_pattern, pattern_of, quoted
from .members import Spelling, members_of
from .schemas import Root, Schema, types_of
from .values import NOTATIONS, Values

_KEY: Final = r"[A-Za-z_][A-Za-z0-9_.-]{0,63}"
_UNSAFE_KEY: Final = re.compile(r"[\x00-\x1f\x7f<>\"'|=:,{}\[\]()]|^\s|\s$|^$")
_WORDS: Final = {"boolean": ("true", "false", "True", "False"), "null": ("null", "None")}
_BESIDE: Final = r"[ \t\n]{0,2}"


class Arguments(Protocol):
    def of(self, schema: Schema) -> str:
        """Terms of all arguments of a function whose parameters have this schema."""


def arguments_of(calls: generation_pb2.CallSyntax, lark: Lark, json_options: Mapping[str, Any]) -> Arguments:
    """A writer of the arguments of a family's calls.

    Args:
        json_options: llguidance's, for every schema.
    """
    inline = _Json(json_options)
    if calls.style in NOTATIONS:
        return _Keywords(calls, lark, Values(lark, NOTATIONS[calls.style]))
    if calls.style in (generation_pb2.ARGUMENT_STYLE_TEXT, generation_pb2.ARGUMENT_STYLE_NESTED):
        return _Parameters(calls, lark, inline)
    return inline


class _Json:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    def of(self, schema: Schema) -> str:
        whole = {**schema, "x-guidance": dict(self._options)}
        return f"%json {json.dumps(whole, ensure_ascii=False)}"


class _Keywords:
    """`a=1, b='x'`, and what is alike."""

    def __init__(self, calls: generation_pb2.CallSyntax, lark: Lark, values: Values) -> None:
        self._lark = lark
        self._values = values
        self._separator = f"/{loose_pattern(calls.parameter_separator.strip() + ' ')}/"
        self._before, _, rest = calls.parameter.partition("$key")
        self._between, _, self._after = rest.partition("$value")

    def of(self, schema: Schema) -> str:
        root = Root(schema)

        def member(key: str | None, value: Any) -> str:
            name = f"/{_KEY}/" if key is None else quoted(_checked(key))
            terms = (self._lark.loose(self._before), name, self._lark.loose(self._between))
            return " ".join(
                filter(None, [*terms, self._values.of(value, root), self._lark.loose(self._after)])
            )

        return members_of(self._lark, root.object_of(schema), Spelling(self._separator, member))


class _Parameters:
    """`<parameter=a>1</parameter>`, and what is alike: strings as they are, all else as JSON."""

    def __init__(self, calls: generation_pb2.CallSyntax, lark: Lark, inline: _Json) -> None:
        self._calls = calls
        self._lark = lark
        self._inline = inline
        self._is_nested = calls.style == generation_pb2.ARGUMENT_STYLE_NESTED
        # Values that have parameters themselves, by their schema.
        self._nested: dict[str, str] = {}
        # Rules of other values, by their schema and what is around them; by a schema, its types.
        self._values: dict[tuple[str, str, str], str] = {}
        self._groups: dict[str, Mapping[str, Sequence[Schema]]] = {}

    def of(self, schema: Schema) -> str:
        return self._members(schema, Root(schema))

    def _members(self, schema: Schema, root: Root) -> str:
        separator = self._lark.loose(self._calls.parameter_separator)
        spelling = Spelling(separator, lambda key, value: self._parameter(key, value, root))
        return members_of(self._lark, root.object_of(schema), spelling)

    def _parameter(self, key: str | None, schema: Any, root: Root) -> str:
        """All ways to write it: for each type of a union one, where the syntax names the type."""
        groups = self._groups_of(schema, root)
        names = [(kind, kind, group) for kind, group in groups.items()]
        # Some templates call every number so.
        names += [("number", kind, group) for kind, group in groups.items() if kind == "integer"]
        written = dict.fromkeys(self._one(key, *one, root) for one in names)
        return f"({' | '.join(written)})" if len(written) > 1 else next(iter(written))

    def _groups_of(self, schema: Any, root: Root) -> Mapping[str, Sequence[Schema]]:
        """Alternatives of a schema, by the type that the syntax names; of texts where it names none."""
        key = json.dumps(schema)
        if (known := self._groups.get(key)) is not None:
            return known
        alternatives = list(root.alternatives(schema))
        types = list(dict.fromkeys(kind for one in alternatives for kind in types_of(one)))
        groups: dict[str, Sequence[Schema]]
        if len(types) > 1 and re.search(r"\$(type|is_string)", self._calls.parameter):
            groups = {k: [_narrowed(one, k) for one in alternatives if k in types_of(one)] for k in types}
        else:
            groups = {types[0] if len(types) == 1 else "string": alternatives}
        if '"$ref"' not in key:
            self._groups[key] = groups
        return groups

    def _one(self, key: str | None, named: str, kind: str, group: Sequence[Schema], root: Root) -> str:
        """A parameter of one type, or of several that look alike.

        Args:
            named: what the syntax calls the type.
        """
        text = self._calls.parameter.replace("$type", named)
        text = text.replace("$is_string", "true" if kind == "string" else "false")
        before, _, rest = text.partition("$key")
        between, _, after = rest.partition("$value")
        # Where the name is an attribute, its signs are escaped.
        is_attribute = before.endswith('"') and between.startswith('"')
        spelled = escape(key) if key and is_attribute else key
        name = f"/{_KEY}/" if spelled is None else quoted(_checked(spelled))
        if key is None and "$key" in after:
            after, _, end = after.partition("$key")
            tail = f"/{_KEY}{pattern_of(end)}/"
        else:
            tail = ""
        lead = between[len(between.rstrip()) :]
        begin = self._lark.exact(before.strip())
        terms = (self._lark.blanks(), begin, name, self._lark.loose(between.rstrip()))
        value = self._known_value(group, root, lead, after.replace("$key", key or ""))
        return " ".join(filter(None, [*terms, value, tail]))

    def _known_value(self, group: Sequence[Schema], root: Root, lead: str, end: str) -> str:
        """The rule of a value, one for all that are alike."""
        text = json.dumps(group)
        if '"$ref"' in text or self._is_nested:  # whose end has its name
            return self._value(group, root, lead, end)
        key = (text, lead, end)
        if key not in self._values:
            self._values[key] = self._lark.shared("value", self._value(group, root, lead, end))
        return self._values[key]

    def _value(self, group: Sequence[Schema], root: Root, lead: str, end: str) -> str:
        """A value, and what is after it.

        Args:
            lead: blanks that the family writes before it. Of a text, other ones would be a part.
        """
        blanks, close = self._lark.blanks(), self._lark.exact(end.strip())
        tail = self._lark.loose(end[len(end.rstrip()) :])
        is_text = any("string" in types_of(one) for one in group)
        before, after = (_optional(lead), _optional(end[: -len(end.lstrip())])) if is_text else [_BESIDE] * 2
        words = _words(group)
        if words is not None:
            body = "|".join(pattern_of(word) for word in words)
            value = f"/{before}({body}){after}/" if any(words) or before or after else '""'
        elif is_text:
            head = _string_pattern(group[0], before, after) if len(group) == 1 else ""
            return " ".join(filter(None, [self._lark.until(end.strip(), head=head), tail]))
        elif (nested := self._nested_value(group, root)) is not None:
            value = f"{blanks} {nested} {blanks}"
        else:
            schema = root.alone(group[0] if len(group) == 1 else {"anyOf": list(group)})
            value = f"{blanks} {self._inline.of(schema)} {blanks}"
        return " ".join(filter(None, [value, close, tail]))

    def _nested_value(self, group: Sequence[Schema], root: Root) -> str | None:
        """A value whose parts are parameters themselves; None: it has none."""
        if not self._is_nested or len(group) != 1 or types_of(group[0]) not in (["object"], ["array"]):
            return None
        schema = group[0]
        whole = root.schema if "$ref" in json.dumps(schema) else None
        key = json.dumps([schema, whole], sort_keys=True)
        if key not in self._nested:
            name = self._nested[key] = self._lark.fresh("nested")
            if types_of(schema) == ["object"]:
                body = self._members(schema, root)
            else:
                body = f"({self._parameter('item', schema.get('items', {}), root)})*"
            self._lark.rule(name, body)
        return self._nested[key]


def _narrowed(schema: Schema, kind: str) -> Schema:
    """Return what a schema says of one type."""
    if "enum" in schema:
        return {"enum": [value for value in schema["enum"] if types_of({"enum": [value]}) == [kind]]}
    return {**schema, "type": kind}


def _words(group: Sequence[Schema]) -> list[str] | None:
    """All texts of a value; None if there are more than can be listed, or some are no words."""
    texts: dict[str, None] = {}
    for one in group:
        if "enum" in one:
            if any(isinstance(value, dict | list) for value in one["enum"]):
                return None
            for value in one["enum"]:
                texts.update(dict.fromkeys(_texts_of(value)))
        elif set(types_of(one)) <= _WORDS.keys():
            texts.update(dict.fromkeys(word for kind in types_of(one) for word in _WORDS[kind]))
        else:
            return None
    return list(texts)


def _texts_of(value: Any) -> Sequence[str]:
    match value:
        case bool():
            return ("true", "True") if value else ("false", "False")
        case None:
            return _WORDS["null"]
        case str():
            return (value,)
        case _:
            return (json.dumps(value),)


def _optional(text: str) -> str:
    return f"({pattern_of(text)})?" if text else ""


def _string_pattern(schema: Schema, before: str, after: str) -> str:
    """A regular expression of a string; "" for any. Blanks beside it are the family's."""
    if types_of(schema) != ["string"]:
        return ""
    pattern = schema.get("pattern", "")
    if pattern.startswith("^") and pattern.endswith("$") and "|" not in pattern:
        return f"{before}({pattern[1:-1].replace('/', chr(92) + '/')}){after}"
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least == 0 and most is None:
        return ""
    return rf"{before}(.|\n){{{least},{'' if most is None else most}}}{after}"


def _checked(key: str) -> str:
    """Raises SpellingError for a name that could not be told from what is around it."""
    if _UNSAFE_KEY.search(key):
        raise SpellingError(f"the parameter {key[:64]!r} cannot be written in this model's calls")
    return key
