"""Output of a child process, kept in a file: its result, or why it ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from .memory_file import open_memory_file

# A line that says why, as one of these prints it: see `llama.native`, C++'s std::terminate.
ABORTED: Final = "llama.cpp aborted: "
_UNCAUGHT: Final = "what():"
_TAIL_BYTES = 64 << 10
_LONGEST_LINE = 500


class Captured:
    """A file to give a child as its stdout or stderr. Read it when the child has ended."""

    def __init__(self) -> None:
        # A file object: its number is not closed again when another file has it.
        self._file = os.fdopen(open_memory_file(), "rb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        """Close it; again does nothing."""
        self._file.close()

    def read(self) -> bytes:
        """All of it."""
        return os.pread(self.fileno(), os.fstat(self.fileno()).st_size, 0)

    def last_lines(self) -> list[str]:
        """The lines of its end, empty ones left out."""
        size = os.fstat(self.fileno()).st_size
        tail = os.pread(self.fileno(), _TAIL_BYTES, max(size - _TAIL_BYTES, 0)).decode("utf-8", "replace")
        return [line for line in tail.splitlines() if line.strip()]


def cause_in(lines: Sequence[str]) -> str:
    """Why a child ended, by what it printed to stderr: one line, "" if it printed nothing."""
    for line in lines:
        if line.startswith(ABORTED):
            return one_line(line)
        if line.strip().startswith(_UNCAUGHT):
            return one_line(line.partition(_UNCAUGHT)[2])
    return one_line(lines[-1]) if lines else ""


def one_line(text: str) -> str:
    """`text`, which may come from a file, fit for a line of a log: printable and not long."""
    printable = (character if character.isprintable() else " " for character in text)
    line = " ".join("".join(printable).split())
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."
