"""Rows of a table in memory: how old they may be, and what happens when they cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import cast

import pytest

from inferflux.common.contract.errors import Aborted, Unavailable
from inferflux.policy.bootstrap import GENERATED, Bootstrap
from inferflux.policy.decide import keys
from inferflux.policy.decide.guardrails.store import MAX_AGE_S
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.storage.last_used import RedisLastUsed
from inferflux.policy.storage.table import KEY, RULES, Changes, Edits, Row
from inferflux.policy.storage.tables.keys import TableKeys
from inferflux.policy.storage.tables.rows import key_row
from inferflux.policy.storage.tables.view import MAX_MISSED, Rows, View

A, B = Row(KEY, "a"), Row(KEY, "b")


class MemoryTable:
    """A `Table` of one process: it counts its reads, and can be away."""

    def __init__(self) -> None:
        self.rows: dict[Row, str] = {}
        self.revision = 0
        self.n_reads = 0
        self.is_away = False
        self.is_busy = False
        self.is_unconfirmed = False
        self.gate: asyncio.Event | None = None
        self.confirmed: asyncio.Event | None = None

    async def open(self) -> None: ...

    async def changes(self, since: int) -> Changes:
        """What has changed by now, told when the gate is open."""
        self.n_reads += 1
        small = {row: value for row, value in self.rows.items() if row.kind != RULES}
        is_changed = since != self.revision
        changes = Changes(self.revision, small if is_changed else {}, is_whole=is_changed)
        if self.gate is not None:
            await self.gate.wait()
        if self.is_away:
            raise Unavailable("away", reason="STORE_UNAVAILABLE")
        return changes

    async def large(self, rows: Sequence[Row]) -> list[str | None]:
        return [self.rows.get(row) for row in rows]

    async def write(self, edits: Edits, *, expected: int, revision: int) -> bool:
        if self.is_busy or expected != self.revision:
            return False
        for row, value in edits.items():
            self.rows.pop(row, None)
            if value is not None:
                self.rows[row] = value
        self.revision = revision
        if self.confirmed is not None:
            await self.confirmed.wait()
        if self.is_unconfirmed:
            raise Unavailable("written", reason="NOT_REPLICATED")
        return True

    def turn(self) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    async def aclose(self) -> None: ...


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def table() -> MemoryTable:
    return MemoryTable()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def view(table: MemoryTable, clock: Clock) -> View:
    return View(table, now_ms=lambda: 1000, clock=clock)


async def put(table: MemoryTable, row: Row) -> None:
    """As another process would."""
    assert await table.write({row: "{}"}, expected=table.revision, revision=table.revision + 1)


async def until_read(table: MemoryTable, n_reads: int) -> None:
    while table.n_reads < n_reads:
        await asyncio.sleep(0)


async def test_rows_are_read_again_when_they_are_a_quarter_of_a_second_old(
    table: MemoryTable, clock: Clock, view: View
) -> None:
    assert not (await view.rows()).get(KEY)
    await put(table, A)
    clock.now_s += MAX_AGE_S * 0.9
    assert not (await view.rows()).get(KEY)
    assert table.n_reads == 1
    clock.now_s += MAX_AGE_S * 0.2
    assert "a" in (await view.rows())[KEY]
    assert MAX_AGE_S <= 0.5


async def test_it_is_told_when_rows_are_read_again(clock: Clock, view: View) -> None:
    assert await view.due_in_s() == MAX_AGE_S
    clock.now_s += MAX_AGE_S * 0.75
    assert await view.due_in_s() == pytest.approx(MAX_AGE_S * 0.25)
    clock.now_s += MAX_AGE_S
    assert await view.due_in_s() == MAX_AGE_S


async def test_rows_that_cannot_be_read_are_not_assumed(table: MemoryTable, clock: Clock, view: View) -> None:
    await put(table, A)
    await view.rows()
    table.is_away = True
    clock.now_s += MAX_AGE_S
    for _ in range(2):
        with pytest.raises(Unavailable):
            await view.rows()
    table.is_away = False
    assert "a" in (await view.rows())[KEY]


async def test_an_unconfirmed_change_is_seen_with_the_next_call(table: MemoryTable, view: View) -> None:
    await view.rows()
    table.is_unconfirmed = True
    with pytest.raises(Unavailable):
        await view.change(lambda _rows, _revision: ({A: "{}"}, None))
    assert "a" in (await view.rows())[KEY]


class Keys(TableKeys):
    """A `KeyStore` over a table, without the Redis that has when keys were last used."""

    def __init__(self, view: View) -> None:
        super().__init__(view, cast("RedisLastUsed", None), now_ms=lambda: 1000)


async def test_an_unconfirmed_first_key_is_handed_over(
    table: MemoryTable, view: View, tmp_path: Path
) -> None:
    bootstrap = Bootstrap(Keys(view), "", path=tmp_path / "key")
    table.is_unconfirmed = True
    with pytest.raises(Unavailable):
        await bootstrap.ensure()
    table.is_unconfirmed = False
    for _ in range(2):
        await bootstrap.ensure()
    secret = (tmp_path / "key").read_text().strip()
    assert await Keys(view).find(keys.digest_of(secret))


async def test_a_first_key_that_another_process_has_made_meanwhile_is_the_only_one(
    table: MemoryTable, view: View, tmp_path: Path
) -> None:
    bootstrap = Bootstrap(Keys(view), "", path=tmp_path / "key")
    table.is_busy = True  # nothing of it is written
    with pytest.raises(Unavailable):
        await bootstrap.ensure()
    table.is_busy = False
    other = ApiKeyRecord("0f" * 32, "acme", "another", ("admin",), 7)
    assert await Keys(View(table, now_ms=lambda: 1000)).bootstrap(other, mark=GENERATED, only_if_empty=True)
    await bootstrap.ensure()
    assert not (tmp_path / "key").exists()
    assert await Keys(view).all_keys() == [other]


async def test_a_new_key_is_found_whatever_is_read_meanwhile(table: MemoryTable, view: View) -> None:
    record = ApiKeyRecord("0f" * 32, "acme", "new", ("inference",), 7)
    await view.rows()
    table.gate = asyncio.Event()
    reading = asyncio.create_task(view.read())
    await until_read(table, 2)
    assert await table.write(dict([key_row(record)]), expected=0, revision=1)  # as another process would
    finding = [asyncio.create_task(Keys(view).find(record.digest)) for _ in range(50)]
    await asyncio.sleep(0)
    table.gate.set()
    assert await asyncio.gather(*finding) == [record] * 50
    await reading
    assert table.n_reads == 3


async def test_a_new_row_is_found_beside_a_change_of_this_process(table: MemoryTable, view: View) -> None:
    table.confirmed = asyncio.Event()
    changing = asyncio.create_task(view.change(lambda _rows, _revision: ({A: "{}"}, None)))
    while not table.revision:
        await asyncio.sleep(0)
    table.rows[B], table.revision = (
        "{}",
        table.revision + 1,
    )  # another process, before this one has its answer
    table.gate = asyncio.Event()
    finding = asyncio.create_task(view.rows_with(B))
    await until_read(table, 2)
    table.confirmed.set()
    await changing
    table.gate.set()
    assert sorted((await finding)[KEY]) == ["a", "b"]


async def test_a_row_that_is_missing_is_not_looked_for_with_each_call(
    table: MemoryTable, clock: Clock, view: View
) -> None:
    await view.rows()
    for _ in range(50):
        await view.rows_with(A)
    assert table.n_reads == 2
    await put(table, A)
    assert B.name not in (await view.rows_with(B))[KEY]
    assert A.name in (await view.rows_with(A))[KEY]  # a read for another row has brought it
    clock.now_s += MAX_AGE_S
    await put(table, B)
    assert B.name in (await view.rows_with(B))[KEY]


async def test_as_many_missing_rows_are_remembered_as_may_be(table: MemoryTable, view: View) -> None:
    rows = [Row(KEY, str(i)) for i in range(MAX_MISSED + 1)]
    for row in rows:
        await view.rows_with(row)
    n_reads = table.n_reads
    for row in rows[1:]:
        await view.rows_with(row)
    assert table.n_reads == n_reads
    await view.rows_with(rows[0])
    assert table.n_reads == n_reads + 1


async def test_calls_at_once_share_one_read_and_its_error(
    table: MemoryTable, clock: Clock, view: View
) -> None:
    table.gate, table.is_away = asyncio.Event(), True
    calls = [asyncio.create_task(view.rows()) for _ in range(50)]
    await asyncio.sleep(0)
    calls[0].cancel()
    table.gate.set()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(ended[0], asyncio.CancelledError)
    assert all(isinstance(each, Unavailable) for each in ended[1:])
    assert table.n_reads == 1


async def test_a_change_is_seen_here_at_once_and_its_revision_rises(table: MemoryTable, view: View) -> None:
    for row in (A, B):
        await view.change(lambda _rows, _revision, row=row: ({row: "{}"}, None))  # type: ignore[misc]
        assert row.name in (await view.rows())[KEY]
    assert table.revision == view.revision == 1001
    await view.change(lambda _rows, _revision: ({A: None}, None))
    assert list((await view.rows())[KEY]) == ["b"]


async def test_a_change_is_decided_anew_when_another_came_first(table: MemoryTable, view: View) -> None:
    decided: list[list[str]] = []

    def decide(rows: Rows, _revision: int) -> tuple[Edits, str]:
        decided.append(sorted(rows.get(KEY, {})))
        if len(decided) == 1:
            table.rows[A], table.revision = "{}", 5  # another process, between the decision and the write
        return {B: "{}"}, "done"

    assert await view.change(decide) == "done"
    assert decided == [[], ["a"]]
    assert sorted(row.name for row in table.rows) == ["a", "b"]


async def test_a_change_gives_up_when_others_always_come_first(table: MemoryTable, view: View) -> None:
    table.is_busy = True
    with pytest.raises(Unavailable) as caught:
        await view.change(lambda _rows, _revision: ({A: "{}"}, None))
    assert caught.value.reason == "STORE_BUSY"
    assert table.rows == {}


async def test_a_decision_that_is_refused_changes_nothing(table: MemoryTable, view: View) -> None:
    def decide(_rows: Rows, _revision: int) -> tuple[Edits, None]:
        raise Aborted("no", reason="NO")

    with pytest.raises(Aborted):
        await view.change(decide)
    assert table.revision == 0


async def test_large_rows_stay_in_the_table(table: MemoryTable, clock: Clock, view: View) -> None:
    row = Row(RULES, "a/")
    await view.change(lambda _rows, _revision: ({row: "{}"}, None))
    assert RULES not in await view.rows()
    clock.now_s += MAX_AGE_S
    assert RULES not in await view.rows()
    assert await view.large([row]) == ["{}"]


async def test_a_table_that_was_emptied_is_empty_here_too(
    table: MemoryTable, clock: Clock, view: View
) -> None:
    await put(table, A)
    await view.rows()
    table.rows, table.revision = {}, 0
    clock.now_s += MAX_AGE_S
    assert not (await view.rows()).get(KEY)
