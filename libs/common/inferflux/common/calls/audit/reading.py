"""Reads audit lines as they are, unchecked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .chain import BadLine, read_line
from .files import chains_of, files_of


class LineReader:
    """Gives the whole lines of trails, each once, as they come. What cannot be read is left out.

    Args:
        paths: folders of chains, or files.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._positions: dict[Path, int] = {}

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """The fields of each line that was written since the last call."""
        for path in self._paths:
            files = (
                [file for chain in chains_of(path) for file in files_of(chain)] if path.is_dir() else [path]
            )
            for file in files:
                yield from self._new_of(file)

    def _new_of(self, path: Path) -> Iterator[dict[str, Any]]:
        position = self._positions.get(path, 0)
        with path.open("rb") as file:
            file.seek(position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                position += len(line)
                try:
                    yield dict(read_line(line[:-1]).fields)
                except BadLine:
                    continue
        self._positions[path] = position
