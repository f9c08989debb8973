"""What one engine step costs, by its prompt tokens, at growing depth: beside streams that decode, and apart.

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

from inferflux.worker.engine_host import SPIN_COUNT

from .stats import median

if TYPE_CHECKING:
    from inferflux.worker.engine.native import Backend
    from inferflux.worker.engine.sequence import Sequence

DEPTHS = (0, 500, 1000, 2000, 3500)
PROMPT_TOKENS = (8, 16, 32, 64, 128)
_STREAM_TOKENS = 190
_REPEATS = 5
_FILL_TOKENS = 512
_KV_CELLS = 16384
# Apart, nothing is copied to the streams before the end is near.
_LEFT_OF_PROMPT = 1_000_000


class Bench:
    """A backend with `streams` sequences in its cache, and one more that grows."""

    def __init__(self, backend: Backend, streams: int) -> None:
        self._backend = backend
        self._streams = range(1, streams + 1)
        self._depth = 0
        for seq_id in self._streams:
            self._run([(seq_id, _STREAM_TOKENS, 0)])

    def deepen(self, depth: int) -> None:
        """Fill the growing sequence up to `depth` tokens."""
        while self._depth < depth:
            n = min(_FILL_TOKENS, depth - self._depth)
            self._run([(0, n, self._depth)])
            self._depth += n

    def streams_ms(self) -> float:
        """Median milliseconds of a step with a token for each stream."""
        return self._median_ms(self._tokens_of_streams())

    def beside_ms(self, prompt_tokens: int) -> float:
        """The same with so many tokens of the growing sequence beside them."""
        return self._median_ms([*self._tokens_of_streams(), (0, prompt_tokens, self._depth)])

    def _tokens_of_streams(self) -> list[tuple[int, int, int]]:
        return [(seq_id, 1, _STREAM_TOKENS) for seq_id in self._streams]

    def _median_ms(self, parts: list[tuple[int, int, int]]) -> float:
        return median(self._timed(parts) for _ in range(_REPEATS)) * 1000

    def _timed(self, parts: list[tuple[int, int, int]]) -> float:
        began = time.perf_counter()
        self._run(parts)
        seconds = time.perf_counter() - began
        for seq_id, _, position in parts:
            self._backend.forget(seq_id, position)
        return seconds

    def apart_ms(self, prompt_tokens: int) -> float:
        """Median milliseconds of a step apart with so many tokens of a prompt, at the depth of the growing
        sequence; what it takes to copy them later is not in it."""
        seq_id = len(self._streams) + 1
        for first in range(0, self._depth, _FILL_TOKENS):
            self._run([(seq_id, min(_FILL_TOKENS, self._depth - first), first)], is_apart=True)
        times = []
        for repeat in range(_REPEATS):
            began = time.perf_counter()
            self._run([(seq_id, prompt_tokens, self._depth + repeat * prompt_tokens)], is_apart=True)
            times.append(time.perf_counter() - began)
        self._backend.forget(seq_id)
        self._backend.forget_apart(seq_id)
        return median(times) * 1000

    def _run(self, parts: list[tuple[int, int, int]], *, is_apart: bool = False) -> None:
        """Decode (seq_id, tokens, first position) in one step."""
        from inferflux.worker.engine.planner import Share, StepPlan

        left = _LEFT_OF_PROMPT if is_apart else 0
        shares = [Share(sequence(*part, left), part[1], wants_logits=True) for part in parts]
        self._backend.decode(StepPlan(decoding=shares, prefilling=[], is_apart=is_apart))


def sequence(seq_id: int, tokens: int, position: int, left: int) -> Sequence:
    """A sequence with so many tokens for this step, and so many `left` after it; their ids do not matter."""
    from inferflux.v1 import generation_pb2
    from inferflux.worker.engine.sampling import Sampler
    from inferflux.worker.engine.sequence import Sequence
    from inferflux.worker.engine.text import TextAssembler

    return Sequence(
        key=str(seq_id),
        request_id=str(seq_id),
        epoch=1,
        slot=seq_id,
        rank=0.0,
        arrival=seq_id,
        tokens=np.full(position + tokens, 7, np.int32),
        prompt_tokens=position + tokens + left,
        max_tokens=1,
        end_tokens=frozenset(),
        sampler=Sampler(generation_pb2.SamplingParams(), ()),
        text=TextAssembler(),
        deadline_unix_s=float("inf"),
        enqueued_unix_s=0.0,
        queue_ms=0.0,
        started_s=0.0,
        position=position,
        seq_id=seq_id,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"), help="GGUF to measure")
    parser.add_argument("--streams", type=int, default=4, help="sequences that decode (default: %(default)s)")
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
    from inferflux.worker.engine.native import Backend

    config = engine_pb2.EngineConfig(
        model_path=str(options.model_file),
        slots=options.streams + 2,
        kv_cells=_KV_CELLS,
        prefill_cells=_KV_CELLS // 2,
        batch_tokens=2048,
        threads=options.threads,
        flash_attention=True,
    )
    bench = Bench(Backend(config), options.streams)
    tables = {kind: Table(title=f"milliseconds of a step, prompts {kind}") for kind in ("beside", "apart")}
    for table in tables.values():
        for heading in (
            "depth",
            f"{options.streams} streams",
            *(f"{n} prompt tokens" for n in PROMPT_TOKENS),
        ):
            table.add_column(heading, justify="right")
    for depth in track(DEPTHS, description="depth", console=Console(stderr=True)):
        bench.deepen(depth)
        streams_ms = bench.streams_ms()
        beside = [streams_ms, *(bench.beside_ms(n) for n in PROMPT_TOKENS)]
        apart = [streams_ms, *(bench.apart_ms(n) for n in PROMPT_TOKENS)]
        for table, times in zip(tables.values(), (beside, apart), strict=True):
            table.add_row(str(depth), *(f"{ms:.1f}" for ms in times))
    for table in tables.values():
        Console().print(table)


if __name__ == "__main__":
    main()
