"""Results of cases, and the table of them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A case of a suite.

    Attributes:
        outcome: passed, failed or skipped.
        why: of the two last ones, in a line.
    """

    suite: str
    case: str
    outcome: str
    why: str = ""


def of_case(case: ET.Element, suite: str) -> Row:
    """A test case of a report in JUnit's XML, as pytest writes it."""
    outcome, why = "passed", ""
    for kind, word in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if (found := case.find(kind)) is not None:
            outcome, why = word, " ".join(found.get("message", "").split())
    file = case.get("classname", "").rpartition(".")[2]
    return Row(suite, f"{file}::{case.get('name')}", outcome, why)


def table(rows: Sequence[Row], *, is_whole: bool) -> str:
    """A line for each suite; with `is_whole` one for each case that failed or was skipped, before them."""
    lines = [
        f"{row.outcome:<8}{row.suite} {row.case}: {row.why[:200]}"
        for row in rows
        if row.outcome == "failed" or (is_whole and row.outcome == "skipped")
    ]
    lines += ["", f"{'suite':<28}{'passed':>8}{'failed':>8}{'skipped':>9}{'of fitting':>12}"]
    for suite in dict.fromkeys(row.suite for row in rows):
        counts = Counter(row.outcome for row in rows if row.suite == suite)
        fitting = counts["passed"] + counts["failed"]
        share = f"{counts['passed'] / fitting:.1%}" if fitting else "-"
        lines.append(
            f"{suite:<28}{counts['passed']:>8}{counts['failed']:>8}{counts['skipped']:>9}{share:>12}"
        )
    return "\n".join(lines)
