"""Verification of audit lines: they are as they were written (pure).

Found: any line that was edited, cut, removed, added, repeated or moved, between the first line that is given
and the last. A missing end shows against an anchor alone: the `head` file, or a head that was noted
elsewhere. Lines before the first one that is given are not looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .chain import GENESIS, BadLine, Head, Line, is_sealed, read_line, torn_note

OPENED = "opened"
"""The event of the line that a process begins with."""

# What a process that was killed can leave, twice in a row.
_MOST_SUSPECTS = 4


@dataclass(frozen=True, slots=True)
class Problem:
    """The first line that is not as it should be.

    Attributes:
        line: its number in the file, from 1; the number after the last where lines are missing there.
    """

    file: str
    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Findings of a chain's verification.

    Attributes:
        first: number of the first line; 0 if there is none.
        head: the last good line.
        n_lines: good lines.
        is_torn: whether the last line is incomplete: a write in progress, or of a process that was killed.
        is_anchored: whether an anchor confirms the end.
        n_torn: incomplete lines of killed processes that a later line accounts for.
        warnings: what lines say of the state in which processes found the chain.
    """

    first: int
    head: Head
    n_lines: int
    is_torn: bool
    is_anchored: bool
    n_torn: int
    problem: Problem | None
    warnings: tuple[str, ...] = ()


def verify(
    files: Iterable[tuple[str, Iterable[bytes]]], keys: Sequence[bytes], anchor: Head | None = None
) -> Verdict:
    """Check the lines of a chain, in order.

    Args:
        files: names, each with the file's lines, newlines included.
        keys: of the chain, the current one first; a process may begin with another than the one before.
        anchor: a line that must be in the chain, or before it.
    """
    checker = _Checker(keys, anchor)
    name, number = "", 0
    for name, lines in files:
        for number, line in enumerate(lines, 1):
            problem = checker.take(name, number, line)
            if problem is not None:
                return checker.verdict(problem)
    return checker.verdict(checker.finish(name, number))


class _Checker:
    def __init__(self, keys: Sequence[bytes], anchor: Head | None) -> None:
        self._keys = list(keys)
        self._anchor = anchor
        self._head: Head | None = None
        self._first = 0
        self._n_lines = 0
        self._n_torn = 0
        self._warnings: list[str] = []
        # Lines that cannot be read: edits, unless the next good line says that they were left incomplete.
        self._suspects: list[bytes] = []
        self._suspicion: Problem | None = None

    def take(self, file: str, number: int, data: bytes) -> Problem | None:
        """Check one line; what is wrong with it, or with those before it."""
        text = data.removesuffix(b"\n")
        try:
            line = self._read(text, has_end=text != data)
        except BadLine as error:
            self._suspicion = self._suspicion or Problem(file, number, str(error))
            self._suspects.append(data)
            return self._suspicion if len(self._suspects) > _MOST_SUSPECTS else None
        problem = self._account(line, file, number)
        if problem is not None:
            return problem
        why = self._out_of_place(line)
        if why:
            return Problem(file, number, why)
        self._head = line.head
        self._first = self._first or line.head.seq
        self._n_lines += 1
        return None

    def _account(self, line: Line, file: str, number: int) -> Problem | None:
        """Compare what a process found at its start with what is there."""
        is_opening = line.fields.get("event") == OPENED
        accounted = line.fields.get("torn") if is_opening else None
        found = torn_note(b"".join(self._suspects).removesuffix(b"\n")) if self._suspects else None
        if accounted != found:
            return self._suspicion or Problem(file, number, "the incomplete line before it is gone")
        if found is not None:
            self._n_torn += 1
            self._suspects, self._suspicion = [], None
        if is_opening and "head" in line.fields:
            self._warnings.append(
                f"{file}:{number}: the head file was {line.fields['head']} at this start: "
                "lines that were missing before it do not show"
            )
        return None

    def _read(self, text: bytes, *, has_end: bool) -> Line:
        if not has_end:
            raise BadLine("it is incomplete")
        line = read_line(text)
        if not self._is_sealed(text, may_change_key=line.fields.get("event") == OPENED):
            raise BadLine("it was changed, or is of another key")
        return line

    def _is_sealed(self, text: bytes, *, may_change_key: bool) -> bool:
        n = len(self._keys) if self._head is None or may_change_key else 1
        for i, key in enumerate(self._keys[:n]):
            if is_sealed(text, key):
                self._keys.insert(0, self._keys.pop(i))
                return True
        return False

    def _out_of_place(self, line: Line) -> str:
        """Why a good line does not belong here; "" if it does."""
        head = self._head
        if head is None:
            if (line.head.seq == 1) != (line.prev == GENESIS):
                return "it is no first line"
        elif line.head.seq != head.seq + 1:
            return f"it is line {line.head.seq} of the chain, and {head.seq + 1} is expected"
        elif line.prev != head.hash:
            return "it does not follow the line before"
        anchor = self._anchor
        if anchor is not None and line.head.seq == anchor.seq and line.head.hash != anchor.hash:
            return "the anchor names another line"
        return ""

    def finish(self, file: str, number: int) -> Problem | None:
        """Problem at the end: a last line that was changed, or lines that are missing; None without one."""
        if self._suspects and self._suspects[-1].endswith(b"\n"):
            return self._suspicion
        seq = self._head.seq if self._head is not None else 0
        if self._anchor is not None and self._anchor.seq > seq:
            missing = self._anchor.seq - seq
            why = f"{missing} missing at the end of the chain"
            return self._suspicion or Problem(file, number + 1, why)
        return None

    def verdict(self, problem: Problem | None) -> Verdict:
        anchor = self._anchor
        return Verdict(
            first=self._first,
            head=self._head or Head(),
            n_lines=self._n_lines,
            is_torn=problem is None and bool(self._suspects),
            is_anchored=problem is None and anchor is not None and self._first <= anchor.seq,
            n_torn=self._n_torn,
            problem=problem,
            warnings=tuple(self._warnings),
        )
