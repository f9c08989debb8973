"""How a CPU's logits depend on what a step holds, and how far defects turn them: a table for each.

    .venv/bin/python -m benchmarks.same_answer.bits MODEL [--threads 2]

The first one compares the last of `--tokens` tokens' logits bit by bit with those of steps of 63 rows. The
second one is 1 - correlation, the mean of 8 rows of logits after ordinary text, for what an engine tells from
rounding.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from inferflux.v1 import engine_pb2

from .trial import prompts_of

if TYPE_CHECKING:
    from inferflux.worker.engine.llama.context import Context
    from inferflux.worker.engine.llama.native import Backend

Tokens = NDArray[np.int32]
Logits = NDArray[np.float32]
_FEW, _SEQUENCES = 63, 8
# Tokens that are decoded one by one, after the others.
_DECODED = 16
# Whose logits are compared in the second table: the last ones.
_ROWS = 8


def _steps(n: int, size: int, last: int = 0) -> Iterator[tuple[int, int]]:
    """First and end of each step of `n` tokens; of the last one `last`, if it is not 0."""
    for first in range(0, n - last, size):
        yield first, min(first + size, n - last)
    if last:
        yield n - last, n


def _in_steps(context: Context, tokens: Tokens, steps: Iterable[tuple[int, int]]) -> Logits:
    context.clear()
    for first, end in steps:
        logits = context.decode_tokens(tokens[first:end], seq_id=0, position=first)
    return logits.copy()


def _decoded(context: Context, tokens: Tokens, others: int) -> Logits:
    """The last tokens one by one, beside a token of each sequence that came before."""
    from inferflux.worker.engine.llama.context import Run

    context.clear()
    before = 40
    for other in range(1, others + 1):
        context.decode_tokens(np.roll(tokens, other)[:before], seq_id=other, position=0)
    n = tokens.shape[0]
    for first, end in _steps(n - _DECODED, _FEW):
        context.decode_tokens(tokens[first:end], seq_id=0, position=first)
    for i in range(n - _DECODED, n):
        at = before + i - (n - _DECODED)
        beside = (Run(np.roll(tokens, other)[at : at + 1], other, at) for other in range(1, others + 1))
        logits = context.decode_runs([*beside, Run(tokens[i : i + 1], 0, i)])
    return logits[-1:].copy()


def bits(backend: Backend, single: Backend, tokens: Tokens) -> Iterator[tuple[str, float]]:
    """Each way to compute, and the largest difference of a logit.

    Args:
        single: the same on one thread.
    """
    n, context = tokens.shape[0], backend._main  # noqa: SLF001
    expected = _in_steps(context, tokens, _steps(n, _FEW))

    def apart(logits: Logits) -> float:
        return float(np.abs(logits - expected).max())

    for size in (2, 16, 33, 64, 128, n):
        # No last step of one row: that is a case of its own.
        steps = _steps(n, size, last=size if n % size == 1 else 0)
        yield f"in steps of {size} rows", apart(_in_steps(context, tokens, steps))
    yield "with a last step of one row", apart(_in_steps(context, tokens, _steps(n, _FEW, last=1)))
    for others in (0, 1, 2, 5):
        yield f"decoded as one of {others + 1} rows", apart(_decoded(context, tokens, others))
    one = single._main  # noqa: SLF001
    yield f"on one thread, in steps of {_FEW}", apart(_in_steps(one, tokens, _steps(n, _FEW)))
    yield "on one thread, decoded as one of 3 rows", apart(_decoded(one, tokens, 2))


def turns(backend: Backend, tokens: Tokens) -> Iterator[tuple[str, float]]:
    """Each defect, and how far it turns the logits after it."""
    from inferflux.common.llama.native import llama
    from inferflux.worker.engine.llama.trial import deviation

    context, prefill = backend._main, backend._prefill  # noqa: SLF001
    first, other = tokens.shape[0] - _ROWS, 3

    def computed(of: Context, damage: Callable[[], object] | None = None, given: Tokens = tokens) -> Logits:
        of.clear()
        if damage is None:
            return of.decode_tokens(given, seq_id=0, position=0, rows=_ROWS).copy()
        of.decode_tokens(given[:first], seq_id=0, position=0)
        damage()
        return of.decode_tokens(given[first:], seq_id=0, position=first, rows=_ROWS).copy()

    def drop(cell: int) -> object:
        return llama.llama_memory_seq_rm(context._memory, 0, cell, cell + 1)  # noqa: SLF001

    def add() -> None:
        context.decode_tokens(np.full(first, tokens[1], np.int32), seq_id=other, position=0)
        llama.llama_memory_seq_cp(context._memory, other, 0, first // 2, first // 2 + 1)  # noqa: SLF001

    def rotate() -> None:
        """The keys of a token are those of the next position."""
        context.clear()
        context.decode_tokens(tokens[:first], seq_id=0, position=1)
        state = context.copy_part_out(0, 1, first + 1)
        if state is None:
            raise SystemExit("the state could not be read")
        # A head of 16 bytes, and 12 of each cell: position, sequences, id.
        state[16:][: 12 * first].view("<i4").reshape(-1, 3)[:, 0] -= 1
        context.clear()
        context.append(0, state)

    expected = computed(context)
    if prefill is not None:
        yield "both kernels from scratch", deviation(computed(prefill.context), expected).turn
        prefill.context.clear()
        context.clear()
        copied = prefill._trial_to_main(tokens)  # noqa: SLF001
        if copied is not None:
            yield "cells copied as they are", deviation(copied, expected).turn
    yield "in two steps", deviation(computed(context, lambda: None), expected).turn
    yield "keys rotated for the next position", deviation(computed(context, rotate), expected).turn
    yield "the first cell missing", deviation(computed(context, lambda: drop(0)), expected).turn
    yield (
        "a cell in the middle missing",
        deviation(computed(context, lambda: drop(first // 2)), expected).turn,
    )
    yield "a cell of another sequence added", deviation(computed(context, add), expected).turn
    changed = tokens.copy()
    changed[first // 2] = tokens[1]
    yield "one token another one", deviation(computed(context, given=changed), expected).turn


def _backend(path: Path, threads: int) -> Backend:
    from inferflux.worker.engine.llama.native import Backend

    config = engine_pb2.EngineConfig(
        model_path=str(path),
        slots=_SEQUENCES,
        sequences=_SEQUENCES,
        batch_tokens=512,
        kv_cells=2048,
        context_length=1024,
        threads=threads,
        flash_attention=True,
    )
    return Backend(config)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=260)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args(arguments)

    from inferflux.worker.engine.llama.trial import trial_tokens

    backend = _backend(asked.model, asked.threads)
    many = prompts_of(backend, 40, seed=7, words=90)
    tokens = np.array([token for prompt in many for token in prompt][: asked.tokens], np.int32)
    print(f"the logits after {tokens.shape[0]} tokens, {asked.threads} threads, beside steps of {_FEW} rows")
    for name, difference in bits(backend, _backend(asked.model, 1), tokens):
        print(f"  {name}: {f'{difference:.2f} apart' if difference else 'the same bits'}", flush=True)
    print("1 - correlation, the mean of 8 rows")
    for name, turn in turns(backend, trial_tokens(backend.vocab)):
        print(f"  {name}: {turn:.2g}", flush=True)


if __name__ == "__main__":
    main()
