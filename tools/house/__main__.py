"""Measure the source tree: a table of measures, figures and bars. Nothing is imported, and nothing run.

python -m tools.house                    print the table
python -m tools.house --json             the same, for programs
python -m tools.house --violations       write the lists of tests/unit/common/house.toml: what breaks a rule
python -m tools.house --draft            write its rows too, as the folders of today import each other
python -m tools.house --record           put the table and the lines of each distribution into a page
python -m tools.house --durations FILE   put there what `pytest --durations-by-file FILE` wrote
"""

from __future__ import annotations

import argparse
import gc
import json
from dataclasses import asdict, replace
from pathlib import Path

from tools.reference.markdown import fill, table

from . import measures, plan, report, rules, source
from .durations import as_table

PAGE = source.ROOT / "docs/contributing.md"


def _recorded(page: str) -> str:
    """The page with the tables. Lines are in hundreds: nearly every commit changes their exact number."""
    sizes = measures.distributions(source.read()).items()
    lines = [(f"`{name}`", str(modules), f"{round(number, -2):,}") for name, (modules, number) in sizes]
    rows = [replace(row, figures=tuple(map(_rounded, row.figures))) for row in report.rows()]
    blocks = {
        "measures": table(report.HEAD, report.cells(rows)),
        "sizes": table(("distribution", "modules", "lines"), lines),
    }
    return fill(page, blocks, by="python -m tools.house --record")


def _rounded(figure: float) -> float:
    return round(figure, -2) if figure >= 1000 else figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("json", "violations", "draft", "record"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--durations", type=Path, metavar="FILE")
    asked = parser.parse_args()
    gc.disable()  # It would read through all trees again and again, and takes half of the time.
    if asked.violations or asked.draft:
        modules = source.read()
        allowed = rules.drafted(modules) if asked.draft else plan.may_import()
        (source.ROOT / plan.PLAN).write_text(plan.written(allowed, modules, plan.projects()))
    elif asked.record:
        PAGE.write_text(_recorded(PAGE.read_text()))
    elif asked.durations:
        block = {"durations": as_table(asked.durations.read_text())}
        PAGE.write_text(fill(PAGE.read_text(), block, by="python -m tools.house --durations"))
    elif asked.json:
        print(json.dumps([asdict(row) | {"reached": row.is_reached} for row in report.rows()], indent=1))
    else:
        print(report.text(report.rows()))


if __name__ == "__main__":
    main()
