"""The order in which files of tests run, where several run at a time (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
# Levels whose tests start processes. Their files are spread among each other; the others are short, and last.
PROCESS_LEVELS = ("e2e", "integration")


def level_of(path: Path) -> str:
    """The folder below `tests` in which a file is: `e2e`, `integration`, `unit`; empty elsewhere."""
    parts = path.parts
    return parts[parts.index("tests") + 1] if "tests" in parts[:-1] else ""


def interleaved(items: Sequence[T], file_of: Callable[[T], tuple[str, Path]]) -> list[T]:
    """Items with the files of the first levels spread evenly among each other, and the other files behind.

    Args:
        file_of: (level, file) of an item. Items of a file stay together, in their order.
    """
    files = list(dict.fromkeys(file_of(item) for item in items))
    place: dict[tuple[str, Path], float] = {}
    for level in dict.fromkeys(level for level, _ in files):
        own = [file for file in files if file[0] == level]
        for number, file in enumerate(own):
            place[file] = (number + 0.5) / len(own) if level in PROCESS_LEVELS else 1.0
    order = {file: (place[file], number) for number, file in enumerate(files)}
    return sorted(items, key=lambda item: order[file_of(item)])
