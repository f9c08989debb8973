"""The plan of the house: `MAY_IMPORT` and the violations that are left, in tests/unit/common/house.toml."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import fill

from . import rules, source
from .source import Module

PLAN = Path("tests/unit/common/house.toml")
_HEAD = """\
# The rooms that a room may import. Rooms are folders below `inferflux`, from the top down: a row names rooms
# below it alone. A module with a row of its own is a room too. `python -m tools.house --draft` writes the
# rows anew, as the folders of today import each other.
[may_import]
"""
_TAIL = """
# All that breaks a rule. The lists only shrink: `python -m tools.house --violations` writes them.
[violations]
"""


def may_import(root: Path = source.ROOT) -> dict[str, list[str]]:
    """The rooms that each room may import, from the top down."""
    rows: dict[str, list[str]] = _read(root)["may_import"]
    return rows


def known_violations(root: Path = source.ROOT) -> dict[str, list[str]]:
    """All that broke a rule when the lists were written, by rule."""
    lists: dict[str, list[str]] = _read(root)["violations"]
    return lists


def projects(root: Path = source.ROOT) -> rules.Projects:
    """`[project]` of the pyproject.toml of each distribution."""
    return {
        folder: tomllib.loads((root / folder / "pyproject.toml").read_text())["project"]
        for folder in source.DISTRIBUTIONS
    }


def written(rows: Mapping[str, list[str]], modules: Iterable[Module], declared: rules.Projects) -> str:
    """The plan as a file."""
    broken = rules.violations(modules, rows, declared)
    lists = (f"{json.dumps(rule)} = {_lines(entries)}" for rule, entries in broken.items())
    allowed = (f"{json.dumps(room)} = {_row(others)}" for room, others in rows.items())
    return "\n".join([_HEAD + "\n".join(allowed), _TAIL + "\n".join(lists), ""])


def as_text(rows: Mapping[str, list[str]]) -> str:
    """`MAY_IMPORT` as a page prints it: a line per room, wrapped."""
    width = max(map(len, rows))
    lines = (
        fill(f"{room:{width}}  {', '.join(others) or '-'}", 110, subsequent_indent=" " * (width + 2))
        for room, others in rows.items()
    )
    return "\n".join(["```text", *lines, "```"])


def _read(root: Path) -> dict[str, dict[str, list[str]]]:
    return tomllib.loads((root / PLAN).read_text())


def _row(names: list[str]) -> str:
    one = json.dumps(names)
    return (
        one if len(one) < 80 else f"[\n{fill(one[1:-1], 108, initial_indent='  ', subsequent_indent='  ')}\n]"
    )


def _lines(entries: list[str]) -> str:
    return "".join(["[\n", *(f"  {json.dumps(entry)},\n" for entry in entries), "]"]) if entries else "[]"
