"""Members of an object, each written once, in any order (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .lark import Lark
from .schemas import Object

# A rule's parameter has as many bits. Of objects with more properties, the order is the schema's.
_MOST_UNORDERED = 64
_NOTHING = '""'


@dataclass(frozen=True, slots=True)
class Spelling:
    """Spelling of an object's members.

    Attributes:
        separator: terms between two of them.
        member: terms of one, by its name and its schema; None: of any name.
    """

    separator: str
    member: Callable[[str | None, Any], str]


def members_of(lark: Lark, parts: Object, spelling: Spelling) -> str:
    """Terms of an object's members: those that are required, and others, each once; after them extra ones."""
    extra = None if parts.extra is None else spelling.member(None, parts.extra)
    more = f"({spelling.separator} {extra})*" if extra else _NOTHING
    alone = f"({extra} {more})?" if extra and spelling.separator else more
    if not parts.properties:
        return alone
    names = [lark.shared("member", spelling.member(*pair)) for pair in parts.properties.items()]
    base = lark.fresh("members")
    if len(names) > _MOST_UNORDERED:
        return _in_order(lark, base, names, parts.n_required, spelling.separator, (alone, more))
    is_full = f"%if is_ones([0:{parts.n_required}])" if parts.n_required else ""
    after = f"{base}_more" if spelling.separator else base

    def choices(lead: str, end: str) -> str:
        each = (
            " ".join(filter(None, [lead, name, f"{after}::set_bit({i})", f"%if bit_clear({i})"]))
            for i, name in enumerate(names)
        )
        return "\n  | ".join([f"{end} {is_full}".strip(), *each])

    if spelling.separator:
        lark.rule(base, choices("", alone), of="::_")
    lark.rule(after, choices(spelling.separator, more), of="::_")
    return f"{base}::0x0"


def _in_order(
    lark: Lark, base: str, names: Sequence[str], n_required: int, separator: str, ends: tuple[str, str]
) -> str:
    """The same in the order of the names: a rule for each, where none was before, and after others."""
    first, later = ends
    for i in reversed(range(len(names))):
        skips = i >= n_required
        lark.rule(f"{base}_a{i}", f"{names[i]} {later}" + (f" | {first}" if skips else ""))
        lark.rule(f"{base}_b{i}", f"{separator} {names[i]} {later}" + (f" | {later}" if skips else ""))
        first, later = f"{base}_a{i}", f"{base}_b{i}"
    return first
