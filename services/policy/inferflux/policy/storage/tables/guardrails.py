"""Sets of guardrails in a table."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf import json_format

from inferflux.common.contract.errors import Unavailable
from inferflux.policy.decide.guardrails.store import (
    MAX_SETS,
    Index,
    Name,
    Rules,
    Summary,
    Versions,
    changed,
    too_many,
    unknown,
)
from inferflux.policy.storage.table import GUARDRAILS, RULES, Edits, Row

from .rows import rules_of, rules_row, summary_of, summary_row
from .view import Rows, View


class TableGuardrails:
    """A `GuardrailStore`. What other processes have changed holds here within 0.25 s."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._index = Index()
        # The revision and the rows that it was made of, as every request asks for it.
        self._made_of: tuple[int, dict[str, str]] = (0, {})

    async def index(self) -> Index:
        rows, revision = (await self._view.rows()).get(GUARDRAILS, {}), self._view.revision
        if revision != self._made_of[0]:
            if rows != self._made_of[1]:
                self._index = Index.of({Name.parse(name): summary_of(row) for name, row in rows.items()})
            self._made_of = (revision, dict(rows))
        return self._index

    async def rules(self, names: Sequence[Name]) -> list[Rules | None]:
        if not names:
            return []
        values = await self._view.large([Row(RULES, name.text) for name in names])
        try:
            return [None if value is None else rules_of(value) for value in values]
        except json_format.ParseError as error:
            message = f"guardrails cannot be used here: {error}"
            raise Unavailable(message, reason="GUARDRAILS_UNUSABLE") from None

    async def put(self, name: Name, summary: Summary, rules: Rules) -> Versions:
        def decide(rows: Rows, revision: int) -> tuple[Edits, Versions]:
            sets = rows.get(GUARDRAILS, {})
            before = _checked_version(name, sets.get(name.text), summary.version)
            if name.text not in sets and len(sets) >= MAX_SETS:
                raise too_many()
            written = Summary()
            written.CopyFrom(summary)
            written.version = revision
            return dict([summary_row(name, written), rules_row(name, rules)]), Versions(before, revision)

        return await self._view.change(decide)

    async def delete(self, name: Name, *, version: int) -> int:
        def decide(rows: Rows, _revision: int) -> tuple[Edits, int]:
            was = rows.get(GUARDRAILS, {}).get(name.text)
            if was is None:
                raise unknown(name)
            before = _checked_version(name, was, version)
            return {Row(GUARDRAILS, name.text): None, Row(RULES, name.text): None}, before

        return await self._view.change(decide)


def _checked_version(name: Name, was: str | None, version: int) -> int:
    """The version of the set that is there; 0: there is none.

    Raises:
        Aborted: another version is named.
    """
    before = 0 if was is None else summary_of(was).version
    if version not in (0, before):
        raise changed(name)
    return before
