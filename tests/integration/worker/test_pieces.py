"""State of the demo model goes from engine to engine in pieces, and answers go on as if it had not."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chaos import caller
from chaos.workload import Order
from harness.schemas import INT, SMALL, arr, obj, text
from harness.served_engine import Served, demo_backend
from harness.sure import prompt_tokens
from harness.worker import batch_item

from inferflux.common.contract.callers.cache_scope import cache_scope_of
from inferflux.common.text.constraints.schema import read_schema
from inferflux.v1 import engine_pb2, generation_pb2, worker_pb2
from inferflux.worker.engine.kv.envelope import Envelope, open_header
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.memory import exports, saved
from inferflux.worker.engine.memory.export import PIECE
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.tiers.disk import Disk
from inferflux.worker.engine.tiers.tiers import Tiers

MEMORY = 256 << 20
# A countdown after others: of none of its tokens is the model in doubt, so any steps compute the same.
PROMPT = prompt_tokens(
    [{"role": m.role, "content": m.content} for m in caller.asked(Order("", 28, 2, 0, 0, turns=6)).messages]
)
ANSWER = 60
WAIT_S = 20.0
# By kind of request: each is computed once.
ANSWERS: dict[str, list[int]] = {}


class Side(Served):
    """An engine of one machine."""

    def __init__(self, backend: Backend, root: Path) -> None:
        backend._main.clear()
        self.disk = Disk(root, backend.identity, is_tier=False)
        tiers: Tiers[Sequence] = Tiers(
            backend.identity,
            host_bytes=MEMORY,
            disk=self.disk,
            disk_bytes=MEMORY,
            is_divisible=backend.cuts_states,
        )
        super().__init__(backend, tiers)

    @property
    def folder(self) -> Path:
        return self.disk.exchange_path / "pieces"

    def export(self, number: int = 1, **fields: Any) -> None:
        command = engine_pb2.EngineExport(id=number, **fields)
        self.engine.obey(engine_pb2.EngineCommand(export_state=command))

    def take(self, path: Path | str, number: int = 1, key: str = "t.a", *, is_over: bool = False) -> None:
        command = engine_pb2.EngineImport(id=number, key=key, path=str(path), is_over=is_over)
        self.engine.obey(engine_pb2.EngineCommand(import_state=command))

    def until(self, condition: Callable[[], bool]) -> None:
        until_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < until_s, (self.pieces, self.imported)
            self.step()

    def leaves_nothing(self) -> None:
        """Check that every cell, sequence id and file is accounted for."""
        memory = self.engine._memory
        assert memory.repair(self.engine.residents.values()) == []
        assert memory.free_seq_ids == self.backend.sequences - len(self.engine.residents)
        memory.prefixes.clear()
        if not self.engine.residents:
            assert memory.ledger.used == 0
        self.engine._tiers.pieces.wait_for_writes(WAIT_S)
        self.engine._tiers.pieces.drop_spares()
        self.until(lambda: not self.folder.exists() or not list(self.folder.iterdir()))


class Carrier:
    """Carries pieces from one engine to another, as their workers do."""

    def __init__(self, source: Side, target: Side, change: Callable[[Path], None] | None = None) -> None:
        self._source = source
        self._target = target
        self._change = change
        self.seen = 0

    def carry(self) -> None:
        for piece in self._source.pieces[self.seen :]:
            path = self._source.folder / piece.name if piece.name else ""
            if path and self._change is not None:
                self._change(Path(path))
            self._target.take(path, is_over=piece.is_last)
        self.seen = len(self._source.pieces)


@pytest.fixture(scope="module")
def backends() -> tuple[Backend, Backend]:
    return demo_backend(batch_tokens=128, kv_cells=4096), demo_backend(batch_tokens=128, kv_cells=4096)


@pytest.fixture
def sides(backends: tuple[Backend, Backend], tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    (tmp_path / "ifx_kv_0").mkdir(mode=0o700)
    root = tmp_path / "ifx_kv_0" / "fleet"
    yield Side(backends[0], root), Side(backends[1], root)
    while Served.made:
        Served.made.pop().engine.close()


@pytest.fixture(autouse=True)
def without_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine pieces would be smaller, and a request would compute what comes late."""
    monkeypatch.setattr(exports, "_FEWEST", PIECE)
    monkeypatch.setattr(saved, "_SHORTEST_SEARCH_S", WAIT_S)
    monkeypatch.setattr(saved, "_MOST_TIMES", 1000)


