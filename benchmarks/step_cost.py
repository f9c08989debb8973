"""What one engine step costs, by its prompt tokens, beside streams that decode and at growing depth.

    python -m benchmarks.step_cost [--model-file FILE] [--streams 4] [--threads N] [--spin ROUNDS]

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

from .stats import median

if TYPE_CHECKING:
    from inferflux.worker.engine.native import Backend
    from inferflux.worker.engine.sequence import Sequence

DEPTHS = (0, 500, 1000, 2000, 3500)
PROMPT_TOKENS = (0, 8, 16, 32, 59, 60, 64, 128)
_STREAM_TOKENS = 190
_REPEATS = 5
_FILL_TOKENS = 512


class Bench:
    """A backend with `streams` sequences in its cache, and one more that grows."""

    def __init__(self, backend: Backend, streams: int) -> None:
        self._backend = backend
        self._streams = range(1, streams + 1)
        self._depth = 0
        for slot in self._streams:
            self._run([(slot, _STREAM_TOKENS, 0)])

    def deepen(self, depth: int) -> None:
        """Fill the growing sequence up to `depth` tokens."""
        while self._depth < depth:
            n = min(_FILL_TOKENS, depth - self._depth)
            self._run([(0, n, self._depth)])
            self._depth += n

    def step_ms(self, prompt_tokens: int) -> float | None:
        """Median milliseconds of a step: a token for each stream, then so many for the growing sequence."""
        parts = [(slot, 1, _STREAM_TOKENS) for slot in self._streams]
        if prompt_tokens:
            parts.append((0, prompt_tokens, self._depth))
        if not parts:
            return None
        return median(self._timed(parts) for _ in range(_REPEATS)) * 1000

    def _timed(self, parts: list[tuple[int, int, int]]) -> float:
        began = time.perf_counter()
        self._run(parts)
        seconds = time.perf_counter() - began
        for slot, _, position in parts:
            self._backend.forget(slot, position)
        return seconds

    def _run(self, parts: list[tuple[int, int, int]]) -> None:
        """Decode (slot, tokens, first position) in one step."""
        from inferflux.worker.engine.planner import Share, StepPlan

        shares = [Share(sequence(*part), part[1], wants_logits=True) for part in parts]
        self._backend.decode(StepPlan(decoding=shares, prefilling=[]))


def sequence(slot: int, tokens: int, position: int) -> Sequence:
    """A sequence with so many tokens pending; their ids do not matter."""
    from inferflux.v1 import generation_pb2
    from inferflux.worker.engine.sampling import Sampler
    from inferflux.worker.engine.sequence import Sequence
    from inferflux.worker.engine.text import TextAssembler

    return Sequence(
        key=str(slot),
        request_id=str(slot),
        epoch=1,
        slot=slot,
        rank=0.0,
        arrival=slot,
        tokens=np.full(position + tokens, 7, np.int32),
        prompt_tokens=position + tokens,
        max_tokens=1,
        end_tokens=frozenset(),
        sampler=Sampler(generation_pb2.SamplingParams(), ()),
        text=TextAssembler(),
        deadline_unix_s=float("inf"),
        enqueued_unix_s=0.0,
        queue_ms=0.0,
        started_s=0.0,
        position=position,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"), help="GGUF to measure")
    parser.add_argument("--streams", type=int, default=4, help="sequences that decode (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="0: every core this process may use")
    parser.add_argument("--spin", default="1000", help="GOMP_SPINCOUNT (default: %(default)s, as the worker)")
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ["GOMP_SPINCOUNT"] = options.spin
    # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.native import Backend

    config = engine_pb2.EngineConfig(
        model_path=str(options.model_file),
        slots=options.streams + 1,
        batch_tokens=2048,
        threads=options.threads,
        flash_attention=True,
    )
    bench = Bench(Backend(config), options.streams)
    table = Table(title=f"milliseconds of a step beside {options.streams} streams")
    for heading in ("depth", *(f"{n} prompt tokens" for n in PROMPT_TOKENS)):
        table.add_column(heading, justify="right")
    for depth in track(DEPTHS, description="depth", console=Console(stderr=True)):
        bench.deepen(depth)
        times = (bench.step_ms(n) for n in PROMPT_TOKENS)
        table.add_row(str(depth), *("" if t is None else f"{t:.1f}" for t in times))
    Console().print(table)


if __name__ == "__main__":
    main()
