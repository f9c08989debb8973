"""Source files as the rules see them: names, lines, imports. Parsed, never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = ["libs/api", "libs/client", "libs/common"]
DISTRIBUTIONS += [
    "services/gateway",
    "services/policy",
    "services/scheduler",
    "services/worker",
    "convert",
    "cli",
]
GENERATED = "libs/api/inferflux/v1/"


@dataclass(frozen=True)
class Module:
    """A source file.

    Attributes:
        path: where it is, below the root.
        name: the name that it is imported under, a package's own for an `__init__.py`.
        lines: how many it has, empty ones included.
    """

    path: str
    name: str
    lines: int
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def distribution(self) -> str:
        return self.path.partition("/inferflux/")[0]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> list[str]:
        """Dotted names of all that it imports, also for types alone: `json`, `inferflux.common.bus.Bus`."""
        package = self.name if self.is_package else self.name.rpartition(".")[0]
        return list(_imports(self.nodes, package.split(".")))

    @cached_property
    def import_statements(self) -> int:
        """The number of its import statements but those of `__future__`."""
        return sum(
            isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "__future__")
            for node in self.nodes
        )

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]


def read(root: Path = ROOT) -> list[Module]:
    """All modules of the distributions below ``root`` but the generated messages, by path."""
    paths = (path for folder in DISTRIBUTIONS for path in python_files(root / folder))
    named = [(path, path.relative_to(root).as_posix()) for path in paths]
    return [parsed(name, path.read_text()) for path, name in named if not name.startswith(GENERATED)]


def parsed(path: str, text: str) -> Module:
    """The module whose text this is; ``path`` is below the root."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    name = ".".join(parts[parts.index("inferflux") :]) if "inferflux" in parts else ".".join(parts)
    return Module(path, name, text.count("\n"), ast.parse(text))


def python_files(folder: Path) -> list[Path]:
    """The Python files below ``folder``, sorted."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def line_count(folder: Path) -> int:
    """Lines of the Python files below ``folder``."""
    return sum(path.read_bytes().count(b"\n") for path in python_files(folder))


def _imports(nodes: Iterable[ast.AST], package: list[str]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                above = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*above, *([node.module] if node.module else [])])
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name))]):
                yield name
