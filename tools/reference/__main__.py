"""Write the tables of docs/ and the files of the Helm chart that come from the code: `make docs`."""

from __future__ import annotations

from pathlib import Path

from tools.house import plan

from . import access, chart, commands, metrics, settings
from .markdown import fill

_ROOT = Path(__file__).resolve().parents[2]
_DOCS = _ROOT / "docs"
PAGE = _DOCS / "operations.md"
POLICY_PAGE = _DOCS / "policy.md"
CONTRIBUTING_PAGE = _DOCS / "contributing.md"
CHART = _ROOT / "deploy/helm/inferflux"


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


def of_chart() -> dict[Path, str]:
    """Files of the Helm chart as they should be."""
    return {CHART / "files/nats-users.yaml": chart.nats(), CHART / "files/valkey-users.acl": chart.valkey()}


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
    POLICY_PAGE.write_text(written_policy(POLICY_PAGE.read_text()))
    CONTRIBUTING_PAGE.write_text(written_contributing(CONTRIBUTING_PAGE.read_text()))
    for path, text in of_chart().items():
        path.write_text(text)
