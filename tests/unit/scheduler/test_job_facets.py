"""Who may change what a job holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import inferflux.scheduler.app
from inferflux.scheduler.core.types import facets
from inferflux.scheduler.core.types.jobs import Job

_ROOT = Path(inferflux.scheduler.app.__file__).parent
# By the name of the job's field.
_FACETS = {
    field.name: getattr(facets, str(field.type)) for field in fields(Job) if hasattr(facets, str(field.type))
}


def _assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


def _changes(path: Path) -> Iterator[str]:
    """Fields of facets that a module sets: as `job.wait.until_s`, or as `wait.until_s`."""
    for target in _assigned(ast.parse(path.read_text())):
        owner = target.value
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if name in _FACETS and target.attr in {field.name for field in fields(_FACETS[name])}:
            yield f"{path.name}:{target.lineno}: {name}.{target.attr}"


def test_a_facet_is_changed_by_its_own_methods_alone() -> None:
    assert set(_FACETS) == {"wait", "stay", "retries", "replay", "charged"}
    assert [change for path in sorted(_ROOT.rglob("*.py")) for change in _changes(path)] == []


def test_a_change_from_elsewhere_is_found(tmp_path: Path) -> None:
    module = tmp_path / "elsewhere.py"
    module.write_text("def f(job, stay):\n    job.wait.until_s = 1.0\n    stay.seen_tokens += 1\n")
    assert list(_changes(module)) == ["elsewhere.py:2: wait.until_s", "elsewhere.py:3: stay.seen_tokens"]
