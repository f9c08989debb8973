"""The worker's engine without any service around it, and the bare loop, in turn in one process.

    python -m benchmarks.engine_alone [--concurrency 8] [--requests 32] [--pairs 5]

What the table's throughput rows lose besides is lost between the processes. Prints each pair's tokens per
second, the median of the ratios, and the gaps between two tokens of a stream.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track
from rich.table import Table

from .prompts import Prompts, middle_of
from .stats import median
from .target import positive

if TYPE_CHECKING:
    from inferflux.v1 import worker_pb2
    from inferflux.worker.engine.native import Backend

SLOTS = 16


@dataclass(frozen=True, slots=True)
class Load:
    """So many requests of one shape, so many at a time."""

    concurrency: int
    requests: int
    prompt_tokens: int
    max_tokens: int

    @property
    def tokens(self) -> int:
        return self.requests * self.max_tokens


def item_of(index: int, slot: int, prompts: Prompts, load: Load) -> worker_pb2.BatchItem:
    """A greedy request that goes on past the model's own end."""
    from inferflux.v1 import worker_pb2

    item = worker_pb2.BatchItem(slot=slot)
    request = item.request
    request.tenant, request.request_id, request.epoch = "bench", f"r{index}", 1
    request.prompt_token_ids.extend(prompts[index])
    request.params.max_tokens = load.max_tokens
    request.params.ignore_eos = True
    return item


def run_engine(backend: Backend, prompts: Prompts, load: Load) -> tuple[float, list[float]]:
    """Tokens per second, and every gap of every stream in seconds; an ended request is replaced at once."""
    from inferflux.worker.engine.core import Engine

    engine = Engine(backend, worker_id="bench", step_stretch=3.0, step_limit_s=0.2, swap_bytes=0)
    free = list(range(load.concurrency))
    slots: dict[str, int] = {}
    last: dict[str, float] = {}
    gaps: list[float] = []
    started = ended = 0
    began = time.perf_counter()
    while ended < load.requests:
        while free and started < load.requests:
            item = item_of(started, free.pop(), prompts, load)
            slots[f"bench.r{started}"] = item.slot
            engine.start(item)
            started += 1
        engine.step()
        now = time.perf_counter()
        report = engine.take_report()
        if report is None:
            raise RuntimeError("a step that reports nothing")
        for emission in report.step.emissions:
            if emission.key in last:
                gaps.append(now - last[emission.key])
            last[emission.key] = now
        for end in report.step.ended:
            free.append(slots.pop(end.key))
            ended += 1
    return load.tokens / (time.perf_counter() - began), gaps


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"), help="GGUF to measure")
    parser.add_argument("--concurrency", type=positive, default=8, help="sequences at a time, at most 16")
    parser.add_argument("--requests", type=positive, default=32)
    parser.add_argument("--prompt-tokens", type=positive, default=128)
    parser.add_argument("--max-tokens", type=positive, default=64)
    parser.add_argument("--pairs", type=positive, default=5, help="how often both are run (default: 5)")
    parser.add_argument("--threads", type=int, default=0, help="0: every core this process may use")
    parser.add_argument("--pin", type=int, help="run on this core alone")
    parser.add_argument("--spin", default="1000", help="GOMP_SPINCOUNT (default: %(default)s, as the worker)")
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
    from inferflux.worker.engine.native import Backend

    load = Load(options.concurrency, options.requests, options.prompt_tokens, options.max_tokens)
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
    prompts = Prompts(load.prompt_tokens, middle_of(loop.vocabulary_size), 0)
    table = Table(title=f"tokens/s, {load.concurrency} of {load.requests} requests at a time")
    for heading in ("engine", "bare loop", "ratio", "median gap ms", "longest gap ms"):
        table.add_column(heading, justify="right")
    ratios = []
    for _ in track(range(options.pairs), description="pairs", console=Console(stderr=True)):
        engine_rate, gaps = run_engine(backend, prompts, load)
        began = time.perf_counter()
        loop.run(prompts, requests=load.requests, max_tokens=load.max_tokens, concurrency=load.concurrency)
        bare_rate = load.tokens / (time.perf_counter() - began)
        ratios.append(engine_rate / bare_rate)
        figures = (median(gaps) * 1000, max(gaps) * 1000)
        table.add_row(
            f"{engine_rate:.1f}", f"{bare_rate:.1f}", f"{ratios[-1]:.3f}", *(f"{ms:.1f}" for ms in figures)
        )
    Console().print(table)
    Console().print(f"median ratio: {median(ratios):.3f}")


if __name__ == "__main__":
    main()
