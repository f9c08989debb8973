"""Where is a short suffix after a shared prefix computed sooner: in the main or in the prefill context?

    python -m benchmarks.short_suffix [--model-file FILE] [--threads 1] [--json FILE]

One process. Into the prefill context the prefix is copied first, and what was computed is copied back: both
are counted. `narrow` is a main context that holds the prefix alone, `wide` one with as many cells of others
as a dozen such prompts have. Prints the CPU time of each, in milliseconds, and main over prefill context: the
least of some repeats, in turn. CPU time says what a core does, whatever else the machine runs; of several
threads it counts their waiting too.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from inferflux.worker.processes.engine_process import SPIN_COUNT

from .command_line import add_json, make_parser, positive, write_json
from .step_cost import sequence

if TYPE_CHECKING:
    from inferflux.worker.engine.llama.native import Backend

_KV_CELLS = 16384
_FILL_TOKENS = 512
_OTHERS = 11
_OWN, _FIRST_OTHER = 0, 1


class Trial:
    """A backend whose main context holds a prefix, and maybe cells of others."""

    def __init__(self, backend: Backend, depth: int, *, is_wide: bool) -> None:
        self._backend, self._depth = backend, depth
        for seq_id in range(_FIRST_OTHER, _FIRST_OTHER + _OTHERS):
            backend.forget(seq_id)
        backend.forget(_OWN)
        for first in range(0, depth, _FILL_TOKENS):
            self._compute(min(_FILL_TOKENS, depth - first), first, in_prefill_context=False)
        if is_wide:
            state = np.empty(backend.state_size(_OWN), np.uint8)
            backend.copy_out(_OWN, state)
            for seq_id in range(_FIRST_OTHER, _FIRST_OTHER + _OTHERS):
                backend.copy_in(seq_id, state)

    def cpu_ms(self, suffix: int, *, in_prefill_context: bool) -> float:
        """Of the suffix up to its logits, after which it is forgotten."""
        began = time.process_time()
        self._compute(suffix, self._depth, in_prefill_context=in_prefill_context)
        if in_prefill_context:
            self._backend.forget_prefill(_OWN)
        taken = time.process_time() - began
        self._backend.forget(_OWN, self._depth)
        return taken * 1000

    def _compute(self, n: int, position: int, *, in_prefill_context: bool) -> None:
        from inferflux.worker.engine.plan.planner import ScheduledTokens, StepPlan

        part = ScheduledTokens(sequence(_OWN, n, position, 0), n, n_logits=1)
        self._backend.decode(StepPlan([], [part], in_prefill_context))


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"), help="GGUF to measure")
    parser.add_argument("--depths", type=positive, nargs="+", default=[256, 1000])
    parser.add_argument("--suffixes", type=positive, nargs="+", default=[4, 8, 16, 24, 48])
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--threads", type=int, default=1, help="0: every core this process may use")
    add_json(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.llama.native import Backend

    backend = Backend(
        engine_pb2.EngineConfig(
            model_path=str(options.model_file),
            slots=8,
            sequences=80,
            kv_cells=_KV_CELLS,
            batch_tokens=2048,
            threads=options.threads,
            flash_attention=True,
        )
    )
    found: list[dict[str, float | str]] = []
    table = Table("main context", "prefix", "suffix", "main, ms", "prefill context, ms", "ratio")
    for depth in options.depths:
        for width in ("narrow", "wide"):
            trial = Trial(backend, depth, is_wide=width == "wide")
            for suffix in options.suffixes:
                times = {False: np.inf, True: np.inf}
                for _ in range(options.repeats):
                    for where in times:
                        times[where] = min(times[where], trial.cpu_ms(suffix, in_prefill_context=where))
                row = {"prefix": depth, "suffix": suffix, "main_ms": times[False], "prefill_ms": times[True]}
                found.append({"width": width, **row})
                cells = [f"{times[False]:.0f}", f"{times[True]:.0f}", f"{times[False] / times[True]:.2f}"]
                table.add_row(width, str(depth), str(suffix), *cells)
    Console().print(table)
    write_json(options, found)


if __name__ == "__main__":
    main()
