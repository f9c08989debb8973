"""Sets of guardrails in a table."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf import json_format

from inferflux.common.errors import Unavailable
from inferflux.policy.guardrails.store import (
    MAX_SETS,
    Index,
    Name,
    Rules,
    Summary,
    changed,
    too_many,
    unknown,
)

from .rows import rules_of, rules_row, summary_of, summary_row
from .table import GUARDRAILS, RULES, Edits, Row
from .view import Rows, View


class TableGuardrails:
    """A `GuardrailStore`. What other processes have changed holds here within a second."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def index(self, known: Index) -> Index:
        rows = (await self._view.rows()).get(GUARDRAILS, {})
        revision = str(self._view.revision)
        if revision == known.revision:
            return known
        return Index.of(revision, {Name.parse(name): summary_of(value) for name, value in rows.items()})

    async def rules(self, names: Sequence[Name]) -> list[Rules | None]:
        if not names:
            return []
        values = await self._view.large([Row(RULES, name.text) for name in names])
        try:
            return [None if value is None else rules_of(value) for value in values]
        except json_format.ParseError as error:
            message = f"guardrails cannot be used here: {error}"
            raise Unavailable(message, reason="GUARDRAILS_UNUSABLE") from None

    async def put(self, name: Name, summary: Summary, rules: Rules) -> int:
        def decide(rows: Rows, revision: int) -> tuple[Edits, int]:
            sets = rows.get(GUARDRAILS, {})
            _check_version(name, sets.get(name.text), summary.version)
            if name.text not in sets and len(sets) >= MAX_SETS:
                raise too_many()
            written = Summary()
            written.CopyFrom(summary)
            written.version = revision
            return dict([summary_row(name, written), rules_row(name, rules)]), revision

        return await self._view.change(decide)

    async def delete(self, name: Name, *, version: int) -> None:
        def decide(rows: Rows, _revision: int) -> tuple[Edits, None]:
            was = rows.get(GUARDRAILS, {}).get(name.text)
            if was is None:
                raise unknown(name)
            _check_version(name, was, version)
            return {Row(GUARDRAILS, name.text): None, Row(RULES, name.text): None}, None

        await self._view.change(decide)


def _check_version(name: Name, was: str | None, version: int) -> None:
    """Raises:
    Aborted: a version is named, and it is not that of the set that is there.
    """
    if version and (was is None or summary_of(was).version != version):
        raise changed(name)
