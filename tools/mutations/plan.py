"""The list of mutations, and the place of each in a source tree. Nothing is changed here."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("mutations.toml")
_SOURCES = ("libs", "services")
_SUFFIXES = (".py", ".lua")


class PlanError(Exception):
    """The list does not fit the tree."""


@dataclass(frozen=True)
class Mutation:
    """A fault: `new` in place of `old`, which is there once; `tests` are files by base name, or folders."""

    name: str
    old: str
    new: str
    tests: tuple[str, ...]


def read(text: str) -> list[Mutation]:
    """Read a list as TOML.

    Raises:
        PlanError: a name is there twice, or a mutation changes nothing or has no tests.
    """
    found = [
        Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in tomllib.loads(text)["mutation"]
    ]
    for mutation in found:
        if mutation.old == mutation.new or not mutation.tests:
            raise PlanError(f"{mutation.name}: it changes nothing, or has no tests")
    if len({mutation.name for mutation in found}) < len(found):
        raise PlanError("two mutations have the same name")
    return found


def sources(tree: Path) -> dict[Path, str]:
    """Texts of the source files below a tree that may be changed."""
    paths = (path for folder in _SOURCES for path in sorted((tree / folder).rglob("*")))
    return {path: path.read_text() for path in paths if path.suffix in _SUFFIXES}


def place(mutation: Mutation, texts: Mapping[Path, str]) -> Path:
    """The file that has `old`.

    Raises:
        PlanError: it is not there exactly once.
    """
    counts = {path: n for path, text in texts.items() if (n := text.count(mutation.old))}
    if sum(counts.values()) != 1:
        where = ", ".join(f"{path.name}: {n}" for path, n in counts.items()) or "nowhere"
        raise PlanError(f"{mutation.name}: `old` has to be there once ({where})")
    return next(iter(counts))


def tests_of(mutation: Mutation, tree: Path) -> list[Path]:
    """Files and folders of its tests in a tree.

    Raises:
        PlanError: one is not there, or more than once.
    """
    found = []
    for name in mutation.tests:
        paths = [tree / name] if "/" in name else sorted((tree / "tests").rglob(name))
        if len(paths) != 1 or not paths[0].exists():
            raise PlanError(f"{mutation.name}: {name} has to be there once: {[str(p) for p in paths]}")
        found += paths
    return found
