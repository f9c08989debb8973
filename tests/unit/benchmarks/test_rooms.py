"""The folders of benchmarks/ are rooms, as those of the services are: narrow, named, and in an order."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"
_MOST_MODULES = 20
_MAY_IMPORT = {
    "load": set[str](),
    "rows": {"load"},
    "scheduling": {"load", "rows"},
    "traces": set[str](),
    "sim": {"load", "traces"},
    "fuzz": {"load"},
    "hostile": {"load"},
    "same_answer": {"load", "rows", "scheduling"},
}
ROOMS = sorted(path.parent for path in FOLDER.rglob("__init__.py"))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(FOLDER.parent)))
def test_a_room_is_narrow_and_says_in_a_sentence_what_it_is_for(room: Path) -> None:
    assert len(list(room.glob("[!_]*.py"))) <= _MOST_MODULES
    purpose = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    assert purpose.endswith(".")
    assert "\n" not in purpose


@pytest.mark.parametrize("room", _MAY_IMPORT)
def test_a_room_imports_only_those_below_it(room: str) -> None:
    imported = set()
    for path in (FOLDER / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks"):
                assert node.module
                parts = [*node.module.split("."), *(alias.name for alias in node.names)]
                imported.add(parts[1])
    assert imported - {room} <= _MAY_IMPORT[room]


def test_every_room_has_its_place_in_that_order() -> None:
    assert {room.name for room in ROOMS if room.parent == FOLDER} == set(_MAY_IMPORT)
