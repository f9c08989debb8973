"""A table whose values are encrypted. Names of rows are not: a key's is a digest."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.process import logs

from .sealing import Damaged, Keyring, Seal, WrongPassphrase
from .table import RULES, SEAL, Changes, Edits, Row, Table

PASSPHRASE = "INFERFLUX_POLICY_STORAGE_PASSPHRASE"  # noqa: S105
TAKES_CLEAR = "INFERFLUX_POLICY_STORAGE_TAKES_CLEAR"

_SEAL_ROW = Row(SEAL, SEAL)
# Others may come first with a change at most so often.
_ATTEMPTS = 20

log = logs.get()


class SealedTable:
    """A `Table` over another one. Without a keyring it refuses values that are encrypted, with one those that
    are not. A new passphrase encrypts all values again.

    Args:
        name: of the table, as errors have it.
        takes_clear: values that are in clear when it is used first are encrypted then.
    """

    def __init__(
        self, table: Table, keyring: Keyring | None, *, name: str, takes_clear: bool = False
    ) -> None:
        self._table = table
        self._keyring = keyring
        self._name = name
        self._takes_clear = takes_clear
        self._seal: Seal | None = None
        self._is_prepared = False
        self._was_sealed = False

    async def open(self) -> None:
        await self._table.open()
        try:
            await self._prepare()
        except (WrongPassphrase, Damaged) as error:
            raise InvalidArgument(f"{PASSPHRASE}: {self._name}: {error}", field=PASSPHRASE) from None
        except Unavailable as error:
            log.warning("the policy storage was not checked at the start", why=error.in_full)

    async def changes(self, since: int) -> Changes:
        try:
            await self._prepare()
            changes = await self._table.changes(since)
            if _SEAL_ROW in changes.rows and not changes.is_whole:
                changes = await self._table.changes(0)
            if changes.is_whole:
                self._seal = await self._seal_of(changes)
                self._is_prepared = self._seal is not None or self._keyring is None
            return replace(changes, rows=await asyncio.to_thread(_decrypted, changes.rows, self._seal))
        except (WrongPassphrase, Damaged) as error:
            raise self._unusable(error) from None

    async def large(self, rows: Sequence[Row]) -> list[str | None]:
        try:
            await self._prepare()
            values = await self._table.large(rows)
            decrypted = _decrypted(dict(zip(rows, values, strict=True)), self._seal)
            return [decrypted[row] for row in rows]
        except (WrongPassphrase, Damaged) as error:
            raise self._unusable(error) from None

    async def write(self, edits: Edits, *, expected: int, revision: int) -> bool:
        try:
            await self._prepare()
        except (WrongPassphrase, Damaged) as error:
            raise self._unusable(error) from None
        return await self._table.write(_encrypted(edits, self._seal), expected=expected, revision=revision)

    def turn(self) -> AbstractAsyncContextManager[None]:
        return self._table.turn()

    async def aclose(self) -> None:
        await self._table.aclose()

    async def _prepare(self) -> None:
        """Find out how the values are encrypted, and encrypt them if that is not as it should be.

        Raises:
            WrongPassphrase: the values are encrypted with another one.
            Damaged: they are encrypted, and there is no passphrase, or the other way round; or one of them is
                not as it was written.
            Unavailable: the table cannot be used now.
        """
        if self._is_prepared:
            return
        for _ in range(_ATTEMPTS):
            changes = await self._table.changes(0)
            seal = await self._seal_of(changes)
            if self._keyring is not None and (seal is None or not seal.is_current):
                seal = await self._encrypt_all(changes, seal, self._keyring)
                changes = Changes(0, {})
            if seal is not None or self._keyring is None:
                await asyncio.to_thread(_decrypted, changes.rows, seal)
                self._seal, self._is_prepared = seal, True
                self._was_sealed = seal is not None
                return
        raise Unavailable("others change the policy store all the time: try again", reason="STORE_BUSY")

    async def _seal_of(self, changes: Changes) -> Seal | None:
        """The seal of all the rows; None if they are in clear."""
        value = changes.rows.get(_SEAL_ROW)
        if value is None:
            if self._was_sealed and changes.rows:
                raise Damaged("its values are not encrypted any more")
            if self._keyring is not None and changes.rows and not self._takes_clear:
                raise Damaged(f"its values are not encrypted: {TAKES_CLEAR} says what to do")
            return None
        if self._keyring is None:
            raise Damaged("its values are encrypted: set the passphrase")
        return await asyncio.to_thread(self._keyring.unlock, _text_of(value, "header"))

    async def _encrypt_all(self, changes: Changes, old: Seal | None, keyring: Keyring) -> Seal | None:
        """Encrypt every value with the passphrase of now; None if others came before."""
        rows = dict(await asyncio.to_thread(_decrypted, changes.rows, old))
        large = [Row(RULES, row.name) for row in rows]
        there = zip(large, await self._table.large(large), strict=True)
        rows |= _decrypted({row: value for row, value in there if value is not None}, old)
        fresh = await asyncio.to_thread(keyring.fresh)
        edits = {
            **await asyncio.to_thread(_encrypted, rows, fresh),
            _SEAL_ROW: _value("header", fresh.header),
        }
        if not await self._table.write(edits, expected=changes.revision, revision=changes.revision + 1):
            return None
        if rows:
            log.info("the policy storage was encrypted with the passphrase of now", n_values=len(rows))
        return fresh

    def _unusable(self, error: Exception) -> Unavailable:
        return Unavailable(f"{self._name} cannot be used", reason="STORE_UNREADABLE", detail=str(error))


def _encrypted(rows: Edits, seal: Seal | None) -> Edits:
    if seal is None:
        return rows
    return {
        row: None
        if value is None
        else _value("sealed", _base64(seal.encrypt(value.encode(), name=row.text.encode())))
        for row, value in rows.items()
    }


def _decrypted(rows: Edits, seal: Seal | None) -> Edits:
    """Raises:
    Damaged: a value is not what was encrypted with this seal for its row.
    """
    if seal is None:
        return rows
    return {
        row: None if value is None else _decrypt(row, value, seal)
        for row, value in rows.items()
        if row != _SEAL_ROW
    }


def _decrypt(row: Row, value: str, seal: Seal) -> str:
    try:
        data = base64.b64decode(_text_of(value, "sealed"), validate=True)
        return seal.decrypt(data, name=row.text.encode()).decode()
    except (Damaged, binascii.Error):
        raise Damaged(f"the row {row.text[:80]!r} was changed by others") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _value(name: str, text: str) -> str:
    return json.dumps({name: text})


def _text_of(value: str, name: str) -> str:
    """Raises:
    Damaged: it is no JSON object with such a text.
    """
    try:
        text = json.loads(value)[name]
    except (ValueError, KeyError, TypeError):
        text = None
    if not isinstance(text, str):
        raise Damaged("its values are not as they were written")
    return text
