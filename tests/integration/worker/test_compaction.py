"""Filled KV cells are moved together by llama.cpp itself, and nothing else changes.

Answers are compared on one thread, of prompts that are computed in steps of less than 64 rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness.gguf_files import Gguf
from harness.llama_cells import logged_cells
from harness.model_kinds import hybrid_model, recurrent_model, sliding_window_model
from harness.serving import Served, load
from harness.worker import DEMO_MODEL, batch_item

from inferflux.v1 import engine_pb2, generation_pb2
from inferflux.worker.engine.kv.compaction import Compaction, MoveCost
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.files.kv_types import KvType

CELLS = 1024
ANSWER_TOKENS = 30
DRAW = np.random.default_rng(5)
LONG = [int(token) for token in DRAW.integers(300, 2000, 400)]
SHORT = [int(token) for token in DRAW.integers(300, 2000, 40)]


@functools.cache
def loaded(kind: KvType) -> Backend:
    config = engine_pb2.EngineConfig(
        model_path=str(DEMO_MODEL),
        slots=4,
        sequences=12,
        batch_tokens=512,
        kv_cells=CELLS,
        kv_type_k=kind,
        kv_type_v=kind,
        threads=1,
        prefill_cells=0,
        flash_attention=True,
    )
    return Backend(config)


def served(kind: KvType = "f16", *, has_prefix_cache: bool = True) -> Served:
    backend = loaded(kind)
    backend._main.clear()
    return Served(backend, has_prefix_cache=has_prefix_cache)


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_a_sequence_above_a_hole_is_moved_down_and_answers_as_it_does_alone(kind: KvType) -> None:
    alone = served(kind, has_prefix_cache=False)
    alone.run(batch_item("high", prompt=SHORT, max_tokens=ANSWER_TOKENS))
    world = served(kind, has_prefix_cache=False)
    world.start_and_step(batch_item("low", prompt=LONG, max_tokens=100), until_tokens=1)
    item = batch_item("high", prompt=SHORT, max_tokens=ANSWER_TOKENS)
    item.slot = 1
    world.start_and_step(item, until_tokens=5)
    world.engine.cancel("t.low", is_silent=True)
    ledger = world.engine._memory.ledger
    assert ledger.width > len(LONG) > 2 * ledger.used
    world.backend.compact()
    ledger.move_together()
    world.check_cells()
    world.step()
    assert (world.stats.kv_cells_width, world.stats.kv_cells_holes) == (ledger.used, 0)
    world.finish("high")
    assert world.tokens["high"] == alone.tokens["high"]
    world.check_cells()


def test_shared_cells_are_shared_afterwards() -> None:
    world = served()
    world.run(batch_item("first", prompt=LONG[:200], max_tokens=3))
    item = batch_item("second", prompt=LONG[:200] + SHORT, max_tokens=40)
    world.start_and_step(item, until_tokens=2)
    ledger = world.engine._memory.ledger
    assert ledger.shared >= 200
    world.backend.compact()
    world.check_cells()
    world.finish("second")
    world.check_cells()


def test_an_engine_that_moves_its_cells_all_the_time_loses_none() -> None:
    world = served()
    memory = world.engine._memory
    memory._compaction = Compaction(1.0, MoveCost(1e-9, 1e-9), longest_s=1.0)
    draw = np.random.default_rng(6)
    moves = 0
    step = world.step

    def counted_step() -> None:
        nonlocal moves
        step()
        moves += world.stats.kv_compactions

    world.step = counted_step  # type: ignore[method-assign]
    for batch in range(40):
        items = [
            batch_item(
                f"r{batch}-{slot}",
                prompt=LONG[: int(draw.integers(1, 100))] + SHORT[: int(draw.integers(1, 40))],
                max_tokens=int(draw.integers(1, 6)),
            )
            for slot in range(4)
        ]
        world.run(*items)
        world.check_cells()
        if batch % 2:  # what it leaves is holes
            memory.prefixes.make_room(cells=CELLS - memory.ledger.used // 5)
    assert moves  # how many depends on what steps cost here
    assert memory.repair(world.engine.residents.values()) == []
    memory.prefixes.make_room(cells=CELLS, ids=12)
    assert (memory.ledger.used, memory.free_seq_ids) == (0, 12)
    world.check_cells()


def test_cells_lie_no_wider_than_the_ledger_says() -> None:
    """By its own log, while requests come, share prefixes, are evicted, drafted for and cancelled."""
    draw = np.random.default_rng(8)
    with logged_cells() as lines:
        world = Served(load(kv_cells=CELLS, prefill_cells=0), speculation=generation_pb2.SPECULATION_NGRAM)
        engine, ledger = world.engine, world.engine._memory.ledger
        widths: list[int] = []

        def step() -> None:
            before = ledger.width
            lines.clear()
            world.step()
            assert all(width <= max(before, ledger.width) for width, _ in lines)
            widths.extend(width for width, _ in lines)

        def free_slot() -> int | None:
            return min(set(range(4)) - {s.slot for s in engine.running.values()}, default=None)

        for number in range(60):
            prompt = LONG[: int(draw.integers(1, 300))] + SHORT[: int(draw.integers(1, 40))] * 2
            item = batch_item(f"r{number}", prompt=prompt, max_tokens=int(draw.integers(20, 150)))
            while (slot := free_slot()) is None:
                step()
            item.slot = slot
            engine.start(item)
            for _ in range(int(draw.integers(1, 12))):
                step()
                for waiting in [s for s in engine.residents.values() if not s.is_running]:
                    if (slot := free_slot()) is not None:
                        world.resume(waiting.key, slot)
                if not engine.residents:
                    break
            if number % 3 == 0:
                engine.cancel(f"t.r{int(draw.integers(0, number + 1))}", is_silent=True)
            if number % 10 == 9:
                engine._memory.prefixes.make_room(cells=CELLS - ledger.used)
    assert max(widths) > CELLS * 3 // 4
    assert len(widths) > 100
    assert world.evictions > 0


@pytest.mark.parametrize("make", [sliding_window_model, recurrent_model, hybrid_model])
def test_other_kinds_of_memory_lose_nothing(make: Callable[[], Gguf], tmp_path: Path) -> None:
    path = make().write(tmp_path / "other.gguf")
    config = engine_pb2.EngineConfig(
        model_path=str(path), slots=2, sequences=8, batch_tokens=64, kv_cells=512, threads=1
    )
    backend = Backend(config)
    ids = [int(token) for token in DRAW.integers(0, 250, 50)]
    alone = Served(backend, has_prefix_cache=False)
    alone.run(batch_item("a", prompt=ids, max_tokens=40))
    backend._main.clear()
    world = Served(backend, has_prefix_cache=False)
    world.start_and_step(batch_item("a", prompt=ids, max_tokens=40), until_tokens=20)
    if backend.move_cost is not None:
        backend.compact()
    world.finish("a")
    assert world.tokens["a"] == alone.tokens["a"]
    assert (backend.move_cost is not None) <= backend.sharing.is_divisible
