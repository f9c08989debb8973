"""The bars that the source tree is measured against (pure but for reading files)."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import graph, rules, source
from .source import Module

# Behind it stand the variables of an environment that few deployments change: docs/operations.md.
FOR_EXPERTS = "For experts; few deployments change these:"
_VARIABLE = re.compile(r"^- `((?:INFERFLUX|OTEL)_\w+)`", re.MULTILINE)
_OPENINGS = re.compile(r"(What|Who|Of|Those|Which|Whether)\b")
_DOC_COLUMNS = 120

# A package that is looked at, a package in it that stands open, and the bars: rooms, arrows.
_LOOKS = {
    "gateway": (None, 16, 45),
    "common": (None, 12, 20),
    "worker": (None, 14, 35),
    "worker.engine": (None, 10, 28),
    "scheduler": ("scheduler.core", 21, 60),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A measure: figures, and the most that each may be."""

    measure: str
    figures: tuple[float, ...]
    bars: tuple[float, ...]

    @property
    def is_reached(self) -> bool:
        return all(figure <= bar for figure, bar in zip(self.figures, self.bars, strict=True))


def measure(
    root: Path, modules: list[Module], may_import: Mapping[str, list[str]], projects: rules.Projects
) -> list[Row]:
    """Every row of the table."""
    folders = [number for number in rules.folders(modules).values() if number]
    apps = [module for module in modules if module.path.endswith("/app.py")]
    others = [module for module in modules if module not in apps]
    broken = rules.violations(modules, may_import, projects)
    variables, ordinary = _variables((root / "docs/operations.md").read_text())
    undeclared = {entry.partition(":")[0] for entry in broken["undeclared"]}
    return [
        Row(
            "source lines of services, libs, cli",
            (sum(m.lines for m in modules if m.distribution != "convert"),),
            (84_000,),
        ),
        Row("modules of a folder: most / mean", (max(folders), sum(folders) / len(folders)), (20, 9)),
        *(
            Row(
                f"{package} at one look: rooms / arrows / pointing up / circles",
                look(modules, package, opened),
                (rooms, arrows, 0, 0),
            )
            for package, (opened, rooms, arrows) in _LOOKS.items()
        ),
        Row("arrows that MAY_IMPORT does not allow", (len(broken["arrow"]),), (0,)),
        Row(
            "lines of a file / a class: most",
            (
                max(module.lines for module in modules),
                max(rules.length(node) for module in modules for node in module.classes),
            ),
            (rules.FILE_LINES, rules.CLASS_LINES),
        ),
        Row(
            "imports of a module / of an app.py: most",
            (max(m.import_statements for m in others), max(m.import_statements for m in apps)),
            (rules.IMPORTS, rules.APP_IMPORTS),
        ),
        Row(
            "fields of Sequence / Job / Services",
            (
                fields(modules, "worker.engine", "Sequence"),
                fields(modules, "scheduler.core", "Job"),
                fields(modules, "gateway", "Services"),
            ),
            (26, 22, 8),
        ),
        Row("environment variables: documented / ordinary", (variables, ordinary), (110, 40)),
        Row("docstrings that open with What, Who, Of, Those, Which, Whether: %", (openings(modules),), (4,)),
        Row(
            f"lines of docs over {_DOC_COLUMNS} characters / lines of architecture.md",
            (_long_lines(root), (root / "docs/architecture.md").read_text().count("\n")),
            (0, 150),
        ),
        Row(
            "lines of benchmarks / tests",
            (source.line_count(root / "benchmarks"), source.line_count(root / "tests")),
            (10_000, 84_000),
        ),
        Row(f"distributions of {len(projects)} that declare less than they import", (len(undeclared),), (0,)),
    ]


def look(modules: Iterable[Module], package: str, opened: str | None = None) -> tuple[int, int, int, int]:
    """Rooms, arrows, arrows that point up, and circles among the modules and folders right in a package.

    Those without an arrow are not counted.

    Args:
        opened: a package in it, whose own modules and folders are seen in its place.
    """
    inside = f"inferflux.{package}."
    members = [module for module in modules if module.name.startswith(inside)]
    rooms = set()
    for member in members:
        is_open = opened is not None and member.name.startswith(f"inferflux.{opened}.")
        depth = inside.count(".") + is_open
        rooms.add(".".join(member.name.split(".")[1 : depth + 1]))
    found = rules.arrows(members, rooms)
    order = graph.ordered({arrow: len(imports) for arrow, imports in found.items()})
    up, circles = graph.pointing_up(found, order), graph.circles(found)
    return len(graph.rooms_of(found)), len(found), len(up), len(circles)


def fields(modules: Iterable[Module], package: str, name: str) -> int:
    """How many fields a class has: those of the largest of that name in a package."""
    return max(
        sum(isinstance(line, ast.AnnAssign) for line in node.body)
        for module in modules
        if module.name.startswith(f"inferflux.{package}.")
        for node in module.classes
        if node.name == name
    )


def openings(modules: Iterable[Module]) -> float:
    """Percent of docstrings that begin with a word that starts no sentence of subject and verb."""
    texts = [
        text
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if (text := ast.get_docstring(node))
    ]
    return 100 * sum(bool(_OPENINGS.match(text)) for text in texts) / len(texts)


def distributions(modules: Iterable[Module]) -> dict[str, tuple[int, int]]:
    """Modules and lines of each distribution."""
    modules = list(modules)
    files = Counter(module.distribution for module in modules if not module.is_package)
    return {
        name: (files[name], sum(module.lines for module in modules if module.distribution == name))
        for name in source.DISTRIBUTIONS
    }


def _variables(page: str) -> tuple[int, int]:
    """Variables that the manual names, and those of them that are not for experts."""
    for_experts = {
        variable
        for part in page.split(FOR_EXPERTS)[1:]
        for variable in _VARIABLE.findall(part.partition("<!-- end")[0])
    }
    named = set(_VARIABLE.findall(page))
    return len(named), len(named - for_experts)


def _long_lines(root: Path) -> int:
    pages = [root / "README.md", root / "models/README.md", *(root / "docs").rglob("*.md")]
    return sum(len(line) > _DOC_COLUMNS for page in pages for line in page.read_text().splitlines())
