"""A table in a SQL database: SQLite, PostgreSQL.

inferflux_policy            kind, name, value, revision: a row each; NULL as the value of one that was removed
inferflux_policy_revision   the revision of all of it, in one row
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.process import logs

from .settings import SQL_URL
from .table import LARGE, REMEMBERED_MS, Changes, Edits, Row

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
}
_POOL_SIZE = 5
_BATCH = 500


def _driver_errors() -> tuple[type[Exception], ...]:
    """Errors of a driver that are not in SQLAlchemy's terms: those of connecting."""
    try:
        import asyncpg
    except ModuleNotFoundError:
        return ()
    return (asyncpg.PostgresError, asyncpg.InterfaceError)


_ERRORS: tuple[type[Exception], ...] = (SQLAlchemyError, OSError, *_driver_errors())

log = logs.get()

_metadata = sa.MetaData()
_rows = sa.Table(
    "inferflux_policy",
    _metadata,
    sa.Column("kind", sa.String(32), primary_key=True),
    # As in JSON, without quotes: any name is ASCII then, and different names are so in any collation.
    sa.Column("name", sa.String(2048), primary_key=True),
    sa.Column("value", sa.Text),
    sa.Column("revision", sa.BigInteger, nullable=False, index=True),
)
_state = sa.Table(
    "inferflux_policy_revision",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
)
_REVISION = sa.select(_state.c.revision).where(_state.c.id == 1)
_SMALL = _rows.c.kind.not_in(sorted(LARGE))


class SqlTable:
    """A `Table`.

    Args:
        url: of SQLAlchemy; without a driver: aiosqlite, asyncpg.
        timeout_s: longest wait for an answer.

    Raises:
        InvalidArgument: the URL cannot be used.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._engine = _engine(url, timeout_s)
        self._has_tables = False
        # The connection of a turn, for the task that has it and those that it starts.
        self._held: ContextVar[AsyncConnection | None] = ContextVar("inferflux_policy_turn", default=None)

    async def open(self) -> None:
        try:
            await self.changes(0)
        except Unavailable as error:
            log.warning("the policy storage does not answer", why=error.in_full)

    async def changes(self, since: int) -> Changes:
        async with self._reading() as connection:
            revision = int((await connection.execute(_REVISION)).scalar_one())
            if revision == since:
                return Changes(revision, {})
            asked = sa.select(_rows.c.kind, _rows.c.name, _rows.c.value).where(_SMALL)
            is_whole = not max(0, revision - REMEMBERED_MS) < since < revision
            which = _rows.c.value.is_not(None) if is_whole else _rows.c.revision > since
            found = (await connection.execute(asked.where(which))).all()
        rows = {Row(kind, _unescaped(name)): value for kind, name, value in found}
        return Changes(revision, rows, is_whole=is_whole)

    async def large(self, rows: Sequence[Row]) -> list[str | None]:
        found: dict[Row, str | None] = {}
        async with self._reading() as connection:
            for start in range(0, len(rows), _BATCH):
                names = sa.tuple_(_rows.c.kind, _rows.c.name).in_(
                    [(kind, _escaped(name)) for kind, name in rows[start : start + _BATCH]]
                )
                asked = sa.select(_rows.c.kind, _rows.c.name, _rows.c.value).where(names)
                for kind, name, value in (await connection.execute(asked)).all():
                    found[Row(kind, _unescaped(name))] = value
        return [found.get(row) for row in rows]

    async def write(self, edits: Edits, *, expected: int, revision: int) -> bool:
        written = [
            {"kind": kind, "name": _escaped(name), "value": value, "revision": revision}
            for (kind, name), value in edits.items()
        ]
        keys = [{"of_kind": each["kind"], "of_name": each["name"]} for each in written]
        of_key = sa.and_(_rows.c.kind == sa.bindparam("of_kind"), _rows.c.name == sa.bindparam("of_name"))
        is_expected = sa.and_(_state.c.id == 1, _state.c.revision == expected)
        forgotten = sa.and_(_rows.c.value.is_(None), _rows.c.revision < revision - REMEMBERED_MS)
        async with self._turn_or_connected() as connection:
            # It also locks out other writers until the transaction ends.
            changed = await connection.execute(sa.update(_state).where(is_expected).values(revision=revision))
            if changed.rowcount != 1:
                return False
            await connection.execute(sa.delete(_rows).where(of_key), keys)
            await connection.execute(sa.insert(_rows), written)
            await connection.execute(sa.delete(_rows).where(forgotten))
            await connection.commit()
        return True

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Other writers wait in the database until it ends, as long as they wait for anything."""
        async with self._connected() as connection:
            same = sa.update(_state).where(_state.c.id == 1).values(revision=_state.c.revision)
            await connection.execute(same)
            token = self._held.set(connection)
            try:
                yield
            finally:
                self._held.reset(token)

    async def aclose(self) -> None:
        await self._engine.dispose()

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        if (held := self._held.get()) is not None:
            with _refusing():
                yield held
            return
        async with self._connected() as connection:
            yield await connection.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def _turn_or_connected(self) -> AsyncIterator[AsyncConnection]:
        if (held := self._held.get()) is not None:
            with _refusing():
                yield held
            return
        async with self._connected() as connection:
            yield connection

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        """A connection to a database that has the tables.

        Raises:
            Unavailable: the database is away, too slow, or refuses.
        """
        try:
            with _refusing():
                async with asyncio.timeout(self._timeout_s):
                    if not self._has_tables:
                        await self._make_tables()
                    async with self._engine.connect() as connection:
                        yield connection
        except TimeoutError:
            message = f"the policy database did not answer within {self._timeout_s:g} s"
            raise Unavailable(message, reason="STORE_TIMEOUT") from None

    async def _make_tables(self) -> None:
        try:
            async with self._engine.begin() as connection:
                await connection.run_sync(_metadata.create_all)
                if (await connection.execute(_REVISION)).first() is None:
                    await connection.execute(sa.insert(_state).values(id=1, revision=0))
        except (IntegrityError, ProgrammingError):
            pass  # another process makes them at this moment
        else:
            self._has_tables = True


