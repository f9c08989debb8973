"""A table as the storage."""

from __future__ import annotations

from collections.abc import Callable

from inferflux.policy.storage.last_used import RedisLastUsed
from inferflux.policy.storage.table import Table

from .guardrails import TableGuardrails
from .keys import TableKeys
from .limits import TableRateLimits
from .view import View


class TableStorage:
    """A `Storage`: its rows are in memory, and looked at again four times a second while there are calls.

    Args:
        last_used: when keys were.
        now_ms: the time, in ms since 1970.
    """

    def __init__(self, table: Table, last_used: RedisLastUsed, *, now_ms: Callable[[], int]) -> None:
        self._table = table
        self._view = View(table, now_ms=now_ms)
        self.keys = TableKeys(self._view, last_used, now_ms=now_ms)
        self.rate_limits = TableRateLimits(self._view)
        self.guardrails = TableGuardrails(self._view)

    async def open(self) -> None:
        await self._table.open()

    async def check(self) -> None:
        await self._view.read()

    async def aclose(self) -> None:
        await self._table.aclose()
