"""An engine's checks of itself at its start: rounding is no defect, and each defect is found."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness.model_paths import DEMO, NAMES, model_path
from harness.serving import load
from numpy.typing import NDArray

from inferflux.common.llama.native import llama
from inferflux.worker.engine.kv.prefix_sharing import Sharing
from inferflux.worker.engine.llama.context import Context
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.llama.pinned_state import StateBytes
from inferflux.worker.engine.llama.sharing_trial import find_sharing
from inferflux.worker.engine.llama.trial import Deviation, deviation, trial_tokens

# Of a state's head: magic number, sequence id, streams, cells.
_HEAD_BYTES = 16
each_model = pytest.mark.parametrize("name", NAMES)


@functools.cache
def backend(name: str) -> Backend:
    return load(model_path(name), slots=2, sequences=4, batch_tokens=64, kv_cells=1024, context_length=512)


@each_model
@pytest.mark.long
def test_rounding_is_no_defect(name: str) -> None:
    loaded = backend(name)
    assert loaded.prefill_context_error == ""
    assert loaded.prefill_cells > 0
    assert loaded.sharing.kind is Sharing.FULL


def drop_one(context: Context, seq_id: int) -> None:
    """A cell in the middle is missing."""
    last = context.positions(seq_id)[1]
    llama.llama_memory_seq_rm(context._memory, seq_id, last // 2, last // 2 + 1)


def take_another(context: Context, seq_id: int) -> None:
    """A cell is that of another sequence, of another token."""
    other = 3
    last = context.positions(seq_id)[1]
    context.decode_tokens(np.full(last + 1, 7, np.int32), seq_id=other, position=0)
    llama.llama_memory_seq_rm(context._memory, seq_id, last // 2, last // 2 + 1)
    llama.llama_memory_seq_cp(context._memory, other, seq_id, last // 2, last // 2 + 1)
    context.forget(other)


def end_early(context: Context, seq_id: int) -> None:
    """The last cell is missing."""
    context.forget(seq_id, context.positions(seq_id)[1])


@each_model
@pytest.mark.long
@pytest.mark.parametrize("damage", [drop_one, take_another, end_early], ids=lambda each: each.__name__)
@pytest.mark.parametrize("into_main", [True, False], ids=["to-main", "from-main"])
def test_a_prefill_context_whose_cells_do_not_arrive_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, damage: Callable[[Context, int], None], *, into_main: bool
) -> None:
    loaded = backend(name)
    prefill = loaded._prefill
    assert prefill is not None
    into = loaded._main if into_main else prefill.context
    append = into.append

    def damaged(seq_id: int, state: StateBytes) -> bool:
        is_taken = append(seq_id, state)
        damage(into, seq_id)
        return is_taken

    monkeypatch.setattr(into, "append", damaged)
    assert prefill.why_not(trial_tokens(loaded.vocab))
    monkeypatch.undo()
    assert not prefill.why_not(trial_tokens(loaded.vocab)), "both are empty again"


class Shifted:
    """A context whose keys are rotated for positions farther on by one."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def decode_tokens(self, tokens: NDArray[np.int32], **more: Any) -> NDArray[np.float32]:
        return self._context.decode_tokens(tokens, **more | {"position": more["position"] + 1})

    def positions(self, seq_id: int) -> tuple[int, int]:
        first, last = self._context.positions(seq_id)
        return first - 1, last - 1

    def copy_part_out(self, seq_id: int, first: int, end: int) -> StateBytes | None:
        state = self._context.copy_part_out(seq_id, first + 1, end + 1)
        assert state is not None
        cells = state[_HEAD_BYTES:][: 12 * (end - first)].view("<i4").reshape(-1, 3)
        cells[:, 0] -= 1
        return state


@each_model
@pytest.mark.long
def test_keys_that_are_rotated_for_another_position_are_found(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    loaded = backend(name)
    prefill = loaded._prefill
    assert prefill is not None
    monkeypatch.setattr(prefill, "context", Shifted(prefill.context))
    assert "does not go on" in prefill.why_not(trial_tokens(loaded.vocab))


@each_model
@pytest.mark.parametrize("damage", [drop_one, take_another, end_early], ids=lambda each: each.__name__)
def test_prefixes_that_are_not_shared_as_they_were_are_found(
    monkeypatch: pytest.MonkeyPatch, name: str, damage: Callable[[Context, int], None]
) -> None:
    loaded = backend(name)
    context = loaded._main

    def damaged(method: str) -> Callable[..., None]:
        share = getattr(context, method)

        def call(source: int, seq_id: int, *cells: int) -> None:
            share(source, seq_id, *cells)
            damage(context, seq_id)

        return call

    tokens = trial_tokens(loaded.vocab)
    for method in ("share", "share_whole"):
        monkeypatch.setattr(context, method, damaged(method))
    assert find_sharing(context, tokens, 0).kind is Sharing.NONE
    monkeypatch.undo()
    assert find_sharing(context, tokens, 0).kind is Sharing.FULL


def test_logits_that_are_not_finite_or_say_nothing_are_no_rounding() -> None:
    row = np.arange(12, dtype=np.float32).reshape(1, -1)
    for bad in (np.full_like(row, np.nan), np.full_like(row, np.inf), np.zeros_like(row)):
        assert not deviation(bad, row).is_rounding(Deviation(0.02, 0.0))
    assert deviation(row * 2 + 1, row) == Deviation(0.0, 0.0)
    assert not deviation(-row, row).is_rounding(Deviation(1.0, 1.0)), "however far two kernels are apart"


def test_a_vocabulary_without_text_gives_tokens_of_all_its_parts() -> None:
    class Silent:
        size = 100

        def tokenize(self, *_args: Any, **_more: Any) -> list[int]:
            return []

    tokens = trial_tokens(Silent())  # type: ignore[arg-type]
    assert (tokens[0], tokens[-1]) == (0, 99)
    assert trial_tokens(backend(DEMO).vocab).max() < backend(DEMO).vocab.size
