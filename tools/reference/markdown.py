"""Markdown tables, and the places of a page that they are written to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from benchmarks.report import insert

_COLUMNS = 118
# What a line is not broken within.
_WORD = re.compile(r"(?:\[[^]]*\]\([^)]*\)|`[^`]*`|\S)+")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; a bar within a cell is escaped."""
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    first, rule, *rest = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(
        [f"| {' | '.join(first)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(cells)} |" for cells in rest)]
    )


def entries(rows: Iterable[Iterable[str]]) -> str:
    """A list, its lines broken, for rows too wide for a table: each is a name, facts, the meaning."""
    return "\n".join(_entry(*row) for row in rows)


def _entry(name: str, *facts: str) -> str:
    *others, meaning = facts
    said = "; ".join(fact for fact in others if fact)
    lines = ["-"]
    for word in _WORD.findall(f"{name} ({said}): {meaning}" if said else f"{name}: {meaning}"):
        if len(lines[-1]) + 1 + len(word) > _COLUMNS:
            lines.append(" ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def fill(page: str, blocks: Mapping[str, str], by: str = "make docs") -> str:
    """The page with each block between its markers, which name the command that it is written by.

    Raises:
        ReportError: a block has no place in the page.
    """
    for name, text in blocks.items():
        page = insert(page, text, begin=f"<!-- {name}: written by {by} -->", end=f"<!-- end of {name} -->")
    return page
