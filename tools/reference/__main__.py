"""Write the tables of docs/ that come from the code: `make docs`."""

from __future__ import annotations

from pathlib import Path

from tools.house import plan

from . import access, commands, metrics, settings
from .markdown import fill

_DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = _DOCS / "operations.md"
POLICY_PAGE = _DOCS / "policy.md"
CONTRIBUTING_PAGE = _DOCS / "contributing.md"


def written(page: str) -> str:
    """The page as it should be.

    Raises:
        ReportError: it lacks the place of a table.
    """
    return fill(page, settings.blocks() | metrics.blocks() | commands.blocks())


def written_policy(page: str) -> str:
    """The page about policy as it should be.

    Raises:
        ReportError: it lacks the place of a table.
    """
    return fill(page, access.blocks())


def written_contributing(page: str) -> str:
    """The page for contributors as it should be.

    Raises:
        ReportError: it lacks the place of a table.
    """
    return fill(page, {"rooms": plan.as_text(plan.may_import())})


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
    POLICY_PAGE.write_text(written_policy(POLICY_PAGE.read_text()))
    CONTRIBUTING_PAGE.write_text(written_contributing(CONTRIBUTING_PAGE.read_text()))
