"""How often a draw changes because llama.cpp computed its logits in another way.

    python -m benchmarks.draw_stability [--model-file FILE] [--json FILE]

The same tokens are decoded one by one with flash attention, and again with other rows per batch or without
it. For each pair of kernels: how far the logits are from each other, and the share of draws that part, drawn
by the inverse of the cumulative distribution and by Gumbel noise, over the whole vocabulary. Total variation
is the least share that any way of drawing can have.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from inferflux.common.llama.native import llama
from inferflux.worker.engine.llama.context import Context
from inferflux.worker.engine.plan.planner import ScheduledTokens
from inferflux.worker.engine.sampling import noise

from .command_line import add_json, make_parser, positive, write_json
from .step_cost import sequence

Logits = NDArray[np.float32]

_CELLS = 4096
# Enough outputs for the largest batch.
_SEQUENCES = 200
# Whose logits are compared: the attention of the first reads fewer than 512 cells, of the second more.
_RANGES = {"below 512": (100, 256), "above 512": (512, 700)}
_TOKENS = 700
_TEXT_TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class Kernel:
    """How tokens are computed."""

    rows: int
    flash_attention: bool

    @property
    def name(self) -> str:
        return f"{'flash' if self.flash_attention else 'no flash'}, {self.rows} row{'s'[: self.rows > 1]}"


PAIRS = [
    (Kernel(2, True), Kernel(8, True)),
    (Kernel(2, True), Kernel(63, True)),
    (Kernel(1, True), Kernel(8, True)),
    (Kernel(1, True), Kernel(64, True)),
    (Kernel(1, True), Kernel(128, True)),
    (Kernel(1, True), Kernel(1, False)),
    (Kernel(1, True), Kernel(128, False)),
    (Kernel(1, False), Kernel(8, False)),
]


class Model:
    """A model in this process."""

    def __init__(self, path: Path) -> None:
        self._model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"{path}: not a usable GGUF file")
        self.vocabulary = int(llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model)))

    def context(self, *, flash_attention: bool) -> Context:
        return Context(
            self._model,
            cells=_CELLS,
            sequences=_SEQUENCES,
            batch_tokens=512,
            physical_batch=512,
            flash_attention=flash_attention,
            threads=len(os.sched_getaffinity(0)),
            vocabulary=self.vocabulary,
        )

    def logits(self, tokens: NDArray[np.int32], kernel: Kernel) -> Logits:
        """After each of these tokens: of shape (tokens, vocabulary)."""
        context = self.context(flash_attention=kernel.flash_attention)
        found = [
            decode(context, tokens[first : first + kernel.rows], first)
            for first in range(0, len(tokens), kernel.rows)
        ]
        context.close()
        return np.concatenate(found)

    def text(self, n: int, temperature: float) -> NDArray[np.int32]:
        """Tokens that the model itself writes."""
        context = self.context(flash_attention=True)
        tokens = np.ones(n, np.int32)
        ids = np.arange(self.vocabulary)
        states = noise.draw_states([noise.seed_state(1)] * n, range(n))
        for i in range(n - 1):
            (row,) = decode(context, tokens[i : i + 1], i)
            tokens[i + 1] = (row / temperature + noise.gumbel(states[i : i + 1], ids)).argmax()
        context.close()
        return tokens


def decode(context: Context, tokens: NDArray[np.int32], position: int) -> Logits:
    """Of shape (tokens, vocabulary), a copy."""
    n = len(tokens)
    part = sequence(0, n, position, 0)
    part.tokens[position:] = tokens
    return context.decode([ScheduledTokens(part, n, n_logits=n)]).copy()


def by_inverse(logits: Logits, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    cumulative = np.cumsum(np.exp(logits - logits.max()), dtype=np.float64)
    found: NDArray[np.int64] = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")
    return found


def parted(a: Logits, b: Logits, first: int, draws: int, temperature: float) -> dict[str, float]:
    """Shares of the draws from two matrices of shape (tokens, vocabulary) that part."""
    rng = np.random.default_rng(1)
    ids = np.arange(a.shape[1])
    inverse = gumbel = distance = 0.0
    for i, pair in enumerate(zip(a / np.float32(temperature), b / np.float32(temperature), strict=True)):
        uniforms = rng.random(draws)
        inverse += float(np.mean(by_inverse(pair[0], uniforms) != by_inverse(pair[1], uniforms)))
        states = noise.draw_states([noise.seed_state(s) for s in range(draws)], [first + i] * draws)
        added = noise.gumbel(states[:, None], ids)
        gumbel += float(np.mean((pair[0] + added).argmax(axis=1) != (pair[1] + added).argmax(axis=1)))
        weights = [np.exp(row - row.max(), dtype=np.float64) for row in pair]
        distance += float(np.abs(weights[0] / weights[0].sum() - weights[1] / weights[1].sum()).sum() / 2)
    return {"total_variation": distance / len(a), "inverse": inverse / len(a), "gumbel": gumbel / len(a)}


def compare(a: Logits, b: Logits, draws: int, temperature: float) -> dict[str, Any]:
    """What two kernels made of the same tokens."""
    difference = np.abs(a - b).max(axis=1)
    differing = np.flatnonzero(difference)
    found: dict[str, Any] = {
        "differing_rows": len(differing),
        "first_differing": int(differing[0]) if len(differing) else None,
        "largest_difference": float(difference.max()),
    }
    for name, (first, end) in _RANGES.items():
        found[name] = parted(a[first:end], b[first:end], first, draws, temperature)
    return found


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/inferflux-demo.gguf"))
    parser.add_argument("--draws", type=positive, default=10, help="of each position (default: %(default)s)")
    add_json(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    model = Model(options.model_file)
    random = np.random.default_rng(1).integers(10, model.vocabulary - 10, _TOKENS).astype(np.int32)
    texts = {
        "random tokens, T 1": (random, 1.0),
        "own text, T 0.8": (model.text(_TOKENS, _TEXT_TEMPERATURE), _TEXT_TEMPERATURE),
    }
    results: dict[str, Any] = {}
    for title, (tokens, temperature) in texts.items():
        logits = {kernel: model.logits(tokens, kernel) for kernel in {k for pair in PAIRS for k in pair}}
        table = Table("kernels", "rows that differ", "first", "largest difference", title=title)
        for name in _RANGES:
            for way in ("least", "inverse", "Gumbel"):
                table.add_column(f"{name}: {way}")
        for one, other in PAIRS:
            found = compare(logits[one], logits[other], options.draws, temperature)
            results.setdefault(title, {})[f"{one.name} / {other.name}"] = found
            shares = [f"{share:.4f}" for name in _RANGES for share in found[name].values()]
            first = found["first_differing"]
            table.add_row(
                f"{one.name} / {other.name}",
                f"{found['differing_rows']} of {_TOKENS}",
                "" if first is None else str(first),
                f"{found['largest_difference']:.3g}",
                *shares,
            )
        Console(width=200).print(table)
    write_json(options, results)


if __name__ == "__main__":
    main()
