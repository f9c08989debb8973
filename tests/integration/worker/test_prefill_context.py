"""Prefills in a context of their own, with the demo model and llama.cpp itself."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness.sequences import new_sequence
from harness.serving import load
from harness.worker import batch_item
from numpy.typing import NDArray

from inferflux.v1 import engine_pb2
from inferflux.worker.engine.llama.context import Interrupted
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.plan.budget import StepBudget
from inferflux.worker.engine.plan.planner import ScheduledTokens, StepPlan
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.step.core import Engine
from inferflux.worker.engine.tiers.tiers import Tiers

DEMO_MODEL = Path(__file__).parents[3] / "models" / "inferflux-demo.gguf"
TOKENS = np.random.default_rng(1).integers(300, 2000, 601).astype(np.int32)


@pytest.fixture(scope="module")
def loaded() -> Backend:
    config = engine_pb2.EngineConfig(
        model_path=str(DEMO_MODEL), slots=4, sequences=8, batch_tokens=128, threads=2, flash_attention=True
    )
    return Backend(config)


@pytest.fixture
def backend(loaded: Backend) -> Iterator[Backend]:
    yield loaded
    for seq_id in range(loaded.sequences):
        loaded.forget(seq_id)
        loaded.forget_prefill(seq_id)


def sequence(seq_id: int) -> Sequence:
    return new_sequence(seq_id, TOKENS, prompt_tokens=TOKENS.shape[0])


def compute(backend: Backend, one: Sequence, up_to: int, *, in_prefill_context: bool) -> NDArray[np.float32]:
    """Compute `one` in steps of 100 tokens; returns the last logits."""
    while True:
        n = min(100, up_to - one.position)
        part = ScheduledTokens(one, n, n_logits=1)
        logits = backend.decode(StepPlan([], [part], in_prefill_context=in_prefill_context))
        one.position += n
        if one.position == up_to:
            last: NDArray[np.float32] = logits[0].copy()
            return last


def usual(backend: Backend, up_to: int) -> NDArray[np.float32]:
    """The logits after these tokens without the prefill context."""
    logits = compute(backend, sequence(7), up_to, in_prefill_context=False)
    backend.forget(7)
    return logits


def assert_alike(seen: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert np.abs(seen - expected).max() < 0.1 * expected.std()


def test_prompts_are_computed_side_by_side(backend: Backend) -> None:
    one, other = sequence(1), sequence(2)
    compute(backend, one, 500, in_prefill_context=True)
    compute(backend, other, 200, in_prefill_context=True)
    assert_alike(compute(backend, one, 601, in_prefill_context=True), usual(backend, 601))
    backend.forget_prefill(1)
    assert_alike(compute(backend, other, 600, in_prefill_context=True), usual(backend, 600))


def test_a_prompt_is_complete_in_the_main_context_with_its_last_token(backend: Backend) -> None:
    one = sequence(1)
    one.prompt_tokens = 600
    compute(backend, one, 600, in_prefill_context=True)
    backend.forget_prefill(1)
    assert_alike(compute(backend, one, 601, in_prefill_context=False), usual(backend, 601))


def test_a_prompt_that_leaves_half_way_goes_on_in_the_main_context(backend: Backend) -> None:
    one = sequence(1)
    compute(backend, one, 300, in_prefill_context=True)
    state = np.empty(backend.state_size(1), np.uint8)
    assert backend.copy_out(1, state)
    backend.forget(1)
    backend.forget_prefill(1)
    one.seq_id = 3
    assert backend.copy_in(3, state)
    assert_alike(compute(backend, one, 601, in_prefill_context=False), usual(backend, 601))


def test_a_prompt_goes_on_in_the_prefill_context_from_any_position(backend: Backend) -> None:
    one, other = sequence(1), sequence(2)
    compute(backend, other, 70, in_prefill_context=False)
    compute(backend, one, 250, in_prefill_context=False)
    compute(backend, other, 90, in_prefill_context=False)
    one.prompt_tokens = 600
    assert_alike(compute(backend, one, 600, in_prefill_context=True), usual(backend, 600))
    backend.forget_prefill(1)
    assert_alike(compute(backend, one, 601, in_prefill_context=False), usual(backend, 601))


@pytest.mark.parametrize("position", [0, 100])
def test_a_step_that_is_given_up_leaves_everything_as_it_was(backend: Backend, position: int) -> None:
    one = sequence(1)
    if position:
        compute(backend, one, position, in_prefill_context=True)
    part = ScheduledTokens(one, 120, n_logits=0)
    for asked_before in (0, 20):
        answers = itertools.chain(itertools.repeat(False, asked_before), itertools.repeat(True))
        with pytest.raises(Interrupted):
            backend.decode(StepPlan([], [part], True, is_long=True), functools.partial(next, answers))
    assert backend.positions(1) == (-1, -1)
    backend.decode(StepPlan([], [part], True, is_long=True), lambda: False)
    one.position += 120
    assert_alike(compute(backend, one, 601, in_prefill_context=True), usual(backend, 601))


def test_an_engine_that_gives_a_step_up_counts_nothing_of_it_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StepBudget, "mixed", lambda *_args, **_more: 16)
    monkeypatch.setattr(StepBudget, "in_prefill_context", lambda *_args, **_more: 16)
    monkeypatch.setattr(StepBudget, "in_long_step", lambda _self: 200)
    backend = load()
    waiting = [engine_pb2.EngineCommand(cancel=engine_pb2.EngineCancel(key="t.other"))]
    engine = Engine(
        backend,
        worker_id="w",
        max_itl_factor=5.0,
        step_limit_s=0.2,
        tiers=Tiers.off(),
        arrived=lambda: [waiting.pop()] if waiting else [],
    )
    engine.start(batch_item("one", prompt=TOKENS.tolist(), max_tokens=3))
    sizes = []
    while engine.idle_s() == 0.0:
        engine.step()
        report = engine.take_report()
        sizes.append(report.step.stats.prefill_tokens if report else 0)
        if sizes == [0]:
            assert engine._memory.ledger.used == 0
            assert all(backend.positions(seq_id) == (-1, -1) for seq_id in range(backend.sequences))
    assert not waiting
    assert sizes[:2] == [0, 16], "after a step that was given up they are short"
    assert sum(sizes) == TOKENS.shape[0]
    assert engine._memory.ledger.used == TOKENS.shape[0] + 2, "the last token is not computed"


def test_without_a_sequence_id_for_copies_the_engine_says_that_it_is_off() -> None:
    config = engine_pb2.EngineConfig(
        model_path=str(DEMO_MODEL), slots=2, sequences=256, batch_tokens=128, threads=1, flash_attention=True
    )
    backend = Backend(config)
    assert backend.prefill_cells == 0
    assert "256 sequence ids" in backend.prefill_context_error


@pytest.mark.parametrize(
    ("asked", "cells"), [({}, 512), ({"prefill_cells": 0}, 0), ({"prefill_cells": 300}, 512)]
)
def test_its_size_is_what_was_asked_for(asked: dict[str, int], cells: int) -> None:
    config = engine_pb2.EngineConfig(
        model_path=str(DEMO_MODEL),
        slots=2,
        batch_tokens=128,
        kv_cells=2048,
        threads=1,
        flash_attention=True,
        **asked,  # type: ignore[arg-type]
    )
    assert Backend(config).prefill_cells == cells


def test_without_flash_attention_there_is_no_need_of_one() -> None:
    config = engine_pb2.EngineConfig(model_path=str(DEMO_MODEL), slots=2, batch_tokens=128, threads=1)
    backend = Backend(config)
    assert backend.prefill_cells == 0
    assert backend.prefill_context_error == ""
