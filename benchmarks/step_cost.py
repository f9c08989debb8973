"""What an engine step costs by prompt tokens, at growing depth, in mixed batches and in the prefill context.

    python -m benchmarks.step_cost [--model-file FILE] [--decodes 4] [--threads N] [--spin ROUNDS]

Prints the median milliseconds of a step for each combination: the facts that the step budget lives with.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from inferflux.worker.processes.engine_process import SPIN_COUNT

from .command_line import make_parser
from .stats import median

if TYPE_CHECKING:
    from inferflux.worker.engine.llama.native import Backend
    from inferflux.worker.engine.plan.sequence import Sequence

DEPTHS = (0, 500, 1000, 2000, 3500)
PROMPT_TOKENS = (8, 16, 32, 64, 128)
_DECODE_TOKENS = 190
_REPEATS = 5
_FILL_TOKENS = 512
_KV_CELLS = 16384
# Nothing is copied to the main context before the end is near.
_LEFT_OF_PROMPT = 1_000_000


class Bench:
    """A backend with `decodes` sequences in its cache, and one more that grows."""

    def __init__(self, backend: Backend, decodes: int) -> None:
        self._backend = backend
        self._decodes = range(1, decodes + 1)
        self._depth = 0
        for seq_id in self._decodes:
            self._run([(seq_id, _DECODE_TOKENS, 0)])

    def deepen(self, depth: int) -> None:
        """Fill the growing sequence up to `depth` tokens."""
        while self._depth < depth:
            n = min(_FILL_TOKENS, depth - self._depth)
            self._run([(0, n, self._depth)])
            self._depth += n

    def decodes_ms(self) -> float:
        """Median milliseconds of a step with a token of each decode."""
        return self._median_ms(self._tokens_of_decodes())

    def mixed_ms(self, prompt_tokens: int) -> float:
        """The same with this many tokens of the growing sequence in a mixed batch."""
        return self._median_ms([*self._tokens_of_decodes(), (0, prompt_tokens, self._depth)])

    def _tokens_of_decodes(self) -> list[tuple[int, int, int]]:
        return [(seq_id, 1, _DECODE_TOKENS) for seq_id in self._decodes]

    def _median_ms(self, parts: list[tuple[int, int, int]]) -> float:
        return median(self._timed(parts) for _ in range(_REPEATS)) * 1000

    def _timed(self, parts: list[tuple[int, int, int]]) -> float:
        began = time.perf_counter()
        self._run(parts)
        seconds = time.perf_counter() - began
        for seq_id, _, position in parts:
            self._backend.forget(seq_id, position)
        return seconds

    def prefill_context_ms(self, prompt_tokens: int) -> float:
        """Median milliseconds of a step in the prefill context, at the depth of the growing sequence; what it
        takes to copy its tokens later is not in it."""
        seq_id = len(self._decodes) + 1
        for first in range(0, self._depth, _FILL_TOKENS):
            self._run([(seq_id, min(_FILL_TOKENS, self._depth - first), first)], in_prefill_context=True)
        times = []
        for repeat in range(_REPEATS):
            began = time.perf_counter()
            self._run(
                [(seq_id, prompt_tokens, self._depth + repeat * prompt_tokens)], in_prefill_context=True
            )
            times.append(time.perf_counter() - began)
        self._backend.forget(seq_id)
        self._backend.forget_prefill(seq_id)
        return median(times) * 1000

    def _run(self, parts: list[tuple[int, int, int]], *, in_prefill_context: bool = False) -> None:
        """Decode (seq_id, tokens, first position) in one step."""
        from inferflux.worker.engine.plan.planner import ScheduledTokens, StepPlan

        left = _LEFT_OF_PROMPT if in_prefill_context else 0
        scheduled = [ScheduledTokens(sequence(*part, left), part[1], n_logits=1) for part in parts]
        self._backend.decode(
            StepPlan(decoding=scheduled, prefilling=[], in_prefill_context=in_prefill_context)
        )


def sequence(seq_id: int, tokens: int, position: int, left: int) -> Sequence:
    """A sequence with this many tokens for this step, and `left` after it; their ids do not matter."""
    from inferflux.v1 import generation_pb2
    from inferflux.worker.engine.plan.sequence import Sequence
    from inferflux.worker.engine.plan.text import TextAssembler
    from inferflux.worker.engine.sampling.sampling import Sampler

    return Sequence(
        key=str(seq_id),
        request_id=str(seq_id),
        epoch=1,
        slot=seq_id,
        urgency_key=0.0,
        arrival=seq_id,
        tokens=np.full(position + tokens, 7, np.int32),
        prompt_tokens=position + tokens + left,
        max_tokens=1,
        end_tokens=frozenset(),
        sampler=Sampler(generation_pb2.SamplingParams(), ()),
        text=TextAssembler(),
        deadline_s=float("inf"),
        enqueued_s=0.0,
        queue_ms=0.0,
        started_s=0.0,
        position=position,
        seq_id=seq_id,
    )


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"), help="GGUF to measure")
    parser.add_argument("--decodes", type=int, default=4, help="sequences that decode (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="0: every core this process may use")
    parser.add_argument(
        "--spin", default=SPIN_COUNT, help="GOMP_SPINCOUNT (default: %(default)s, as the worker)"
    )
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ["GOMP_SPINCOUNT"] = options.spin
    # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.llama.native import Backend

    config = engine_pb2.EngineConfig(
        model_path=str(options.model_file),
        slots=options.decodes + 2,
        kv_cells=_KV_CELLS,
        prefill_cells=_KV_CELLS // 2,
        batch_tokens=2048,
        threads=options.threads,
        flash_attention=True,
    )
    bench = Bench(Backend(config), options.decodes)
    tables = {
        kind: Table(title=f"milliseconds of a step, {kind}") for kind in ("mixed batches", "prefill context")
    }
    for table in tables.values():
        for heading in (
            "depth",
            f"{options.decodes} decodes",
            *(f"{n} prompt tokens" for n in PROMPT_TOKENS),
        ):
            table.add_column(heading, justify="right")
    for depth in track(DEPTHS, description="depth", console=Console(stderr=True)):
        bench.deepen(depth)
        decodes_ms = bench.decodes_ms()
        mixed = [decodes_ms, *(bench.mixed_ms(n) for n in PROMPT_TOKENS)]
        in_context = [decodes_ms, *(bench.prefill_context_ms(n) for n in PROMPT_TOKENS)]
        for table, times in zip(tables.values(), (mixed, in_context), strict=True):
            table.add_row(str(depth), *(f"{ms:.1f}" for ms in times))
    for table in tables.values():
        Console().print(table)


if __name__ == "__main__":
    main()
