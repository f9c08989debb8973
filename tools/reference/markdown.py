"""Markdown tables, and the places of a page that they are written to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benchmarks.report import insert


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; a bar within a cell is escaped."""
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    first, rule, *rest = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(
        [f"| {' | '.join(first)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(cells)} |" for cells in rest)]
    )


def fill(page: str, blocks: Mapping[str, str], by: str = "make docs") -> str:
    """The page with each block between its markers, which name the command that it is written by.

    Raises:
        ReportError: a block has no place in the page.
    """
    for name, text in blocks.items():
        page = insert(page, text, begin=f"<!-- {name}: written by {by} -->", end=f"<!-- end of {name} -->")
    return page
