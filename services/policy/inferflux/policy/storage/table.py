"""A storage as a table of rows, whatever keeps it: a file, a database, Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

KEY, ROLE, LIMIT, GUARDRAILS, MARK = "key", "role", "limit", "guardrails", "mark"
"""Kinds of rows. A key's row is named after a secret's digest, a mark's as in `KeyStore.bootstrap`."""

RULES = "rules"
"""The rules of a set of guardrails."""

SEAL = "seal"
"""How the other rows are encrypted."""

TAKEN = "taken"
"""A mark of what was taken over from elsewhere, which no reader of the table sees."""

LARGE = frozenset({RULES, TAKEN})
"""Kinds of rows that are read by name alone: they may be large."""

REMEMBERED_MS = 3_600_000
"""A table remembers for as long which rows were removed. A process that looks later reads all of it."""


class Row(NamedTuple):
    """The kind and the name of a row."""

    kind: str
    name: str

    @property
    def text(self) -> str:
        return f"{self.kind} {self.name}"

    @classmethod
    def parse(cls, text: str) -> Row:
        kind, _, name = text.partition(" ")
        return cls(kind, name)


Edits = Mapping[Row, str | None]
"""Values by row, each a JSON object in ASCII; None for a row that is removed."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a table since a revision.

    Attributes:
        revision: of now.
        rows: those that are new or have another value, but for `LARGE` ones; None for those that are gone.
        is_whole: these are all the rows that there are.
    """

    revision: int
    rows: Edits
    is_whole: bool = False


class Table(Protocol):
    """Rows that several processes read and write. Every change has a higher revision than the one before: the
    time in ms since 1970, or one more than the last. An empty table has the revision 0.

    Every method but `open` and `aclose` raises Unavailable when the table cannot be used in time.
    """

    async def open(self) -> None:
        """Raises:
        InvalidArgument: it cannot be used; the field is the variable to change. Nothing was written.
        """
        ...

    async def changes(self, since: int) -> Changes:
        """Read the changes since a revision; 0 for all rows."""
        ...

    async def large(self, rows: Sequence[Row]) -> list[str | None]:
        """Values of rows of `LARGE` kinds; None for those that are not there."""
        ...

    async def write(self, edits: Edits, *, expected: int, revision: int) -> bool:
        """Change rows, all of them or none.

        Args:
            expected: the revision that it was decided on: if the table has another one, nothing is written.
            revision: the new one, higher than `expected`.

        Returns:
            False if nothing was written.

        Raises:
            ResourceExhausted: the table would be larger than it may be.
        """
        ...

    def turn(self) -> AbstractAsyncContextManager[None]:
        """While it lasts, no other process writes, where the table can see to that. What this task reads and
        writes meanwhile is decided on what is there. One write ends it.
        """
        ...

    async def aclose(self) -> None: ...
