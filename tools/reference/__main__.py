"""Write the tables of docs/operations.md that come from the code: `make docs`."""

from __future__ import annotations

from pathlib import Path

from . import commands, metrics, settings
from .markdown import fill

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def written(page: str) -> str:
    """The page as it should be.

    Raises:
        ReportError: it lacks the place of a table.
    """
    return fill(page, settings.blocks() | metrics.blocks() | commands.blocks())


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
