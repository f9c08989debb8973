"""Tables of rows as storages share them: what has changed since a revision, and writes that come too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.redis import store
from inferflux.policy.storage.guarded import StoreGuard
from inferflux.policy.storage.redis.table import RedisTable
from inferflux.policy.storage.settings import SQL_URL
from inferflux.policy.storage.sql import SqlTable
from inferflux.policy.storage.table import KEY, REMEMBERED_MS, ROLE, RULES, Changes, Row, Table

from .storages import Place

START = 1_760_000_000_000
A, B, C = Row(KEY, "a"), Row(KEY, 'b "ü\u2028\x00'), Row(ROLE, "a")
LARGE = Row(RULES, "acme/")


@pytest.fixture
async def table(place: Place) -> AsyncIterator[Table]:
    redis = store.connect(place.redis_url)
    url = place.variables.get(SQL_URL)
    made: Table = SqlTable(url, timeout_s=10) if url else RedisTable(redis, StoreGuard(timeout_s=10))
    await made.open()
    yield made
    await made.aclose()
    await redis.aclose()


tables = pytest.mark.parametrize("place", ["redis", "sqlite", "postgres"], indirect=True)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_a_database_in_a_file_is_its_owners_alone(table: Table, place: Place) -> None:
    assert await table.write({A: "1"}, expected=0, revision=START)
    assert Path(place.variables[SQL_URL].removeprefix("sqlite:///")).stat().st_mode & 0o777 == 0o600


@tables
async def test_an_empty_table_has_no_revision(table: Table) -> None:
    assert await table.changes(0) == Changes(0, {})
    assert await table.changes(5) == Changes(0, {}, is_whole=True)
    assert await table.large([LARGE]) == [None]


@tables
async def test_who_looks_often_gets_what_has_changed_and_others_get_all(table: Table) -> None:
    assert await table.write({A: "1", B: "1", C: "1"}, expected=0, revision=START)
    assert await table.changes(0) == Changes(START, {A: "1", B: "1", C: "1"}, is_whole=True)
    assert await table.write({A: "2", B: None}, expected=START, revision=START + 10)
    assert await table.changes(START) == Changes(START + 10, {A: "2", B: None})
    assert await table.changes(START + 10) == Changes(START + 10, {})
    assert await table.write({B: "3"}, expected=START + 10, revision=START + 11)
    assert await table.changes(START) == Changes(START + 11, {A: "2", B: "3"})
    late = START + 11 + REMEMBERED_MS
    assert await table.write({A: None}, expected=START + 11, revision=late)
    assert await table.changes(START) == Changes(late, {B: "3", C: "1"}, is_whole=True)
    assert await table.changes(late + 1) == Changes(late, {B: "3", C: "1"}, is_whole=True)


@tables
async def test_who_has_nothing_gets_all_at_any_revision(table: Table) -> None:
    assert await table.write({A: "1", B: "1"}, expected=0, revision=1)
    assert await table.write({B: None}, expected=1, revision=2)
    assert await table.changes(0) == Changes(2, {A: "1"}, is_whole=True)


@tables
async def test_a_write_that_comes_too_late_changes_nothing(table: Table) -> None:
    assert await table.write({A: "1"}, expected=0, revision=START)
    assert not await table.write({A: "2", C: "2"}, expected=0, revision=START + 1)
    assert not await table.write({A: None}, expected=START + 1, revision=START + 2)
    assert await table.changes(0) == Changes(START, {A: "1"}, is_whole=True)


@tables
async def test_large_rows_are_read_by_name_alone(table: Table) -> None:
    assert await table.write({LARGE: "x" * (1 << 20), A: "1"}, expected=0, revision=START)
    assert await table.changes(0) == Changes(START, {A: "1"}, is_whole=True)
    assert await table.large([Row(RULES, "none"), LARGE]) == [None, "x" * (1 << 20)]
    assert await table.write({LARGE: None, A: None}, expected=START, revision=START + 1)
    assert await table.changes(START) == Changes(START + 1, {A: None})
    assert await table.large([LARGE]) == [None]


@tables
async def test_many_rows_change_at_once(table: Table) -> None:
    rows = {Row(KEY, f"{i}"): "1" for i in range(3000)}
    assert await table.write(rows, expected=0, revision=START)
    assert await table.changes(0) == Changes(START, rows, is_whole=True)
    assert await table.write(dict.fromkeys(rows, "2"), expected=START, revision=START + 1)
    assert (await table.changes(START)).rows == dict.fromkeys(rows, "2")


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "sqlite://",
        "sqlite:///:memory:",
        "postgresql+psycopg2://u:a-password@h/d",
        "oracle://u:a-password@h/d",
        "none://u:a-password@h/d",
        "postgresql://u:a-password@h:port/d",
    ],
)
def test_a_url_that_cannot_be_used_is_named_and_its_password_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        SqlTable(url, timeout_s=1)
    assert caught.value.field == SQL_URL
    assert "a-password" not in caught.value.message


@pytest.mark.parametrize("url", ["sqlite:////no/such/folder/db", "postgresql://u:a-password@127.0.0.1:1/d"])
async def test_a_database_that_is_away_is_unavailable(url: str) -> None:
    table = SqlTable(url, timeout_s=5)
    await table.open()
    for call in (table.changes(0), table.large([LARGE]), table.write({A: "1"}, expected=0, revision=1)):
        with pytest.raises(Unavailable) as caught:
            await call
        assert "a-password" not in caught.value.message
    await table.aclose()


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
async def test_who_has_a_turn_comes_before_others_whenever_they_ask(table: Table, place: Place) -> None:
    other = SqlTable(place.variables[SQL_URL], timeout_s=10)
    assert await table.write({A: "1"}, expected=0, revision=START)
    async with table.turn():
        late = asyncio.create_task(other.write({A: "2"}, expected=START, revision=START + 1))
        assert (await other.changes(0)).rows == {A: "1"}
        assert (await table.changes(0)).rows == {A: "1"}
        assert not late.done()
        assert await table.write({A: "3"}, expected=START, revision=START + 2)
        assert (await table.changes(START)).rows == {A: "3"}
    assert not await late
    assert (await other.changes(START)).rows == {A: "3"}
    async with table.turn():
        pass
    assert await other.write({A: "4"}, expected=START + 2, revision=START + 3)
    await other.aclose()
