"""The worker's engine without any service around it, and the bare loop, in turn in one process.

    python -m benchmarks.engine_alone [--concurrency 8] [--requests 32] [--pairs 5]

What the table's throughput rows lose besides is lost between the processes. Prints each pair's tokens per
second, the median of the ratios, and the gaps between two tokens of a stream.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track
from rich.table import Table

from inferflux.worker.processes.engine_process import SPIN_COUNT

from .command_line import make_parser, positive
from .engine_loop import EngineLoop, item_of
from .prompts import Prompts, middle_of
from .stats import median
from .trace import Trace, totals

if TYPE_CHECKING:
    from inferflux.worker.engine.llama.native import Backend

SLOTS = 16


def run_engine(
    backend: Backend, prompts: Prompts, *, requests: int, max_tokens: int, concurrency: int
) -> list[Trace]:
    """As `BareLoop.run`: an ended sequence's place is taken at once."""
    loop = EngineLoop(backend, concurrency)
    # Prompts are made before the clock runs.
    waiting = [item_of(index, prompts[index], max_tokens) for index in reversed(range(requests))]
    traces: list[Trace] = []
    while waiting or not loop.is_idle:
        while waiting and loop.n_free:
            traces.append(loop.start(waiting.pop()))
        loop.step()
    return traces


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"), help="GGUF to measure")
    parser.add_argument("--concurrency", type=positive, default=8, help="sequences at a time, at most 16")
    parser.add_argument("--requests", type=positive, default=32)
    parser.add_argument("--prompt-tokens", type=positive, default=128)
    parser.add_argument("--max-tokens", type=positive, default=64)
    parser.add_argument("--pairs", type=positive, default=5, help="how often both are run (default: 5)")
    parser.add_argument("--threads", type=int, default=0, help="0: every core this process may use")
    parser.add_argument("--pin", type=int, help="run on this core alone")
    parser.add_argument(
        "--spin", default=SPIN_COUNT, help="GOMP_SPINCOUNT (default: %(default)s, as the worker)"
    )
    options = parser.parse_args()
    if options.concurrency > SLOTS:
        parser.error(f"--concurrency: at most {SLOTS}")
    return options


def main() -> None:
    options = parse()
    if options.pin is not None:
        os.sched_setaffinity(0, {options.pin})
    os.environ["GOMP_SPINCOUNT"] = options.spin
    # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
    from benchmarks.bare_loop import BareLoop
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.llama.native import Backend

    config = engine_pb2.EngineConfig(
        model_path=str(options.model_file),
        slots=SLOTS,
        sequences=2 * SLOTS,
        batch_tokens=2048,
        threads=options.threads,
        flash_attention=True,
    )
    backend = Backend(config)
    loop = BareLoop(options.model_file, slots=SLOTS, threads=options.threads)
    loop.warm_up()
    prompts = Prompts(options.prompt_tokens, middle_of(loop.vocabulary_size), 0)
    load = {name: getattr(options, name) for name in ("requests", "max_tokens", "concurrency")}
    table = Table(title=f"tokens/s, {options.concurrency} of {options.requests} requests at a time")
    for heading in ("engine", "bare loop", "ratio", "median gap ms", "longest gap ms"):
        table.add_column(heading, justify="right")
    ratios = []
    for _ in track(range(options.pairs), description="pairs", console=Console(stderr=True)):
        engine = totals(run_engine(backend, prompts, **load))
        bare = totals(loop.run(prompts, **load))
        ratios.append(engine["tokens_per_s"] / bare["tokens_per_s"])
        rates = (f"{engine['tokens_per_s']:.1f}", f"{bare['tokens_per_s']:.1f}", f"{ratios[-1]:.3f}")
        table.add_row(*rates, *(f"{engine['itl_ms'][of]:.1f}" for of in ("p50", "max")))
    Console().print(table)
    Console().print(f"median ratio: {median(ratios):.3f}")


if __name__ == "__main__":
    main()
