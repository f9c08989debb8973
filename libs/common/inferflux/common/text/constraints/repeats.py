"""Product of nested counts in a regular expression, of which masks keep all states (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

MOST_REPEATS: Final = 1000
"""The product of counts within counts that masks hold; llguidance's lexer builds no ten times that."""

# Of an expression that `patterns.portable` has written.
_TOKEN: Final = re.compile(
    r"(?P<open>\((?:\?(?::|<[^>]*>))?)|(?P<close>\))|(?P<choice>\|)|(?P<count>[*+?]|\{\d+(?:,\d*)?\})\??"
    r"|(?P<atom>\[(?:\\.|[^\]\\])*\]|\\x[0-9a-f]{2}|\\[pP]\{\w+\}|\\.|[^()|*+?])",
    re.DOTALL,
)
_LITERAL: Final = re.compile(r"\\x[0-9a-f]{2}|\\[^pP]|[^\\\[^$]", re.DOTALL)
# Of a group that are looked at.
_MOST_ATOMS = 64


@dataclass(slots=True)
class _Group:
    """One that is being read, or the whole expression.

    Attributes:
        most: the largest product of counts in it.
        counted, fixed: atoms that may be missing or come again, and those that come once.
    """

    most: int = 1
    counted: set[str] = field(default_factory=set)
    fixed: set[str] = field(default_factory=set)
    has_choice: bool = False

    @property
    def is_delimited(self) -> bool:
        """Return whether a character of its own tells one repetition of it from the next."""
        atoms = self.counted | self.fixed
        if self.has_choice or len(atoms) > _MOST_ATOMS:
            return False
        return any(
            _LITERAL.fullmatch(one) and not any(_overlap(one, other) for other in self.counted)
            for one in self.fixed
        )

    def add(self, other: _Group) -> None:
        """Take in a group that comes once."""
        self.most = max(self.most, other.most)
        self.counted |= other.counted | (other.fixed if other.has_choice else set())
        self.fixed |= set() if other.has_choice else other.fixed


def repeats(expression: str) -> int:
    """The largest product of bounded counts that are within each other, with nothing between two repetitions
    that tells them apart. 1 where no count is within another.

    Args:
        expression: as `patterns.portable` writes it.
    """
    groups, last, found = [_Group()], _Group(), 1
    for token in _TOKEN.finditer(expression):
        if token["count"]:
            most, inner = _most_of(token["count"]), 1 if last.is_delimited else last.most
            last.counted, last.fixed = last.counted | last.fixed, set()
            if most > 1:
                last.most = inner * most
                found = max(found, last.most if inner > 1 else 1)
            continue
        groups[-1].add(last)
        last = _Group()
        if token["open"]:
            groups.append(_Group())
        elif token["close"] and len(groups) > 1:
            last = groups.pop()
        elif token["choice"]:
            groups[-1].has_choice = True
        elif token["atom"] and token["atom"] not in "^$":
            last.fixed.add(token["atom"])
    return found


def _most_of(count: str) -> int:
    """The bound of a count; 1 where it has none, or is an option."""
    last = count.strip("{}").rpartition(",")[2]
    return int(last) if last.isdigit() else 1


def _overlap(literal: str, atom: str) -> bool:
    """Return whether an atom may be this character; True if it is not known."""
    try:
        return re.fullmatch(atom, re.sub(r"\\(x..)?", _unescaped, literal, flags=re.DOTALL)) is not None
    except re.error:
        return True


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1][1:], 16)) if found[1] else ""
