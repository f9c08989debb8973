"""Limits of subjects in a table."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from inferflux.policy.decide.limits.rules import RateLimit
from inferflux.policy.storage.table import LIMIT, Edits, Row

from .rows import limit_of, limit_row
from .view import Rows, View


class TableRateLimits:
    """A `RateLimitStore`. What other processes have changed holds here within 0.25 s."""

    def __init__(self, view: View) -> None:
        self._view = view
        # At which revision it was found out, as every request asks it.
        self._limits_models = (-1, False)

    async def rules(self) -> list[RateLimit]:
        rows = (await self._view.rows()).get(LIMIT, {})
        return [limit_of(subject, rows[subject]) for subject in sorted(rows)]

    async def find_rules(self, subjects: Collection[str]) -> list[RateLimit]:
        rows = (await self._view.rows()).get(LIMIT)
        return [limit_of(subject, rows[subject]) for subject in subjects if subject in rows] if rows else []

    async def limits_models(self) -> bool:
        rows, revision = await self._view.rows(), self._view.revision
        if self._limits_models[0] != revision:
            self._limits_models = (revision, any(name.startswith("model:") for name in rows.get(LIMIT, {})))
        return self._limits_models[1]

    async def set_rule(self, rule: RateLimit) -> RateLimit | None:
        def decide(rows: Rows, _revision: int) -> tuple[Edits, RateLimit | None]:
            was = rows.get(LIMIT, {}).get(rule.subject)
            version = limit_of(rule.subject, was).version if was else 0
            if rule.version and rule.version != version:
                return {}, None
            changed = replace(rule, version=version + 1)
            return dict([limit_row(changed)]), changed

        return await self._view.change(decide)

    async def delete_rule(self, subject: str, *, version: int = 0) -> bool:
        def decide(rows: Rows, _revision: int) -> tuple[Edits, bool]:
            was = rows.get(LIMIT, {}).get(subject)
            if was is None or version not in (0, limit_of(subject, was).version):
                return {}, False
            return {Row(LIMIT, subject): None}, True

        return await self._view.change(decide)