@pytest.fixture
def other_build(backends: tuple[Backend, Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine that takes state runs another version of llama.cpp."""
    identity = replace(backends[1].identity, llama_cpp="another build")
    monkeypatch.setattr(backends[1], "identity", identity)


def constrained(item: worker_pb2.BatchItem) -> worker_pb2.BatchItem:
    schema = obj(name=text(), items=arr(obj(a=INT, b=SMALL), 3, 6), more=arr(text(), 2, 4))
    enforced = read_schema(json.dumps(schema)).enforced
    item.request.params.constraint.CopyFrom(generation_pb2.StructuredConstraint(json_schema=enforced))
    return item


def asked(kind: str = "greedy", name: str = "a") -> worker_pb2.BatchItem:
    if kind == "greedy":
        return batch_item(name, prompt=PROMPT, max_tokens=ANSWER)
    sampling: dict[str, Any] = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 30}
    sampling |= {"repeat_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1}
    item = batch_item(name, prompt=PROMPT, max_tokens=ANSWER, **sampling)
    return constrained(item) if kind == "constrained" else item


def going_on(item: worker_pb2.BatchItem, generated: list[int]) -> worker_pb2.BatchItem:
    """The request's next attempt, on the engine that takes its state."""
    made = worker_pb2.BatchItem.FromString(item.SerializeToString())
    made.request.epoch += 1
    made.request.generated_token_ids.extend(generated)
    made.state_from.epoch = 1
    return made


def undisturbed(side: Side, kind: str = "greedy") -> list[int]:
    """The answer of an engine that has computed nothing before, nor has anything of it afterwards."""
    if kind not in ANSWERS:
        side.run(asked(kind, "alone"))
        ANSWERS[kind] = side.tokens["alone"]
        side.engine._memory.prefixes.clear()
        side.n_prefilled = 0
    return ANSWERS[kind]


def written(side: Side) -> list[engine_pb2.EnginePiece]:
    return [piece for piece in side.pieces if piece.name]


def leave(source: Side) -> list[Path]:
    """Have a request leave that is exported; returns all its pieces, in order."""
    source.engine.cancel("t.a", is_silent=True, leaves_state=True)
    source.until(lambda: bool(source.pieces) and source.pieces[-1].is_last)
    assert source.pieces[-1].error == ""
    return [source.folder / piece.name for piece in written(source)]


def decoding(source: Side, *, n: int = 5) -> worker_pb2.BatchItem:
    """A request that is exported while it decodes, and has caught up."""
    item = asked()
    source.start(item)
    source.until(lambda: len(source.tokens.get("a", ())) >= n)
    source.export(key="t.a")
    source.until(lambda: any(piece.is_caught_up for piece in source.pieces))
    return item


@pytest.mark.parametrize("kind", ["greedy", "seeded", "constrained"])
def test_a_request_that_moves_goes_on_with_the_same_tokens(sides: tuple[Side, Side], kind: str) -> None:
    source, target = sides
    expected = undisturbed(target, kind)
    item = asked(kind)
    source.start(item)
    source.until(lambda: len(source.tokens.get("a", ())) >= 5)
    source.export(key="t.a")
    carrier = Carrier(source, target)
    while not any(piece.is_caught_up for piece in source.pieces):
        source.step()
        carrier.carry()
        target.step()
    source.step()  # it goes on meanwhile
    source.engine.cancel("t.a", is_silent=True, leaves_state=True)
    target.start(going_on(item, source.tokens["a"]))
    while target.engine.residents:
        source.step()
        carrier.carry()
        target.step()
    assert source.tokens["a"] + target.tokens["a"] == expected
    ends = [piece.n_past for piece in written(source)]
    assert [piece.first for piece in written(source)] == [0, *ends[:-1]]
    assert len(ends) >= 4
    assert source.pieces[-1].is_last
    assert target.n_prefilled == 1
    for side in sides:
        side.leaves_nothing()


@pytest.mark.parametrize("behind", [0, 1, 2, 3])
def test_a_request_that_moves_computes_the_same_bits_however_much_of_its_answer_is_known(
    sides: tuple[Side, Side], behind: int
) -> None:
    """Of random tokens: the least error in a logit shows within a few answers."""
    source, target = sides
    for seed in range(6):
        prompt = np.random.default_rng(seed).integers(300, 2000, 200).tolist()
        target.run(batch_item("alone", prompt=prompt, max_tokens=100))
        expected = target.tokens.pop("alone")
        target.engine._memory.prefixes.clear()
        item = batch_item("a", prompt=prompt, max_tokens=100)
        source.start(item)
        source.until(lambda: len(source.tokens.get("a", ())) >= 5)
        source.export(key="t.a")
        source.until(lambda: any(piece.is_caught_up for piece in source.pieces))
        for path in leave(source):
            target.take(path, is_over=False)
        target.take("", is_over=True)
        known = source.tokens.pop("a")
        known = known[: len(known) - behind]
        target.n_prefilled = 0
        target.start(going_on(item, known))
        target.until(lambda: not target.engine.residents)
        assert known + target.tokens.pop("a") == expected
        assert target.n_prefilled == 1
        source.export(is_over=True)
        source.pieces.clear()
        for side in sides:
            side.leaves_nothing()


def test_pieces_of_a_prompt_leave_while_it_is_computed(sides: tuple[Side, Side]) -> None:
    source, target = sides
    expected = undisturbed(target)
    item = asked()
    item.token_budget = 1
    source.export(key="t.a")  # before the request is there
    source.start(item)
    carrier = Carrier(source, target)
    before_first_token = 0
    while not any(piece.is_caught_up for piece in source.pieces):
        source.step()
        if "a" not in source.tokens or not source.tokens["a"]:
            before_first_token = len(written(source))
        carrier.carry()
        target.step()
    assert before_first_token >= 1
    assert source.engine.residents["t.a"].slot is None  # it has yielded
    assert written(source)[-1].n_past == len(PROMPT)
    source.engine.cancel("t.a", is_silent=True, leaves_state=True)
    target.start(going_on(item, source.tokens["a"]))
    target.engine.residents["t.a"].yields_at = 0
    while target.engine.residents:
        source.step()
        carrier.carry()
        target.step()
    assert source.tokens["a"] + target.tokens["a"] == expected
    assert target.n_prefilled == 1
    for side in sides:
        side.leaves_nothing()


def test_a_request_that_leaves_amid_its_prompt_takes_along_what_is_computed(sides: tuple[Side, Side]) -> None:
    source, target = sides
    expected = undisturbed(target)
    item = asked()
    source.start(item)
    source.export(key="t.a")
    source.until(lambda: source.engine.residents["t.a"].position >= 256)
    position = source.engine.residents["t.a"].position
    assert position < len(PROMPT)
    for path in leave(source):
        target.take(path)
    target.take("", is_over=True)
    target.start(going_on(item, []))
    target.until(lambda: not target.engine.residents)
    assert target.tokens["a"] == expected
    assert target.n_prefilled == len(PROMPT) - position
    for side in sides:
        side.leaves_nothing()


def test_a_cached_prefix_goes_to_another_engine(sides: tuple[Side, Side]) -> None:
    source, target = sides
    before = asked(name="before")
    before.request.params.max_tokens = 1
    source.run(before)
    item = asked()
    scope = cache_scope_of(item.request)
    wanted = np.array([*PROMPT, 5, 6], "<i4").tobytes()
    source.export(token_ids=wanted, cache_scope=scope, known_tokens=0)
    source.until(lambda: bool(source.pieces) and source.pieces[-1].is_last)
    assert [(piece.first, piece.n_past) for piece in source.pieces] == [
        (0, 256),
        (256, 512),
        (512, len(PROMPT)),
    ]
    for piece in source.pieces:
        target.take(source.folder / piece.name, is_over=piece.is_last)
    target.run(going_on(item, []))
    assert target.n_prefilled == 1
    source.run(asked(name="again"))  # begins with the same, where it was computed
    assert target.tokens["a"] == source.tokens["again"]
    for side in sides:
        side.leaves_nothing()


def test_of_a_prefix_leaves_what_is_not_known(sides: tuple[Side, Side]) -> None:
    source, _ = sides
    source.run(asked(name="before"))
    scope = cache_scope_of(asked().request)
    wanted = np.array(PROMPT, "<i4").tobytes()
    source.export(1, token_ids=wanted, cache_scope=scope, known_tokens=640)
    source.export(2, token_ids=wanted, cache_scope="tenant/other", known_tokens=0)
    source.export(3, token_ids=wanted, cache_scope=scope, known_tokens=len(PROMPT))
    source.export(4, key="t.never")
    source.until(lambda: sum(piece.is_last for piece in source.pieces) == 4)
    by_id = {piece.id: piece for piece in source.pieces}
    assert (by_id[1].first, by_id[1].n_past, by_id[1].error) == (640, len(PROMPT), "")
    assert by_id[2].error == by_id[3].error == "no more of the prefix is cached"
    assert by_id[4].error == "the request is not here"
    source.export(1, is_over=True)
    source.leaves_nothing()


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def of_another_version(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(data)


def foreign(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"flash_attention": true', b'"flash_attention": null', 1))


def of_no_state(path: Path) -> None:
    path.write_bytes(b"GGUF" * 1000)


def of_position(position: int) -> Callable[[Path], None]:
    """Say in the payload, with the right checksums, that a cell has another position."""

    def change(path: Path) -> None:
        data = np.frombuffer(bytearray(path.read_bytes()), np.uint8)
        envelope = Envelope(open_header(data.data, data.size), data)
        envelope.payload[16 + 5 * 12 :].view("<i4")[0] = position
        envelope.seal()
        path.write_bytes(data.tobytes())

    return change


# llama.cpp takes any position, and never removes a cell whose position is below 0.
below_0, twice = of_position(-5), of_position(300)
DAMAGES = [flipped, cut_short, of_another_version, foreign, of_no_state, Path.unlink, below_0, twice]


@pytest.mark.parametrize("change", DAMAGES)
def test_a_piece_that_is_damaged_ends_the_import_and_the_rest_is_computed(
    sides: tuple[Side, Side], change: Callable[[Path], None]
) -> None:
    source, target = sides
    expected = undisturbed(target)
    item = decoding(source)
    paths = leave(source)
    change(paths[1])
    for path in paths:
        target.take(path)
    target.take("", is_over=True)
    target.start(going_on(item, source.tokens["a"]))
    target.until(lambda: not target.engine.residents)
    assert source.tokens["a"] + target.tokens["a"] == expected
    assert [report.tokens for report in target.imported] == [256, 256]
    assert target.imported[-1].error.startswith("a piece was not taken")
    assert target.n_prefilled == len(PROMPT) + len(source.tokens["a"]) - 256
    for side in sides:
        side.leaves_nothing()
    assert all(target.backend.positions(i) == (-1, -1) for i in range(target.backend.sequences))


@pytest.mark.usefixtures("other_build")
def test_state_of_another_build_is_refused_and_the_request_computed(sides: tuple[Side, Side]) -> None:
    source, target = sides
    expected = undisturbed(target)
    item = decoding(source)
    for path in leave(source):
        target.take(path)
    target.take("", is_over=True)
    target.start(going_on(item, source.tokens["a"]))
    target.until(lambda: not target.engine.residents)
    assert source.tokens["a"] + target.tokens["a"] == expected
    assert target.imported[0].error == "a piece was not taken: foreign: llama_cpp"
    assert target.n_prefilled == len(PROMPT) + len(source.tokens["a"])
    for side in sides:
        side.leaves_nothing()


@pytest.mark.parametrize(
    ("order", "taken"), [([0, 1, 1, 2, 0, 3], 4), ([0, 2, 1, 3], 1), ([1, 2, 3], 0), ([0, 1, 3], 2)]
)
def test_pieces_may_come_twice_and_not_out_of_order(
    sides: tuple[Side, Side], order: list[int], taken: int
) -> None:
    source, target = sides
    expected = undisturbed(target)
    item = decoding(source)
    source.step()
    paths = leave(source)
    assert len(paths) == 4
    ends = [0, *[piece.n_past for piece in written(source)]]
    copies = [path.with_name(f"copy{n}") for n, path in enumerate(paths)]
    for path, copy in zip(paths, copies, strict=True):
        shutil.copy(path, copy)
    sent: set[int] = set()
    for number in order:
        target.take(copies[number] if number in sent else paths[number])
        sent.add(number)
    target.take("", is_over=True)
    target.start(going_on(item, source.tokens["a"]))
    target.until(lambda: not target.engine.residents)
    assert source.tokens["a"] + target.tokens["a"] == expected
    assert max((report.tokens for report in target.imported), default=0) == ends[taken]
    assert target.n_prefilled == len(PROMPT) + len(source.tokens["a"]) - ends[taken]
    for path in [*copies, *paths]:
        path.unlink(missing_ok=True)
    for side in sides:
        side.leaves_nothing()


def test_an_import_that_stops_holds_its_request_for_a_bounded_time(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "_SHORTEST_SEARCH_S", 0.5)
    source, target = sides
    expected = undisturbed(target)
    item = decoding(source)
    paths = leave(source)
    target.take(paths[0])  # and no more
    target.start(going_on(item, source.tokens["a"]))
    began_s = time.monotonic()
    target.until(lambda: bool(target.n_prefilled))
    assert time.monotonic() - began_s < 5.0
    target.until(lambda: not target.engine.residents)
    assert source.tokens["a"] + target.tokens["a"] == expected
    assert target.imported[-1].error == "the request has gone on without it"
    source.export(1, is_over=True)
    for side in sides:
        side.leaves_nothing()


def test_what_no_room_is_left_for_is_not_exported_and_the_request_goes_on(sides: tuple[Side, Side]) -> None:
    source, target = sides
    expected = undisturbed(target)
    source.engine._tiers.pieces._limit = 100_000
    item = asked()
    source.start(item)
    source.export(key="t.a")
    source.until(lambda: bool(source.pieces))
    assert source.pieces[-1].is_last
    assert "the exchange has" in source.pieces[-1].error
    source.until(lambda: not source.engine.residents)
    assert source.tokens["a"] == expected
    for side in sides:
        side.leaves_nothing()


def test_a_request_that_ends_or_an_export_that_is_over_leaves_no_file(sides: tuple[Side, Side]) -> None:
    source, _ = sides
    decoding(source)
    source.engine.cancel("t.a", is_silent=False)
    source.until(lambda: source.pieces[-1].is_last)
    assert source.pieces[-1].error == "the request has ended"
    source.leaves_nothing()
    source.pieces.clear()
    decoding(source)
    assert list(source.folder.iterdir())
    source.export(1, is_over=True)
    source.until(lambda: not source.engine.residents)
    source.leaves_nothing()


def test_a_drained_engine_reports_the_last_pieces_before_it_ends(sides: tuple[Side, Side]) -> None:
    source, target = sides
    expected = undisturbed(target)
    item = decoding(source)
    source.step()
    source.engine.flush(10.0, requests_only=True)
    source.step()
    assert source.pieces[-1].is_last
    assert not source.pieces[-1].error
    for piece in source.pieces:
        target.take(source.folder / piece.name if piece.name else "", is_over=piece.is_last)
    target.start(going_on(item, source.tokens["a"]))
    target.until(lambda: not target.engine.residents)
    assert source.tokens["a"] + target.tokens["a"] == expected
    assert target.n_prefilled == 1
    for side in sides:
        side.leaves_nothing()
