"""A JSON schema, read for two: what masks enforce, and what a complete answer is checked against (pure).

Drafts 4 to 2020-12 and OpenAPI's `nullable`; what is neither a keyword nor a format of theirs is ignored, as
JSON Schema says. What llguidance cannot enforce is left out of the masks' schema, and named.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from inferflux.common.contract.errors import InvalidArgument

from .formats import CHECKED_FORMATS, FORMATS
from .narrowing import Narrowing
from .patterns import MOST_CHARS, PatternError, portable
from .reading import FIELD, MAX_DEPTH, Json, bad, draft_of, keywords, parsed
from .references import References, escaped
from .repeats import MOST_REPEATS, repeats

TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})

MOST_SCHEMAS: Final = 50_000
"""Most schemas that are read of one text, with each place as often as it is referred to in another way."""

LEVELS: Final = 4
"""Number of levels of leaving a schema to the check: from 0, all that masks hold, to 3, the type alone."""

NOTHING_MATCHES: Final = "no answer satisfies it"
"""The message about a constraint that nothing can match."""

_MOST_NAMED, _MOST_SHOWN = 16, 120
_SAFE = " /:@!$&'()*+,;=-._~[]{}#?\"^`|<>"


@dataclass(frozen=True, slots=True)
class Unenforced:
    """A keyword that masks do not enforce.

    Attributes:
        path: of the schema that has it, as a JSON pointer.
    """

    keyword: str
    path: str

    def __str__(self) -> str:
        return f"{self.keyword} ({self.path[:_MOST_SHOWN]})"


@dataclass(frozen=True, slots=True)
class Schema:
    """One that was read.

    Attributes:
        enforced: what masks hold an answer to, as compact JSON.
        checked: what a complete answer has to match, as compact JSON.
        unenforced: which keywords the check alone knows.
    """

    enforced: str
    checked: str
    unenforced: tuple[Unenforced, ...] = ()


def read_schema(text: str, *, level: int = 0, is_arguments: bool = False) -> Schema:
    """Read a request's schema.

    Args:
        level: below `LEVELS`: how much of it to leave to the check, where llguidance refuses what is left.
        is_arguments: it is of a function's arguments, which are an object. What has no meaning, such as a
            reference to nothing, is left out and named.

    Raises:
        InvalidArgument: it is no schema, or needs what it does not have.
    """
    reader = _Reader(parsed(text), level, is_lenient=is_arguments)
    checked, enforced = reader.read()
    if is_arguments:
        if not _may_be_object(checked):
            reader.leave("type", "#")
            checked = enforced = {"type": "object"}
        checked, enforced = _as_object(checked), _as_object(enforced)
    found = dict.fromkeys(reader.unenforced)
    return Schema(_compact(enforced), _compact(checked), tuple(found))


def refuse_unenforced(unenforced: Sequence[Unenforced], field: str = FIELD) -> None:
    """Raises InvalidArgument if there are any: the client asked for a strict schema."""
    if unenforced:
        place = "" if field == FIELD else f"{field}: "
        message = f"{place}the schema is strict, and cannot be enforced: {named(unenforced)}"
        raise InvalidArgument(message, field=field, reason="UNSUPPORTED_SCHEMA")


def named(unenforced: Sequence[Unenforced]) -> str:
    """Keywords with their places, up to 16 of them, in characters that a header takes."""
    unenforced = list(dict.fromkeys(unenforced))
    more = len(unenforced) - _MOST_NAMED
    listed = [*map(str, unenforced[:_MOST_NAMED]), *([f"and {more} more"] if more > 0 else [])]
    return quote(", ".join(listed), safe=_SAFE)


def _may_be_object(schema: Json) -> bool:
    types = schema.get("type", "object") if isinstance(schema, dict) else "object"
    return schema is not False and "object" in (types if isinstance(types, list) else [types])


def _as_object(schema: Json) -> Json:
    """The schema, held to objects. One that refers to another says its type there, where it says one."""
    if not isinstance(schema, dict):
        return {"type": "object"}
    target = schema
    for _ in range(MAX_DEPTH):
        if "type" in target or "$ref" not in target or target["$ref"] == "#":
            break
        target = schema["$defs"][target["$ref"].rpartition("/")[2]]
        if not isinstance(target, dict):
            break
    has_type = isinstance(target, dict) and target is not schema and target.get("type") == "object"
    return schema if has_type else schema | {"type": "object"}


def _compact(schema: Json) -> str:
    if isinstance(schema, bool):  # llguidance's options belong to an object
        if not schema:
            raise bad("nothing matches it", "#")
        schema = {}
    compact = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    try:
        compact.encode()
    except UnicodeEncodeError:
        raise bad("a text has half of a surrogate pair", "#") from None
    return compact


# What is checked, and what is enforced.
Pair = tuple[Json, Json]


class _Reader:
    """One pass over what of a schema its root leads to."""

    def __init__(self, document: Json, level: int, *, is_lenient: bool) -> None:
        self._document = document
        self._draft = draft_of(document)
        self._references = References(document, self._draft)
        self._is_lenient = is_lenient
        self._narrowing = Narrowing(level, self.leave)
        # Places that are referred to, and their names in `$defs`.
        self._names: dict[str, str] = {"#": "#"}
        self._waiting: list[tuple[str, Json]] = []
        self._left = MOST_SCHEMAS
        # That all patterns together may have still.
        self._pattern_chars = MOST_CHARS
        self.unenforced: list[Unenforced] = []

    def read(self) -> Pair:
        checked, enforced = self.schema(self._document, "#", 0)
        definitions: dict[str, Pair] = {}
        while self._waiting:
            place, value = self._waiting.pop()
            definitions[self._names[place]] = self.schema(value, place, 0)
        self._narrowing.find_overlaps({name: pair[0] for name, pair in definitions.items()})
        if definitions:
            checked = checked | {"$defs": {name: pair[0] for name, pair in definitions.items()}}
            enforced = enforced | {"$defs": {name: pair[1] for name, pair in definitions.items()}}
        return checked, self._narrowing.root(enforced)

    def leave(self, keyword: str, path: str) -> None:
        """Masks do not enforce it."""
        self.unenforced.append(Unenforced(keyword, path))

    def schema(self, value: Json, path: str, depth: int) -> Pair:
        if depth > MAX_DEPTH:
            raise bad(f"it is nested deeper than {MAX_DEPTH}", path)
        self._left -= 1
        if self._left < 0:
            raise bad(f"it has more than {MOST_SCHEMAS} schemas", path)
        if isinstance(value, bool):
            return value, value
        if not isinstance(value, dict):
            raise bad("a schema is an object, true or false", path)
        checked: dict[str, Json] = {}
        enforced: dict[str, Json] = {}
        for name, of, spelled in keywords(value, self._draft):
            read = _KEYWORDS.get(name)
            if read is None:
                continue
            n_left = len(self.unenforced)
            try:
                pair = read(self, of, f"{path}/{escaped(spelled)}", depth + 1)
            except InvalidArgument:
                if not self._is_lenient or depth >= MAX_DEPTH or self._left < 0:
                    raise
                self.leave(spelled, path)
                continue
            if name in _ONLY_CHECKED:
                del self.unenforced[n_left:]
            if pair is not None:
                checked[name], enforced[name] = pair
        return checked, self._narrowing.narrowed(enforced, checked, path)

    # Each reads the value of a keyword; None says that it asserts nothing.

    def schemas(self, value: Json, path: str, depth: int) -> Pair:
        """Schemas by name."""
        if not isinstance(value, dict):
            raise bad("it is no object", path)
        pairs = {name: self.schema(of, f"{path}/{escaped(name)}", depth + 1) for name, of in value.items()}
        return {n: pair[0] for n, pair in pairs.items()}, {n: pair[1] for n, pair in pairs.items()}

    def list_of_schemas(self, value: Json, path: str, depth: int) -> Pair:
        if not isinstance(value, list) or not value:
            raise bad("it is no list of schemas", path)
        pairs = [self.schema(of, f"{path}/{i}", depth + 1) for i, of in enumerate(value)]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def prefix(self, value: Json, path: str, depth: int) -> Pair | None:
        return self.list_of_schemas(value, path, depth) if value else None

    def reference(self, value: Json, path: str, _depth: int) -> Pair:
        text = self.text(value, path, 0)[0]
        found = self._references.find(text, path)
        if found is None:
            if text.partition("#")[0]:
                raise bad(f"a reference to another document, {text[:64]!r}, is not supported", path)
            raise bad(f"{text[:64]!r} is no schema of it", path)
        place, schema = found
        if (chain := self._references.chain(place, schema)) >= MAX_DEPTH:
            why = "leads to itself" if math.isinf(chain) else f"begins a chain of more than {MAX_DEPTH}"
            raise bad(f"the reference {text[:64]!r} {why}", path)
        if place not in self._names:
            self._names[place] = self._name_for(place)
            self._waiting.append((place, schema))
        name = self._names[place]
        reference = name if name == "#" else f"#/$defs/{name}"
        return reference, reference

    def _name_for(self, place: str) -> str:
        """Name a definition by its place, in letters that need no escape."""
        plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in place[2:])[-60:]
        taken = self._names.values()
        return plain if plain not in taken else f"{plain}_{len(taken)}"

    def types(self, value: Json, path: str, _depth: int) -> Pair | None:
        names = value if isinstance(value, list) else [value]
        if "any" in names:  # draft 3's
            return None
        for name in names:
            if not isinstance(name, str) or name not in TYPES:
                raise bad(f"there is no type {str(name)[:64]!r}", path)
        if not names:
            raise bad("it lists no type", path)
        names = list(dict.fromkeys(names))
        read = names if isinstance(value, list) else value
        return read, read

    def text(self, value: Json, path: str, _depth: int) -> Pair:
        if not isinstance(value, str):
            raise bad("it is no text", path)
        return value, value

    def pattern(self, value: Json, path: str, _depth: int) -> Pair:
        return self._patterns(self.text(value, path, 0)[0])

    def _patterns(self, pattern: str) -> tuple[str, str | None]:
        """An expression as answers are checked, and as masks hold it; None if they cannot."""
        try:
            held = portable(pattern, most_chars=self._pattern_chars)
            read = portable(pattern, for_masks=False)
        except PatternError:
            return pattern, None
        self._pattern_chars -= len(held)
        return read, held if repeats(held) <= MOST_REPEATS else None

    def schemas_by_pattern(self, value: Json, path: str, depth: int) -> Pair | None:
        checked, enforced = self.schemas(value, path, depth)
        if not checked:
            return None
        patterns = {name: self._patterns(name) for name in checked}
        held = {pattern: enforced[name] for name, (_, pattern) in patterns.items() if pattern is not None}
        kept = {read: checked[name] for name, (read, _) in patterns.items()}
        if len(kept) < len(checked):
            return checked, None
        return kept, held if len(held) == len(checked) else None

    def format(self, value: Json, path: str, _depth: int) -> Pair | None:
        text = self.text(value, path, 0)[0]
        return (text, text) if text in FORMATS | CHECKED_FORMATS else None

    def names(self, value: Json, path: str, _depth: int) -> Pair | None:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise bad("it is no list of texts", path)
        names = list(dict.fromkeys(value))
        return (names, names) if names else None

    def names_by_name(self, value: Json, path: str, depth: int) -> Pair | None:
        if not isinstance(value, dict):
            raise bad("it is no object", path)
        read = {n: self.names(of, f"{path}/{escaped(n)}", depth) for n, of in value.items()}
        kept = {name: pair[0] for name, pair in read.items() if pair is not None}
        return (kept, kept) if kept else None

    def count(self, value: Json, path: str, _depth: int) -> Pair:
        is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
        if not is_whole or value < 0:
            raise bad("it is no whole number from 0 on", path)
        number = min(int(value), 2**31 - 1)
        return number, number

    def number(self, value: Json, path: str, _depth: int) -> Pair:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise bad("it is no number", path)
        return value, value

    def factor(self, value: Json, path: str, _depth: int) -> Pair:
        number = self.number(value, path, 0)[0]
        if number <= 0:
            raise bad("it is not above 0", path)
        return number, number

    def values(self, value: Json, path: str, depth: int) -> Pair:
        if not isinstance(value, list):
            raise bad("it is no list of values", path)
        for one in value:
            self.value(one, path, depth)
        return value, value

    def value(self, value: Json, path: str, depth: int) -> Pair:
        """Any JSON."""
        if depth > MAX_DEPTH:
            raise bad(f"it is nested deeper than {MAX_DEPTH}", path)
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for one in inside:
            self.value(one, path, depth + 1)
        return value, value

    def flag(self, value: Json, path: str, _depth: int) -> Pair | None:
        if not isinstance(value, bool):
            raise bad("it is neither true nor false", path)
        return (True, True) if value else None


# What stands in them is not enforced because of itself.
_ONLY_CHECKED: Final = frozenset({"not", "if", "then", "else", "contains", "dependentSchemas"})

_KEYWORDS: Final[dict[str, Callable[[_Reader, Json, str, int], Pair | None]]] = {
    "$ref": _Reader.reference,
    "type": _Reader.types,
    "const": _Reader.value,
    "enum": _Reader.values,
    "anyOf": _Reader.list_of_schemas,
    "allOf": _Reader.list_of_schemas,
    "oneOf": _Reader.list_of_schemas,
    "properties": _Reader.schemas,
    "patternProperties": _Reader.schemas_by_pattern,
    "additionalProperties": _Reader.schema,
    "required": _Reader.names,
    "minProperties": _Reader.count,
    "maxProperties": _Reader.count,
    "items": _Reader.schema,
    "prefixItems": _Reader.prefix,
    "minItems": _Reader.count,
    "maxItems": _Reader.count,
    "minLength": _Reader.count,
    "maxLength": _Reader.count,
    "pattern": _Reader.pattern,
    "format": _Reader.format,
    "minimum": _Reader.number,
    "maximum": _Reader.number,
    "exclusiveMinimum": _Reader.number,
    "exclusiveMaximum": _Reader.number,
    "multipleOf": _Reader.factor,
    "not": _Reader.schema,
    "if": _Reader.schema,
    "then": _Reader.schema,
    "else": _Reader.schema,
    "contains": _Reader.schema,
    "minContains": _Reader.count,
    "maxContains": _Reader.count,
    "uniqueItems": _Reader.flag,
    "propertyNames": _Reader.schema,
    "dependentRequired": _Reader.names_by_name,
    "dependentSchemas": _Reader.schemas,
    "unevaluatedItems": _Reader.schema,
    "unevaluatedProperties": _Reader.schema,
}

KEYWORDS: Final = frozenset(_KEYWORDS)
"""Keywords that are enforced, or checked when the answer ends."""
