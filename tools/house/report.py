"""The measures as a table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from . import measures, plan, source
from .measures import Row

HEAD = ("measure", "figure", "bar", "reached")


def rows(root: Path = source.ROOT) -> list[Row]:
    """The rows of the table for the tree below ``root``."""
    return measures.measure(root, source.read(root), plan.may_import(root), plan.projects(root))


def cells(found: Iterable[Row]) -> list[tuple[str, str, str, str]]:
    """The rows as texts: measure, figures, bars, and whether it is reached."""
    return [
        (row.measure, _numbers(row.figures), _numbers(row.bars), "yes" if row.is_reached else "no")
        for row in found
    ]


def text(found: Iterable[Row]) -> str:
    """The rows as a table for a terminal."""
    lines = [HEAD, *cells(found)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        f"{line[0]:{widths[0]}}  {line[1]:>{widths[1]}}  {line[2]:>{widths[2]}}  {line[3]}" for line in lines
    )


def _numbers(values: Iterable[float]) -> str:
    return " / ".join(f"{value:,}" if isinstance(value, int) else f"{value:.1f}" for value in values)
