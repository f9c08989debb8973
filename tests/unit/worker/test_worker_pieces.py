"""State that leaves an engine in pieces and comes to another, whatever happens on the way."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.kv_states import IDENTITY
from harness.worker import batch_item
from harness.worker_world import WorkerWorld, answer_to
from hypothesis import given, settings
from hypothesis import strategies as st

from inferflux.common.contract.callers.cache_scope import cache_scope_of, prefix_tokens
from inferflux.v1 import engine_pb2, worker_pb2
from inferflux.worker.engine.kv.prefix_sharing import FULL, PrefixSharing, Sharing
from inferflux.worker.engine.memory import export, exports, imports
from inferflux.worker.engine.memory.export import Export, n_due
from inferflux.worker.engine.plan.facets import Arrival
from inferflux.worker.engine.tiers.disk import Disk

PROMPT = [(7 * i) % 40 for i in range(60)]
MEMORY = 1 << 20
ANSWER = 12
CHECKPOINTS = PrefixSharing(Sharing.CHECKPOINTS, "it has a state")


class Side(WorkerWorld):
    """A worker of one machine, and what its engine says of pieces."""

    def __init__(
        self, root: Path, *, sharing: PrefixSharing = FULL, cells: int = 300, has_prefix_cache: bool = True
    ) -> None:
        self.disk = Disk(root, IDENTITY, is_tier=False)
        self.pieces: list[engine_pb2.EnginePiece] = []
        self.imported: list[engine_pb2.EngineImported] = []
        self.prefilled = 0
        super().__init__(
            slots=2,
            sequences=5,
            cells=cells,
            host_bytes=MEMORY,
            disk=self.disk,
            disk_bytes=MEMORY,
            sharing=sharing,
            has_prefix_cache=has_prefix_cache,
        )

    def _take_report(self) -> None:
        super()._take_report()
        for report in self.reports:
            self.pieces += report.pieces
            self.imported += report.imported
            self.prefilled += report.stats.prefill_tokens
            del report.pieces[:], report.imported[:]

    @property
    def folder(self) -> Path:
        return self.disk.exchange_path / "pieces"

    def files(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.exists() else []

    def export(self, number: int = 1, **fields: Any) -> None:
        command = engine_pb2.EngineExport(id=number, **fields)
        self.engine.obey(engine_pb2.EngineCommand(export_state=command))

    def take(self, path: Path | str, number: int = 1, key: str = "t.a", **fields: Any) -> None:
        command = engine_pb2.EngineImport(id=number, key=key, path=str(path), **fields)
        self.engine.obey(engine_pb2.EngineCommand(import_state=command))

    def ask(self, number: int = 1, prompt: list[int] = PROMPT) -> int:
        """How many tokens of a state that is to come are there already."""
        request = item(prompt=prompt).request
        self.take("", number, token_ids=prefix_tokens(request), cache_scope=cache_scope_of(request))
        self.until(lambda: any(each.id == number for each in self.imported))
        return next(each.tokens for each in self.imported if each.id == number)

    def leave(self) -> None:
        self.engine.cancel("t.a", is_silent=True, leaves_state=True)

    def until(self, condition: Callable[[], bool]) -> None:
        until_s = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < until_s, (self.pieces, self.imported)
            self.settle()
            # On a busy machine the answer would be over before a thread has made a file, or written one.
            files = self.engine._tiers.pieces
            if files._preparing is not None:
                wait([files._preparing], 20)
            files.wait_for_writes(20)
            time.sleep(min(self.engine.idle_s() or 0, 0.001))

    def emitted(self, request_id: str = "a") -> list[int]:
        return super().emitted(request_id)

    def leaks_nothing(self) -> None:
        """Check it once no request is here."""
        memory = self.engine._memory
        self.settle()
        memory.prefixes.clear()
        assert memory.ledger.used == self.cache.used == 0
        assert memory.free_seq_ids == self.cache.sequences
        assert memory.prefixes._awaited == set()
        self.engine._tiers.pieces.wait_for_writes(20)
        self.engine._tiers.pieces.drop_spares()
        self.until(lambda: not self.files())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "ifx_kv_0").mkdir(mode=0o700)
    return tmp_path / "ifx_kv_0" / "fleet"


@pytest.fixture
def sides(root: Path) -> Iterator[tuple[Side, Side]]:
    both = Side(root), Side(root)
    yield both
    for side in both:
        side.engine.close()


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (export, exports):
        monkeypatch.setattr(module, "PIECE", 16)
        monkeypatch.setattr(module, "NEARLY_ALL", 4)
    monkeypatch.setattr(exports, "_FEWEST", 4)
    monkeypatch.setattr(exports, "_LOOK_EVERY_S", 0.0)


def item(name: str = "a", prompt: list[int] = PROMPT, *, slot: int = 0) -> worker_pb2.BatchItem:
    return batch_item(name, model="m", prompt=prompt, max_tokens=ANSWER, slot=slot)


def going_on(generated: list[int], prompt: list[int] = PROMPT) -> worker_pb2.BatchItem:
    made = item(prompt=prompt)
    made.request.epoch = 2
    made.request.generated_token_ids.extend(generated)
    return made


def begun(side: Side, n: int = 2) -> None:
    """Have a request run for a while."""
    side.submit(item())
    side.until(lambda: len(side.emitted()) >= n)


def caught_up(side: Side) -> None:
    """Have most of a request leave while it runs."""
    begun(side)
    side.export(key="t.a")
    side.until(lambda: any(piece.is_caught_up for piece in side.pieces))


def has_left(side: Side) -> None:
    """Have a request leave, with its state."""
    begun(side)
    side.export(key="t.a")
    side.leave()
    side.until(lambda: bool(side.pieces) and side.pieces[-1].is_last)


def carried(source: Side, target: Side) -> None:
    """All that has left comes in order."""
    for piece in source.pieces:
        path = source.folder / piece.name if piece.name else ""
        target.take(path, n_past=piece.n_past, is_over=piece.is_last)
    source.pieces.clear()


def goes_on(source: Side, target: Side) -> None:
    """A request that has left goes on with its state, and nothing of it is left over."""
    carried(source, target)
    target.submit(going_on(source.emitted()))
    target.until(lambda: not target.table.has_running)
    assert source.emitted() + target.emitted() == answer_to(PROMPT, ANSWER)
    assert target.prefilled == 1
    for side in (source, target):
        side.leaks_nothing()


@given(st.integers(-10, 100), st.booleans(), st.booleans())
def test_short_pieces_leave_only_to_catch_up(waiting: int, is_complete: bool, is_near: bool) -> None:
    due = n_due(waiting, is_complete=is_complete, is_near=is_near)
    assert 0 <= due <= max(waiting, 0)
    if waiting >= export.PIECE:
        assert due == export.PIECE
    elif not is_complete:
        assert due == 0
    elif is_near:
        assert due in (0, max(waiting, 0))
        assert waiting - due < export.NEARLY_ALL
    else:
        assert due == max(waiting, 0)


@given(st.lists(st.integers(1, 1000), max_size=10), st.integers(1, 1000))
def test_one_piece_may_be_unread_whatever_its_size(sizes: list[int], size: int) -> None:
    made = Export(1, "", "", np.zeros(0, np.int32), 0, 0.0, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_MOST_UNREAD_BYTES", 1000)
        for number, n_bytes in enumerate(sizes):
            if made.has_room(n_bytes):
                made.unread[str(number)] = n_bytes
        assert sum(made.unread.values()) <= 1000
        assert made.has_room(size) == (not made.unread or sum(made.unread.values()) + size <= 1000)


def test_it_goes_on_where_it_was(sides: tuple[Side, Side]) -> None:
    source, target = sides
    source.export(key="t.a")
    source.submit(item())
    source.until(lambda: any(piece.is_caught_up for piece in source.pieces))
    assert sum(piece.is_caught_up for piece in source.pieces) == 1
    source.until(lambda: len(source.emitted()) >= 8)
    source.leave()
    source.until(lambda: source.pieces[-1].is_last)
    goes_on(source, target)


def test_no_more_is_written_than_may_lie_unread(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = sides
    begun(source)
    source.engine.deschedule(engine_pb2.EngineDeschedule(key="t.a", epoch=1, run=1))
    monkeypatch.setattr(export, "_MOST_UNREAD_BYTES", 1)
    source.export(key="t.a")
    for _ in range(2):
        source.until(lambda: len(source.pieces) == 1)
        source.settle()
        assert len([path for path in source.files() if not path.suffix]) == len(source.pieces) == 1
        path = source.folder / source.pieces[0].name
        carried(source, target)
        target.until(lambda gone=path: not gone.exists())  # type: ignore[misc]
    # It leaves while one is unread: the rest goes from the prefix that stays, as the others are read.
    source.until(lambda: len(source.pieces) == 1)
    source.leave()
    while not any(piece.is_last for piece in source.pieces):
        carried(source, target)
        target.settle()
        source.settle()
    goes_on(source, target)


def test_an_export_that_is_not_read_ends_and_its_request_goes_on(sides: tuple[Side, Side]) -> None:
    source, _ = sides
    caught_up(source)
    source.ahead_s += 11
    source.until(lambda: source.pieces[-1].is_last)
    assert source.pieces[-1].error == "no piece was read for 10 s"
    source.until(lambda: not source.table.has_running)
    assert source.emitted() == answer_to(PROMPT, ANSWER)
    source.leaks_nothing()


def test_the_last_pieces_are_removed_where_they_are_not_read(sides: tuple[Side, Side]) -> None:
    source, _ = sides
    has_left(source)
    assert source.files()
    source.ahead_s += 11
    source.settle()
    source.leaks_nothing()
    assert len(source.engine.pieces.exports) == 0


def test_a_piece_that_could_not_be_written_ends_an_export_whose_request_has_left(
    sides: tuple[Side, Side],
) -> None:
    source, _ = sides
    begun(source)
    may_write = threading.Event()
    source.engine._tiers.pieces._writer.submit(may_write.wait)
    source.export(key="t.a")
    source.leave()
    lost, *_ = sorted(source.files())
    lost.unlink()
    may_write.set()
    source.until(lambda: bool(source.pieces) and source.pieces[-1].is_last)
    assert "not written" in source.pieces[-1].error
    source.leaks_nothing()


def test_an_import_outlives_the_end_of_the_one_before_it(sides: tuple[Side, Side]) -> None:
    source, target = sides
    caught_up(source)
    paths = [source.folder / piece.name for piece in source.pieces if piece.name]
    doubled = paths[0].with_name("doubled")
    doubled.write_bytes(paths[0].read_bytes())
    target.take("", 1)
    target.take(paths[0], 2)
    target.take(doubled, 1)
    target.take("", 1, is_over=True)
    for path in paths[1:]:
        target.take(path, 2)
    target.until(lambda: bool(target.imported) and target.imported[-1].tokens >= len(PROMPT))
    assert [each.id for each in target.imported if each.error] == [1]
    assert not doubled.exists()
    source.export(is_over=True)
    target.take("", 2, is_over=True)
    source.until(lambda: not source.table.has_running)
    target.settle()
    target.ahead_s += 31
    for side in sides:
        side.leaks_nothing()


def test_an_import_outlives_a_request_that_begins_alike(sides: tuple[Side, Side]) -> None:
    source, target = sides
    caught_up(source)
    paths = [source.folder / piece.name for piece in source.pieces if piece.name]
    target.take(paths[0])
    target.until(lambda: bool(target.imported))
    for other in (PROMPT[:10], [*PROMPT[:12], 1]):
        target.submit(item("b", other))
        target.until(lambda: not target.table.has_running)
    for path in paths[1:]:
        target.take(path)
    target.until(lambda: target.imported[-1].tokens >= len(PROMPT))
    assert not any(each.error for each in target.imported)


def test_a_cached_prompt_outlives_another_one_of_its_length(sides: tuple[Side, Side]) -> None:
    side = sides[0]
    for last in (1, 2):
        side.submit(item("b", [*PROMPT, last]))
        side.until(lambda: not side.table.has_running)
    scope = cache_scope_of(item("b").request)
    known = side.engine._memory.prefixes.known(scope, np.array([*PROMPT, 1, 0], np.int32))
    assert known == len(PROMPT) + 1


def test_an_import_whose_request_does_not_come_ends(sides: tuple[Side, Side]) -> None:
    source, target = sides
    caught_up(source)
    sent = source.pieces[-1].n_past or source.pieces[-2].n_past
    carried(source, target)
    target.until(lambda: bool(target.imported) and target.imported[-1].tokens >= sent)
    target.ahead_s += 31
    target.settle()
    assert "did not come" in target.imported[-1].error
    source.export(is_over=True)
    source.until(lambda: not source.table.has_running)
    target.ahead_s += 31
    target.settle()
    for side in sides:
        side.leaks_nothing()


def test_a_request_in_host_memory_leaves_whole(sides: tuple[Side, Side]) -> None:
    source, target = sides
    begun(source)
    sequence = source.engine.residents["t.a"]
    source.engine._planning.evict(sequence)
    assert not sequence.is_loaded
    source.export(key="t.a")
    source.until(lambda: bool(source.pieces))
    assert [(piece.first, piece.n_past) for piece in source.pieces] == [(0, sequence.position)]
    assert source.pieces[0].is_caught_up
    source.leave()
    source.until(lambda: source.pieces[-1].is_last)
    goes_on(source, target)


def test_state_that_cannot_be_divided_leaves_with_its_request(root: Path) -> None:
    sides = source, target = Side(root, sharing=CHECKPOINTS), Side(root, sharing=CHECKPOINTS)
    begun(source)
    source.export(key="t.a")
    source.until(lambda: bool(source.pieces))
    assert [(piece.name, piece.is_caught_up) for piece in source.pieces] == [("", True)]
    source.leave()
    source.until(lambda: source.pieces[-1].is_last)
    assert source.pieces[-1].first == 0
    goes_on(source, target)
    for side in sides:
        side.engine.close()


def test_a_prefix_leaves_from_host_memory(sides: tuple[Side, Side]) -> None:
    source, target = sides
    begun(source)
    source.until(lambda: not source.table.has_running)
    source.engine._memory.prefixes.make_room(ids=5)
    scope = cache_scope_of(item().request)
    source.export(token_ids=np.array(PROMPT, "<i4").tobytes(), cache_scope=scope)
    source.until(lambda: bool(source.pieces))
    assert [(piece.first, piece.is_last, piece.error) for piece in source.pieces] == [(0, True, "")]
    assert source.pieces[0].n_past >= len(PROMPT)
    carried(source, target)
    target.submit(going_on([]))
    target.until(lambda: not target.table.has_running)
    assert target.emitted() == answer_to(PROMPT, ANSWER)
    assert target.prefilled == 1
    for side in sides:
        side.leaks_nothing()


def test_a_prefix_that_leaves_the_cache_meanwhile_ends_its_export(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = sides
    begun(source)
    source.until(lambda: not source.table.has_running)
    monkeypatch.setattr(export, "_MOST_UNREAD_BYTES", 1)
    scope = cache_scope_of(item().request)
    source.export(token_ids=np.array(PROMPT, "<i4").tobytes(), cache_scope=scope)
    source.until(lambda: bool(source.pieces))
    source.engine._memory.prefixes.clear()
    source.until(lambda: source.pieces[-1].is_last)
    assert source.pieces[-1].error == "no more of the prefix is cached"
    source.leaks_nothing()


def test_a_deterministic_request_and_one_that_tells_logits_take_nothing(sides: tuple[Side, Side]) -> None:
    source, target = sides
    has_left(source)
    carried(source, target)
    scored = going_on([])
    scored.request.params.prompt_logprobs = 1
    target.submit(scored)
    target.until(lambda: bool(target.imported) and bool(target.imported[-1].error))
    assert target.imported[-1].error == "the request computes all of its prompt"


def test_the_numbers_of_exports_and_imports_are_bounded(sides: tuple[Side, Side]) -> None:
    source, _ = sides
    begun(source, n=1)
    for number in range(1, 66):
        source.export(number, key="t.none")
        source.take("", number, f"t.{number}")
    source.settle()
    assert [piece.id for piece in source.pieces] == [65]
    assert [each.id for each in source.imported] == [65]
    assert source.pieces[0].is_last
    assert source.pieces[0].error == source.imported[0].error.replace("imports", "exports")
    for number in range(1, 65):
        source.export(number, is_over=True)


@pytest.mark.parametrize("is_evicted", [False, True])
def test_what_is_cached_already_does_not_come_again(sides: tuple[Side, Side], is_evicted: bool) -> None:
    source, target = sides
    target.submit(item("other", PROMPT[:40]))
    target.until(lambda: not target.table.has_running)
    known = target.ask()
    assert known == 40
    target.engine._memory.prefixes.make_room(ids=4)  # they are awaited
    assert target.engine._memory.prefixes.known(cache_scope_of(item().request), np.array(PROMPT)) == 40
    begun(source)
    source.export(key="t.a", known_tokens=known)
    source.leave()
    source.until(lambda: bool(source.pieces) and source.pieces[-1].is_last)
    assert source.pieces[0].first == known
    if is_evicted:
        target.engine._memory.prefixes.clear()
    carried(source, target)
    target.prefilled = 0
    target.submit(going_on(source.emitted()))
    target.until(lambda: not target.table.has_running)
    assert source.emitted() + target.emitted() == answer_to(PROMPT, ANSWER)
    assert (target.prefilled == 1) is not is_evicted
    if is_evicted:
        assert "it begins at 40, and 0 tokens are here" in target.imported[-1].error
    for side in sides:
        side.leaks_nothing()


def test_little_that_is_cached_or_cannot_be_gone_on_with_is_not_counted(root: Path) -> None:
    for side, n_cached in (Side(root), 10), (Side(root, sharing=CHECKPOINTS), 40):
        side.submit(item("other", [*PROMPT[:n_cached], 1]))
        side.until(lambda side=side: not side.table.has_running)  # type: ignore[misc]
        assert side.ask() == 0
        side.take("", is_over=True)
        side.engine.close()


def test_a_request_that_goes_on_without_its_state_says_so_to_who_asks(sides: tuple[Side, Side]) -> None:
    _, target = sides
    target.engine.pieces._imports._imports["t.a"] = over = imports._Import(None, "t.a", Arrival(0.0))
    over.arrival.is_over = True
    assert target.ask() == 0
    assert target.imported[-1].error == "its request goes on without it"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_piece_that_its_request_does_not_need_counts_as_taken(
    sides: tuple[Side, Side], is_late: bool
) -> None:
    """The source has computed more than the request had when it was moved."""
    source, target = sides
    caught_up(source)
    source.until(lambda: len(source.emitted()) >= 8)
    source.leave()
    source.until(lambda: source.pieces[-1].is_last)
    *before, last = [piece for piece in source.pieces if piece.name]
    assert before[-1].n_past >= len(PROMPT)
    for piece in before:
        target.take(source.folder / piece.name, n_past=piece.n_past)
    target.until(lambda: bool(target.imported) and target.imported[-1].tokens == before[-1].n_past)
    target.submit(going_on(source.emitted()[:1]))
    target.engine.obey(target._host.sent.popleft())
    may_read = threading.Event()
    target.engine._tiers.pieces._reader.submit(may_read.wait)
    imports = target.engine.pieces._imports
    if is_late:
        imports.poll()
    target.take(source.folder / last.name, n_past=last.n_past, is_over=True)
    imports.poll()
    told = [(each.tokens, each.error) for each in imports.news]
    may_read.set()
    assert told[-1:] == [(last.n_past, "")]
    target.until(lambda: not target.table.has_running)
    assert source.emitted()[:1] + target.emitted() == answer_to(PROMPT, ANSWER)


def test_a_wait_for_the_last_piece_is_of_the_time_for_copies(sides: tuple[Side, Side]) -> None:
    source, target = sides
    has_left(source)
    may_read = threading.Event()
    target.engine._tiers.pieces._reader.submit(may_read.wait)
    carried(source, target)
    target.submit(going_on(source.emitted()))
    target.settle()
    saved = target.engine._saved
    saved.begin_step(0.1)
    target.engine.pieces._imports.poll()
    left_s = saved.copying_left_s
    may_read.set()
    assert left_s < 0.1
    target.until(lambda: not target.table.has_running)
    assert source.emitted() + target.emitted() == answer_to(PROMPT, ANSWER)


def test_what_comes_for_a_request_is_evicted_after_what_no_request_waits_for(
    sides: tuple[Side, Side],
) -> None:
    source, target = sides
    for number in range(3):  # used more often than what comes
        for _ in range(2):
            other = f"o{number}{_}"
            target.submit(item(other, [number] * 40))
            target.until(lambda: not target.table.has_running)
    has_left(source)
    carried(source, target)
    target.until(lambda: bool(target.imported) and target.imported[-1].tokens > len(PROMPT))
    target.engine._memory.prefixes.make_room(cells=220)
    scope = cache_scope_of(item().request)
    known = target.engine._memory.prefixes.known(scope, np.array([*PROMPT, 1], np.int32))
    assert known == len(PROMPT)
    target.engine._memory.prefixes.make_room(cells=300)  # but before any request
    assert target.engine._memory.prefixes.known(scope, np.array([*PROMPT, 1], np.int32)) == 0


def test_nothing_of_the_exchange_is_left_once_all_engines_have_ended(root: Path) -> None:
    side = Side(root)
    begun(side)
    side.export(key="t.a")
    side.until(lambda: any(piece.is_caught_up for piece in side.pieces))
    (side.folder / "of-a-dead-engine").touch()
    (side.folder.with_name("sockets")).mkdir()
    (side.folder.with_name("sockets") / "of-a-dead-worker").touch()
    side.engine.close()
    assert list(root.parent.iterdir()) == []


def test_a_folder_that_is_gone_ends_the_export_alone(sides: tuple[Side, Side], root: Path) -> None:
    source, _ = sides
    begun(source)
    shutil.rmtree(root)
    source.export(key="t.a")
    source.until(lambda: bool(source.pieces))
    assert source.pieces[0].is_last
    assert source.pieces[0].error
    source.until(lambda: not source.table.has_running)
    assert source.emitted() == answer_to(PROMPT, ANSWER)


class Shuffle:
    """Two engines between which pieces are carried, lost and doubled in any order."""

    def __init__(self, root: Path, *, cells: int, prompt: list[int]) -> None:
        self.source = Side(root, cells=cells)
        self.target = Side(root, cells=cells)
        self._prompt = prompt
        self._waiting: list[engine_pb2.EnginePiece] = []
        self._number = 0
        self.source.submit(item(prompt=prompt))
        self.source.settle()
        self.export()

    def do(self, what: str) -> None:
        self._waiting += self.source.pieces
        self.source.pieces.clear()
        getattr(self, what)()

    def go_on(self) -> None:
        self.source.settle()
        self.source.engine._tiers.pieces.wait_for_writes(20)

    def go_on_there(self) -> None:
        self.target.settle()
        self.target.engine._tiers.pieces._reader.submit(int).result()

    def export(self) -> None:
        self._number += 1
        self.source.export(self._number, key="t.a")

    def ask(self) -> None:
        self._number += 1
        known = self.target.ask(self._number, self._prompt)
        self.source.export(self._number, key="t.a", known_tokens=known)

    def end_export(self) -> None:
        self.source.export(self._number, is_over=True)

    def end_import(self) -> None:
        self.target.take("", self._number, is_over=True)

    def evict(self) -> None:
        self.source.engine._memory.prefixes.make_room(ids=5)

    def evict_there(self) -> None:
        self.target.engine._memory.prefixes.clear()

    def leave(self) -> None:
        self.source.leave()

    def swap_out(self) -> None:
        sequence = self.source.engine.residents.get("t.a")
        if sequence is not None and sequence.is_loaded:
            self.source.engine._planning.evict(sequence)

    def carry(self, times: int = 1) -> None:
        if self._waiting:
            piece = self._waiting.pop(0)
            for _ in range(times if piece.name else 0):
                self.target.take(self.source.folder / piece.name, self._number)

    def double(self) -> None:
        self.carry(2)

    def lose(self) -> None:
        if self._waiting:
            self._waiting.pop(0)

    def finish(self) -> None:
        """Let the target answer, and everything that waits for something give up."""
        source, target = self.source, self.target
        source.leave()
        generated = source.emitted()
        if len(generated) < ANSWER:
            target.submit(going_on(generated, self._prompt))
            target.until(lambda: not target.table.has_running)
        assert generated + target.emitted() == answer_to(self._prompt, ANSWER)
        for side in (source, target):
            for _ in range(4):
                side.ahead_s += 31
                side.engine._tiers.pieces.wait_for_writes(20)
                side.settle()
        for side in (source, target):
            side.leaks_nothing()
            side.engine.close()


STEPS = [name for name in vars(Shuffle) if not name.startswith("_") and name not in ("do", "finish")]
STEPS += ["go_on", "go_on_there", "carry"] * 5


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([90, 150, 300]),
    st.sampled_from([20, 47, 60]),
    st.lists(st.sampled_from(STEPS), min_size=8, max_size=60),
)
def test_whatever_happens_an_answer_is_the_same_and_nothing_leaks(
    cells: int, n_prompt: int, steps: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "ifx_kv_0"
        root.mkdir(mode=0o700)
        shuffle = Shuffle(root / "fleet", cells=cells, prompt=PROMPT[:n_prompt])
        for what in steps:
            shuffle.do(what)
        shuffle.finish()
