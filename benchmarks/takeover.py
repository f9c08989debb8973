"""What a worker computes again after another one died, in other steps than it does: the engine alone.

    python -m benchmarks.takeover [--model-file models/bench.gguf] [--rounds 3]

Eight requests arrive at once, each with a prompt and tokens that were generated before. Time runs until each
has its next token. The engine has one thread, and all seconds are that thread's CPU time: other processes
change them little. A step's limit is twice the default, as two threads would halve its time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

from rich.console import Console
from rich.table import Table

from .command_line import make_parser, positive
from .engine_loop import item_of
from .prompts import Prompts, middle_of
from .stats import median

if TYPE_CHECKING:
    from inferflux.worker.engine.llama.native import Backend

REQUESTS = 8
_BATCH_TOKENS = 2048
_STEP_LIMIT_S = 0.4

VARIANTS = ("as it is", "mixed batches of 256 tokens", "all in one step")


@contextmanager
def variant(name: str) -> Iterator[None]:
    """Other steps than the engine's own, all of them mixed batches."""
    from inferflux.worker.engine.plan import planner
    from inferflux.worker.engine.plan.budget import StepBudget

    if name == VARIANTS[0]:
        yield
        return
    most = 256 if name == VARIANTS[1] else _BATCH_TOKENS

    def mixed(_budget: object, n_decoding: int, *_: object, **_more: object) -> int:
        return most - n_decoding

    with (
        mock.patch.object(StepBudget, "mixed", mixed),
        mock.patch.object(planner, "select_prefills", lambda prefilling, *_: (prefilling, False)),
    ):
        yield


def recompute(backend: Backend, prompt_tokens: int, generated: int) -> list[float]:
    """Seconds of CPU time until each request has its next token, sorted."""
    from inferflux.worker.engine.step.clock import Clock
    from inferflux.worker.engine.step.core import Engine
    from inferflux.worker.engine.tiers.tiers import Tiers

    engine = Engine(
        backend,
        worker_id="bench",
        max_itl_factor=5.0,
        step_limit_s=_STEP_LIMIT_S,
        tiers=Tiers.off(),
        clock=Clock(monotonic_s=time.thread_time),
    )
    prompts = Prompts(prompt_tokens + generated, middle_of(backend.vocab.size))
    for slot in range(REQUESTS):
        tokens = prompts[slot]
        item = item_of(slot, tokens[:prompt_tokens], generated + 64)
        item.request.generated_token_ids.extend(tokens[prompt_tokens:])
        item.slot = slot
        engine.start(item)
    began = time.thread_time()
    found: dict[str, float] = {}
    while len(found) < REQUESTS:
        engine.step()
        if (report := engine.take_report()) is not None:
            for emission in report.step.emissions:
                if emission.generated_tokens > generated:
                    found.setdefault(emission.key, time.thread_time() - began)
    for key in found:
        engine.cancel(key, is_silent=True)
    return sorted(found.values())


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"), help="GGUF to measure")
    parser.add_argument("--prompt-tokens", type=positive, default=128)
    parser.add_argument("--generated", type=positive, default=64, help="tokens generated before")
    parser.add_argument("--rounds", type=positive, default=3)
    return parser.parse_args()


def main() -> None:
    options = parse()
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.llama import native

    config = engine_pb2.EngineConfig(
        model_path=str(options.model_file),
        slots=REQUESTS,
        sequences=2 * REQUESTS,
        kv_cells=16384,
        batch_tokens=_BATCH_TOKENS,
        threads=1,
        flash_attention=True,
    )
    backend = native.Backend(config)
    runs: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
    # The engine's warm-up teaches its budget by the same clock.
    with mock.patch.object(native, "time", SimpleNamespace(perf_counter=time.thread_time)):
        for _ in range(options.rounds):
            for name in VARIANTS:
                with variant(name):
                    runs[name].append(recompute(backend, options.prompt_tokens, options.generated))
    figures: dict[str, Callable[[list[float]], float]] = {
        "first": min,
        "mean": lambda times: sum(times) / len(times),
        "last": max,
    }
    table = Table("steps", *figures, title="CPU seconds until a request has its next token, medians")
    for name, of_name in runs.items():
        table.add_row(name, *(f"{median(map(figure, of_name)):.2f}" for figure in figures.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
