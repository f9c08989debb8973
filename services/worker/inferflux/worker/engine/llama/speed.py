"""Speed of a model, measured at an engine's start. Contexts are empty before and after each measurement."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from inferflux.worker.engine.kv.compaction import MoveCost

from .context import Context, DecodeError
from .pinned_state import StateBytes
from .trials import Timing

_CALIBRATION_PROMPTS = (16, 64, 16, 64)
_CALIBRATION_STEPS = 3
# What a used cell costs a decoded token is timed with this many tokens, among this many cells of others.
_CELL_TRIAL_ROWS = 8
_CELL_TRIES = 15
_CELL_TRIAL_S = 0.5
_CELL_TRIAL_TOKENS = 64
_CELL_TRIAL_CELLS = 2048
_MOVE_TRIAL_COPIES = 8
# llama.cpp overwrites the whole cache for a move: where that takes this long, there are none.
_LONGEST_MOVE_S = 0.2
# Steps of these numbers of rows are timed before drafts are verified, again and again for this long at most.
_ROW_TRIALS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 63)
_ROW_TRIALS_S = 0.5
_ROW_TRIES = 5
_FEWEST_ROW_TRIALS = 3
_SMALL_STEP_S = 0.002
_SMALL_STEP_TRIES = 10
# Other threads are woken for a small step if it then takes less than this part of the time of one thread. It
# differs by a quarter and more from one start to the next, and threads that spin hold up the other processes.
_WORTH_WAKING = 0.5


def prefill_timings(context: Context, *, in_prefill_context: bool) -> list[Timing]:
    """Time prompts of a few lengths."""
    sizes = [n for n in _CALIBRATION_PROMPTS if n <= min(context.batch_tokens, context.cells)]
    return [Timing(n, 0, _time_tokens(context, n), in_prefill_context) for n in sizes]


def decode_timings(context: Context) -> list[Timing]:
    """Time single tokens."""
    return [Timing(0, 1, _time_tokens(context, 1)) for _ in range(_CALIBRATION_STEPS)]


def row_times(context: Context, most: int, choose_threads: Callable[[int], None]) -> dict[int, float]:
    """Seconds of steps of up to `most` rows, all with logits, by their rows: of few for a large model.

    Args:
        choose_threads: called with the rows of each step before it.
    """
    sizes = [n for n in _ROW_TRIALS if n <= min(most, context.cells)]
    fastest: dict[int, float] = {}
    began = time.perf_counter()
    for _ in range(_ROW_TRIES):
        for n in sizes:
            if len(fastest) >= _FEWEST_ROW_TRIALS and time.perf_counter() - began > _ROW_TRIALS_S:
                return fastest
            choose_threads(n)
            fastest[n] = min(_time_verifying(context, n), fastest.get(n, math.inf))
    return fastest


def _time_verifying(context: Context, rows: int) -> float:
    began = time.perf_counter()
    context.decode_tokens(np.zeros(rows, np.int32), seq_id=0, position=0, rows=rows)
    seconds = time.perf_counter() - began
    context.clear()
    return seconds


def single_thread_tokens(context: Context, threads: int) -> int:
    """Find the most tokens that one thread does so soon that waking others is not worth it: those cores carry
    the tokens to their readers. None where the others save much of that time all the same."""
    n = _CALIBRATION_PROMPTS[0]
    if _time_tokens(context, n) > n * _SMALL_STEP_S:
        return 0
    all_s = _fastest(context, n)
    context.use_threads(1)
    one_s = _fastest(context, n)
    context.use_threads(threads)
    return 0 if all_s < _WORTH_WAKING * one_s else int(n * _SMALL_STEP_S / one_s)


def _fastest(context: Context, n: int) -> float:
    """Seconds of a step of `n` tokens; the first few are slower, while the threads come up."""
    return min(_time_tokens(context, n) for _ in range(_SMALL_STEP_TRIES))


def time_cell(context: Context, sequences: int, *, has_moves: bool) -> tuple[float, MoveCost | None]:
    """(seconds that each cell of another sequence adds to the step of a token, what moving cells takes).

    A few computed tokens are copied to many sequences: that fills cells in no time.

    Args:
        sequences: ids that the context has.
        has_moves: whether each token has a cell, which can lie anywhere: moves are timed as well.
    """
    n = min(_CELL_TRIAL_TOKENS, context.cells // 4, context.batch_tokens)
    row_id = sequences - 1
    empty_s = _time_rows(context, row_id)
    context.decode_tokens(np.zeros(n, np.int32), seq_id=0, position=0)
    state = np.empty(context.state_size(0), np.uint8)
    others = range(1, min(row_id, context.cells // n - 1, _CELL_TRIAL_CELLS // n))
    is_filled = context.copy_out(0, state) and all(context.copy_in(seq_id, state) for seq_id in others)
    filled_s = _time_rows(context, row_id) if is_filled else empty_s
    context.clear()
    cell_s = max(filled_s - empty_s, 0.0) / (n * (1 + len(others)) * _CELL_TRIAL_ROWS)
    return cell_s, _time_moves(context, sequences, state, n) if has_moves else None


def _time_moves(context: Context, sequences: int, state: StateBytes, n: int) -> MoveCost | None:
    """Measure what moving cells takes: none of them, and copies of the `n` in `state`. None if it takes too
    long."""
    none_s = compact(context)
    if none_s > _LONGEST_MOVE_S:
        return None
    copies = min(_MOVE_TRIAL_COPIES, sequences, context.cells // n)
    is_filled = all(context.copy_in(seq_id, state) for seq_id in range(copies))
    some_s = compact(context)
    context.clear()
    return MoveCost(none_s, max(some_s - none_s, 0.0) / (n * copies)) if is_filled else None


def compact(context: Context) -> float:
    """Move all filled cells of a context down, in their order; returns the seconds it took.

    Raises:
        DecodeError: the engine has to start again.
    """
    began = time.perf_counter()
    if not context.compact():
        raise DecodeError("the filled KV cells could not be moved")
    return time.perf_counter() - began


def _time_rows(context: Context, seq_id: int) -> float:
    """Seconds of a step of a few tokens, whatever the cache holds."""
    rows = np.zeros(_CELL_TRIAL_ROWS, np.int32)
    times: list[float] = []
    while len(times) < _CELL_TRIES and (len(times) < _CALIBRATION_STEPS or sum(times) < _CELL_TRIAL_S):
        began = time.perf_counter()
        context.decode_tokens(rows, seq_id=seq_id, position=0)
        times.append(time.perf_counter() - began)
        context.forget(seq_id)
    return min(times)


def _time_tokens(context: Context, n: int) -> float:
    """Seconds to decode `n` tokens of no meaning, which are forgotten again."""
    began = time.perf_counter()
    context.decode_tokens(np.zeros(n, np.int32), seq_id=0, position=0)
    seconds = time.perf_counter() - began
    context.clear()
    return seconds
