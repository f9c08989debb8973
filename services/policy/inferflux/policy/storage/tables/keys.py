"""Keys and roles in a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from inferflux.common.contract.errors import Unavailable
from inferflux.common.process import logs
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.decide.roles import BUILTIN, Role
from inferflux.policy.storage.last_used import RedisLastUsed
from inferflux.policy.storage.table import KEY, MARK, ROLE, Edits, Row

from .rows import key_of, key_row, moved_row, moved_to, role_row
from .view import Rows, View

log = logs.get()


class TableKeys:
    """A `KeyStore`. What other processes have changed holds here within 0.25 s.

    Args:
        now_ms: the time, in ms since 1970.
    """

    def __init__(self, view: View, last_used: RedisLastUsed, *, now_ms: Callable[[], int]) -> None:
        self._view = view
        self._last_used = last_used
        self._now_ms = now_ms

    async def find(self, digest: str) -> ApiKeyRecord | None:
        """The key that has a secret of this digest: the gateway's hot path."""
        rows = (await self._view.rows_with(Row(KEY, digest))).get(KEY, {})
        value = rows.get(digest)
        if value is None:
            return None
        if (record := key_of(digest, value)) is not None:
            return record
        present = moved_to(value, now_unix_ms=self._now_ms())
        return None if present is None or present not in rows else key_of(present, rows[present])

    async def due_in_s(self) -> float:
        return await self._view.due_in_s()

    async def find_by_id(self, key_id: str) -> ApiKeyRecord | None:
        return _by_id(await self._view.rows(), key_id)

    async def all_keys(self, *, tenant: str = "") -> list[ApiKeyRecord]:
        rows = (await self._view.rows()).get(KEY, {})
        records = [record for digest, value in rows.items() if (record := key_of(digest, value))]
        wanted = (r for r in records if not tenant or r.tenant == tenant)
        return sorted(wanted, key=lambda r: (r.created_unix_ms, r.key_id))

    async def add(self, record: ApiKeyRecord) -> None:
        await self._view.change(lambda _rows, _revision: (dict([key_row(record)]), None))

    async def replace(self, record: ApiKeyRecord) -> bool:
        return await self.rotate(record, old=record)

    async def rotate(self, record: ApiKeyRecord, *, old: ApiKeyRecord) -> bool:
        return await self._view.change(lambda rows, _revision: _replaced(rows, record, old))

    async def revoke(self, key_id: str, *, version: int) -> bool:
        is_gone = await self._view.change(lambda rows, _revision: _without(rows, key_id, version))
        if not is_gone:
            return False
        try:
            await self._last_used.forget(key_id)
        except Unavailable as error:  # the key is gone, which is what was asked for
            log.warning("when a revoked key was last used stays", key_id=key_id, why=error.in_full)
        return True

    async def note_used(self, used_unix_ms: Mapping[str, int]) -> None:
        await self._last_used.note(used_unix_ms)

    async def last_used(self) -> dict[str, int]:
        return await self._last_used.all()

    async def find_roles(self, names: Collection[str]) -> list[Role]:
        rows = (await self._view.rows()).get(ROLE, {})
        found = {name: Role.from_json(name, rows[name]) for name in names if name in rows}
        return [role for name in names if (role := BUILTIN.get(name) or found.get(name))]

    async def all_roles(self) -> list[Role]:
        rows = (await self._view.rows()).get(ROLE, {})
        return [*BUILTIN.values(), *(Role.from_json(name, rows[name]) for name in sorted(rows))]

    async def put_role(self, role: Role) -> bool:
        def decide(rows: Rows, _revision: int) -> tuple[Edits, bool]:
            was = rows.get(ROLE, {}).get(role.name)
            version = Role.from_json(role.name, was).version if was else 0
            return (dict([role_row(role)]), True) if version == role.version - 1 else ({}, False)

        return await self._view.change(decide)

    async def delete_role(self, name: str, *, version: int) -> bool:
        def decide(rows: Rows, _revision: int) -> tuple[Edits, bool]:
            was = rows.get(ROLE, {}).get(name)
            is_it = was is not None and Role.from_json(name, was).version == version
            return ({Row(ROLE, name): None}, True) if is_it else ({}, False)

        return await self._view.change(decide)

    async def is_bootstrapped(self, mark: str) -> bool:
        return mark in (await self._view.rows()).get(MARK, {})

    async def bootstrap(self, record: ApiKeyRecord, *, mark: str, only_if_empty: bool) -> bool:
        def decide(rows: Rows, _revision: int) -> tuple[Edits, bool]:
            if mark in rows.get(MARK, {}):
                return {}, False
            marked = {Row(MARK, mark): "{}"}
            if only_if_empty and rows.get(KEY):
                return marked, False
            return marked | dict([key_row(record)]), True

        return await self._view.change(decide)


def _by_id(rows: Rows, key_id: str) -> ApiKeyRecord | None:
    there = ((digest, value) for digest, value in rows.get(KEY, {}).items() if f'"{key_id}"' in value)
    records = (key_of(digest, value) for digest, value in there)
    return next((record for record in records if record is not None and record.key_id == key_id), None)


def _replaced(rows: Rows, record: ApiKeyRecord, old: ApiKeyRecord) -> tuple[Edits, bool]:
    """The row of a key as it is now, and whether it was the one before."""
    value = rows.get(KEY, {}).get(old.digest)
    was = key_of(old.digest, value) if value is not None else None
    if was is None or was.key_id != record.key_id or was.version != record.version - 1:
        return {}, False
    edits: dict[Row, str | None] = {}
    if record.digest != old.digest:
        if was.previous_digest:
            edits[Row(KEY, was.previous_digest)] = None
        edits[Row(KEY, old.digest)] = None
        if until := record.previous_until_unix_ms:
            edits |= dict([moved_row(old.digest, to=record.digest, until_unix_ms=until)])
    return edits | dict([key_row(record)]), True


def _without(rows: Rows, key_id: str, version: int) -> tuple[Edits, bool]:
    record = _by_id(rows, key_id)
    if record is None or record.version != version:
        return {}, False
    secrets = [record.digest, record.previous_digest]
    return {Row(KEY, digest): None for digest in secrets if digest}, True
