"""The rows of a table in memory, at most a quarter of a second old."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from inferflux.common.contract.errors import Unavailable
from inferflux.policy.decide.guardrails.store import MAX_AGE_S
from inferflux.policy.storage.table import LARGE, Changes, Edits, Row, Table

# Rows that are remembered as missing.
MAX_MISSED = 4096
# A change that others came before with is decided anew, at most so often. From the second time on it has a
# turn of its own: those who never pause would come first each time.
_ATTEMPTS = 100
_MOST_PAUSE_S = 0.02

_Result = TypeVar("_Result")

Rows = Mapping[str, Mapping[str, str]]
"""Values by kind and name."""


class View:
    """The rows of a table. Nothing is assumed where it cannot be read: every method raises Unavailable then.

    Args:
        now_ms: the time, in ms since 1970.
        clock: in seconds, from any start.
    """

    def __init__(
        self, table: Table, *, now_ms: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._now_ms = now_ms
        self._clock = clock
        self._rows: dict[str, dict[str, str]] = {}
        self._revision = 0
        self._read_at = -math.inf
        # When rows were looked for that are not there, in this order.
        self._missed: dict[Row, float] = {}
        self._reading: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()

    @property
    def revision(self) -> int:
        """The revision of the rows that `rows` returned last."""
        return self._revision

    async def rows(self) -> Rows:
        """All rows but the large ones. They change in place: hold on to none of it."""
        if self._clock() - self._read_at >= MAX_AGE_S:
            await self.read()
        return self._rows

    async def due_in_s(self) -> float:
        """Seconds until `rows` reads anew what others have changed; it is read if that is due."""
        await self.rows()
        return max(0.0, self._read_at + MAX_AGE_S - self._clock())

    async def read(self) -> None:
        """Read what has changed. Who asks while it is read gets the same."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(_retrieve)
        await asyncio.shield(self._reading)

    async def rows_with(self, row: Row) -> Rows:
        """The same, read anew where this one is not there: another process may have made it just now.

        One that was missed is not looked for again for `MAX_AGE_S`.
        """
        rows = await self.rows()
        asked_at = self._clock()
        is_missed = asked_at - self._missed.get(row, -math.inf) < MAX_AGE_S
        if row.name in rows.get(row.kind, {}) or is_missed:
            return rows
        await self._read_anew()
        self._missed.pop(row, None)
        if row.name not in self._rows.get(row.kind, {}):
            self._missed[row] = asked_at
            if len(self._missed) > MAX_MISSED:
                del self._missed[next(iter(self._missed))]
        return self._rows

    async def large(self, rows: Sequence[Row]) -> list[str | None]:
        return await self._table.large(rows)

    async def change(self, decide: Callable[[Rows, int], tuple[Edits, _Result]]) -> _Result:
        """Change rows, decided on what is there: anew if another process has changed something meanwhile.

        Args:
            decide: gets the rows and the revision that the change will have; returns what to change, and what
                this returns. What it raises leaves everything as it is.
        """
        async with self._changing:
            for attempt in range(_ATTEMPTS):
                if attempt:  # two that try in step would lose in turn
                    await asyncio.sleep(random.uniform(0, _MOST_PAUSE_S))  # noqa: S311
                async with self._table.turn() if attempt else contextlib.nullcontext():
                    await self.read()
                    expected = self._revision
                    revision = max(self._now_ms(), expected + 1)
                    edits, result = decide(self._rows, revision)
                    if not edits:
                        return result
                    try:
                        is_written = await self._table.write(edits, expected=expected, revision=revision)
                    except Unavailable:  # it may have been written all the same
                        self._read_at = -math.inf
                        raise
                    if is_written:
                        if self._revision == expected:
                            self._apply(Changes(revision, edits))
                        return result
        raise Unavailable("others change the policy store all the time: try again", reason="STORE_BUSY")

    async def _read_anew(self) -> None:
        """Read what has changed by now: a read that is under way may have begun before."""
        if self._reading is not None and not self._reading.done():
            await asyncio.shield(self._reading)
        await self.read()

    async def _read(self) -> None:
        asked_at, since = self._clock(), self._revision
        changes = await self._table.changes(since)
        # Else a change of this process is newer.
        if self._revision == since or changes.revision > self._revision:
            self._apply(changes)
            self._read_at = asked_at

    def _apply(self, changes: Changes) -> None:
        if changes.is_whole:
            self._rows = {}
        for (kind, name), value in changes.rows.items():
            if kind in LARGE:
                continue
            if value is None:
                self._rows.get(kind, {}).pop(name, None)
            else:
                self._rows.setdefault(kind, {})[name] = value
        self._revision = changes.revision


def _retrieve(task: asyncio.Task[None]) -> None:
    """An error is for those who wait, if there still are any."""
    if not task.cancelled():
        task.exception()