def _engine(url: str, timeout_s: float) -> AsyncEngine:
    try:
        parsed = make_url(url)
        parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
        is_sqlite = parsed.get_backend_name() == "sqlite"
        if is_sqlite and (parsed.database or ":memory:") == ":memory:":
            raise _bad_url("it names no file")
        if is_sqlite:
            _make_private(parsed.database or "")
        engine = create_async_engine(
            parsed,
            connect_args={"timeout": timeout_s} if is_sqlite else {},
            hide_parameters=True,
            pool_pre_ping=True,
            pool_size=_POOL_SIZE,
            pool_timeout=timeout_s,
        )
    except ModuleNotFoundError as error:
        raise _bad_url(f"the driver {error.name} is not installed") from None
    except SQLAlchemyError as error:
        raise _bad_url(str(error)) from None
    except ValueError:
        raise _bad_url("it is no URL of SQLAlchemy") from None
    if is_sqlite:
        sa.event.listen(engine.sync_engine, "connect", _log_ahead)
    return engine


def _log_ahead(connection: Any, _record: object) -> None:
    """Have SQLite keep a write-ahead log: readers and a writer do not wait for each other then, and a change
    waits for the disk once instead of four times. Where the file system cannot have one, all stays as it was.
    """
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.close()


def _make_private(path: str) -> None:
    """Let a new database be its owner's alone: SQLite would let every user of the machine read it."""
    with contextlib.suppress(OSError):  # it is there, or cannot be made, which connecting tells
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _bad_url(why: str) -> InvalidArgument:
    return InvalidArgument(f"{SQL_URL}: {why}", field=SQL_URL)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Raises:
    Unavailable: the database is away, or refuses.
    """
    try:
        yield
    except TimeoutError:  # an OSError too; the caller that set the limit says which it was
        raise
    except _ERRORS as error:
        raise _away(error) from None


def _away(error: Exception) -> Unavailable:
    why = error.orig if isinstance(error, DBAPIError) else error
    return Unavailable("the policy database does not answer", reason="STORE_UNAVAILABLE", detail=str(why))


def _escaped(name: str) -> str:
    return json.dumps(name)[1:-1]


def _unescaped(name: str) -> str:
    return str(json.loads(f'"{name}"'))
