"""Cells that llama.cpp loses behind the engine's back are noticed, and computed again.

Answers are compared on one thread, of prompts that are computed in steps of less than 64 rows, and of which
the model is sure: what is computed again may lie in other cells.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from harness.model_kinds import recurrent_model, sliding_window_model
from harness.serving import Served, load
from harness.sure import chat_tokens, check_sure
from harness.worker import batch_item

from inferflux.common.llama.native import llama
from inferflux.v1 import engine_pb2
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.step.clock import Clock

SMALL: dict[str, Any] = {"slots": 2, "sequences": 8, "kv_cells": 512}
ANSWER_TOKENS = 20
PROMPT = chat_tokens("What is 2 + 2?", "2 + 2 = 4", "Count down from 30 to 1.")
OTHER = chat_tokens("What is 3 + 2?", "3 + 2 = 5", "Count down from 20 to 1.")


@functools.cache
def demo() -> Backend:
    return load(**SMALL)


@pytest.fixture
def served() -> Served:
    demo()._main.clear()
    return Served(demo())


@functools.cache
def alone(*prompt: int) -> list[int]:
    """What the demo model answers in an engine of its own."""
    demo()._main.clear()
    engine = Served(demo(), has_prefix_cache=False)
    engine.run(batch_item("alone", prompt=prompt, max_tokens=ANSWER_TOKENS, logprobs=2))
    check_sure(engine.chunks)
    return engine.tokens["alone"]


def lose(backend: Backend, seq_id: int, first: int, end: int) -> None:
    """Remove cells as no code of the engine does."""
    assert llama.llama_memory_seq_rm(backend._main._memory, seq_id, first, end)


def check(served: Served) -> list[str]:
    """What the engine says that it dropped."""
    if not served.engine.check_ledger():
        return []
    report = served.engine.take_report()
    assert report is not None
    return list(report.step.ledger_repairs)


def seq_id_of(served: Served, request_id: str) -> int:
    return served.engine.residents[f"t.{request_id}"].seq_id


def test_nothing_is_found_where_nothing_was_lost(served: Served) -> None:
    served.run(batch_item("a", prompt=PROMPT, max_tokens=3), batch_item("b", prompt=OTHER, max_tokens=9))
    assert check(served) == []
    assert served.stats.cached_sequences == 2


@pytest.mark.parametrize(("first", "end"), [(0, -1), (0, 5), (30, -1)])
def test_a_cached_prefix_that_lost_cells_is_computed_again(served: Served, first: int, end: int) -> None:
    expected = alone(*PROMPT)
    demo()._main.clear()
    served.run(batch_item("first", prompt=PROMPT, max_tokens=ANSWER_TOKENS))
    (seq_id,) = (i for i in range(8) if served.backend.positions(i) != (-1, -1))
    lose(served.backend, seq_id, first, end)
    (found,) = check(served)
    assert f"{len(PROMPT) + ANSWER_TOKENS - 1} cells were counted for seq_id {seq_id}" in found
    assert "cached prefix" in found
    served.check_cells()
    assert served.engine._memory.ledger.used == 0
    served.run(batch_item("again", prompt=PROMPT, max_tokens=ANSWER_TOKENS))
    assert served.cached["again"] == 0
    assert served.tokens["again"] == expected
    assert check(served) == []


def test_a_running_request_that_lost_cells_is_computed_again() -> None:
    expected, other = alone(*PROMPT), alone(*OTHER)
    demo()._main.clear()
    now_s = 0.0
    served = Served(demo(), clock=Clock(lambda: now_s))
    second = batch_item("intact", prompt=OTHER, max_tokens=ANSWER_TOKENS)
    second.slot = 1
    served.start_and_step(second, until_tokens=1)
    served.start_and_step(batch_item("losing", prompt=PROMPT, max_tokens=ANSWER_TOKENS), until_tokens=8)
    assert check(served) == [], "it has not run for long"
    # Without all of its prompt it would answer otherwise.
    lose(served.backend, seq_id_of(served, "losing"), 0, len(PROMPT))
    now_s = 11.0
    (found,) = check(served)
    assert "request t.losing" in found
    assert check(served) == []
    served.finish("losing")
    served.finish("intact")
    assert served.tokens == {"losing": expected, "intact": other}
    served.check_cells()
    assert check(served) == []


def test_a_parked_request_that_lost_cells_is_computed_again(served: Served) -> None:
    expected = alone(*PROMPT)
    demo()._main.clear()
    served.start_and_step(batch_item("parked", prompt=PROMPT, max_tokens=ANSWER_TOKENS), until_tokens=8)
    lost_id = seq_id_of(served, "parked")
    served.engine.deschedule(engine_pb2.EngineDeschedule(key="t.parked", epoch=1))
    lose(served.backend, lost_id, 0, -1)
    (found,) = check(served)
    assert "llama.cpp has none (request t.parked)" in found
    served.resume("t.parked", 0)
    served.finish("parked")
    assert served.tokens["parked"] == expected


def test_cells_that_the_ledger_lacks_are_freed(served: Served) -> None:
    served.run(batch_item("a", prompt=PROMPT, max_tokens=3))
    free_id = served.engine._memory._seq_ids._free[-1]
    demo()._main.decode_tokens(np.array(OTHER, np.int32), seq_id=free_id, position=0)
    (found,) = check(served)
    assert found == (
        f"0 cells were counted for seq_id {free_id}, "
        f"llama.cpp has positions 0 to {len(OTHER) - 1} (not in use)"
    )
    served.check_cells()
    assert served.stats.cached_sequences == 1


def test_cells_that_are_counted_for_no_sequence_are_free_again(served: Served) -> None:
    served.run(batch_item("a", prompt=PROMPT, max_tokens=3))
    memory = served.engine._memory
    free_id, used = memory._seq_ids._free[-1], memory.ledger.used
    memory.ledger.use(free_id, 7)
    (found,) = check(served)
    assert found == f"7 cells were counted for seq_id {free_id}, llama.cpp has none (not in use)"
    assert memory.ledger.used == used
    served.check_cells()


@pytest.mark.parametrize("make", [sliding_window_model, recurrent_model])
def test_models_that_keep_the_latest_positions_alone_lose_nothing(make: Any, tmp_path: Any) -> None:
    backend = load(make().write(tmp_path / "other.gguf"), **SMALL, prefill_cells=0)
    served = Served(backend)
    ids = [int(token) for token in np.random.default_rng(12).integers(0, 250, 50)]
    served.start_and_step(batch_item("a", prompt=ids, max_tokens=40), until_tokens=20)
    assert served.engine._memory.repair(served.engine.residents.values()) == []
    lose(backend, seq_id_of(served, "a"), 0, -1)
    assert len(served.engine._memory.repair(served.engine.residents.values())) == 1
    served.finish("a")
    assert len(served.tokens["a"]) == 40
    assert check(served) == []


def test_what_a_step_may_go_through_is_told_with_the_part_of_it_that_is_empty(served: Served) -> None:
    """Two requests fill 80 cells and more; the first of them then leaves a hole."""
    served.start_and_step(batch_item("low", prompt=PROMPT, max_tokens=5), until_tokens=1)
    item = batch_item("high", prompt=OTHER, max_tokens=40)
    item.slot = 1
    served.start_and_step(item, until_tokens=1)
    served.finish("low")
    served.engine._memory.prefixes.make_room(cells=512, ids=8)
    served.step()
    stats = served.stats
    assert stats.kv_cells_width - stats.kv_cells_holes == served.engine._memory.ledger.used
    assert 80 <= stats.kv_cells_width <= 100
    assert stats.kv_cells_holes >= 40
    served.finish("high")
