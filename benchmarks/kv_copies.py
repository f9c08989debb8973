"""How long decodes wait while cached prefixes are copied from the KV cache to host memory.

    python -m benchmarks.kv_copies [--model-file FILE] [--tokens 1000] [--decodes 4] [--rounds 3]

First the copies alone: a sequence of a given length out of the KV cache and in again.

Then an engine in this process decodes some sequences while prompts arrive one after the other, each of so
many tokens. The KV cache has room for three of them beside the decodes. So each new one evicts another, to
host memory or to nowhere. Both ways follow in turn. Prints the longest and the median gap between two tokens
of a decode, in milliseconds. What the prompts cost decodes is in both.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from inferflux.v1 import engine_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.step.core import Engine
from inferflux.worker.engine.tiers.tiers import Tiers

from .command_line import add_json, make_parser, positive, write_json

_HOST_BYTES = 4 << 30
_IDS = range(300, 1800)
# The sequence id of an engine's first request.
_FIRST_ID = 0
_ROOM = 3
_DECODE_CELLS = 640
_TRIES = 5


def milliseconds(work: Callable[[], object]) -> float:
    """The fastest of some tries."""
    times = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1000)
    return min(times)


def copies(backend: Backend, tokens: int) -> dict[str, float]:
    """Milliseconds of each kind of copy, and the megabytes that are copied."""
    run = Run(backend, Tiers.off(), seed=0)
    run.until_token(run.start(tokens, 1))
    n_bytes = backend.state_size(_FIRST_ID)
    used = np.empty(n_bytes, np.uint8)

    def copy_in() -> None:
        backend.forget(_FIRST_ID)
        backend.copy_in(_FIRST_ID, used)

    return {
        "megabytes": n_bytes / 1e6,
        "out, to memory that was used before": milliseconds(lambda: backend.copy_out(_FIRST_ID, used)),
        "out, to new memory": milliseconds(lambda: backend.copy_out(_FIRST_ID, np.empty(n_bytes, np.uint8))),
        "its first 97 %, cut out of a state": milliseconds(
            lambda: backend.first_positions(used, tokens * 97 // 100)
        ),
        "in": milliseconds(copy_in),
    }


class Run:
    """An engine with decodes, to which prompts come."""

    def __init__(self, backend: Backend, tiers: Tiers[Sequence], seed: int) -> None:
        self._engine = Engine(backend, worker_id="bench", max_itl_factor=5.0, step_limit_s=0.2, tiers=tiers)
        self._rng = random.Random(seed)
        self._n = 0
        self._last_s: dict[str, float] = {}
        self.gaps_s: list[float] = []
        self.evictions = 0

    def start(self, tokens: int, max_tokens: int, *, urgency_key: float = 0.0) -> str:
        self._n += 1
        item = worker_pb2.BatchItem(slot=self._n % 64, urgency_key=urgency_key)
        request = item.request
        request.tenant, request.request_id, request.epoch = "bench", f"r{self._n}", 1
        request.prompt_token_ids.extend(self._rng.choices(_IDS, k=tokens))
        request.params.max_tokens = max_tokens
        request.params.ignore_eos = True
        self._engine.start(item)
        return f"bench.r{self._n}"

    def until_token(self, key: str) -> None:
        """Step until this request has a token; notes the gaps of all others."""
        while True:
            self._engine.step()
            report = self._engine.take_report()
            if report is None:
                continue
            self.evictions += report.step.stats.prefix_evictions
            now_s = time.perf_counter()
            has_token = False
            for emission in report.step.emissions:
                if not tokens_pb2.TokenChunk.FromString(emission.chunk).token_ids:
                    continue
                has_token |= emission.key == key
                if emission.key in self._last_s:
                    self.gaps_s.append(now_s - self._last_s[emission.key])
                self._last_s[emission.key] = now_s
            if has_token:
                return


def gaps(options: argparse.Namespace, *, has_host: bool, seed: int) -> list[float]:
    """Milliseconds between tokens of decodes while each prompt evicts another."""
    backend = load(options)
    tiers: Tiers[Sequence] = Tiers(backend.identity, host_bytes=_HOST_BYTES) if has_host else Tiers.off()
    run = Run(backend, tiers, seed)
    for _ in range(options.decodes):
        run.until_token(run.start(32, _DECODE_CELLS - 32))
    for _ in range(_ROOM):
        run.until_token(run.start(options.tokens, 1, urgency_key=1.0))
    run.gaps_s.clear()
    before = run.evictions
    for _ in range(options.prompts):
        run.until_token(run.start(options.tokens, 1, urgency_key=1.0))
    if run.evictions == before:
        raise RuntimeError("nothing was evicted")
    return [s * 1000 for s in run.gaps_s]


def load(options: argparse.Namespace) -> Backend:
    return Backend(
        engine_pb2.EngineConfig(
            model_path=str(options.model_file),
            slots=64,
            sequences=64,
            kv_cells=_ROOM * (options.tokens + 64) + options.decodes * _DECODE_CELLS,
            batch_tokens=2048,
            flash_attention=True,
            gpu_layers=-1,
        )
    )


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/inferflux-demo.gguf"))
    parser.add_argument("--tokens", type=positive, default=1000)
    parser.add_argument("--decodes", type=positive, default=4)
    parser.add_argument("--prompts", type=positive, default=3, help="that evict another, in a round")
    parser.add_argument("--rounds", type=positive, default=3)
    add_json(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    console = Console()
    table = Table("a copy", "ms", title=f"{options.tokens} tokens")
    alone = copies(load(options), options.tokens)
    for name, value in alone.items():
        table.add_row(name, f"{value:.1f}")
    console.print(table)
    found: dict[str, list[list[float]]] = {"to host memory": [], "to nowhere": []}
    for turn in range(options.rounds):
        for name, each in found.items():
            each.append(gaps(options, has_host=name == "to host memory", seed=turn))
    table = Table("evicted", "longest gap, ms", "median gap", title=f"{options.decodes} decodes")
    for name, each in found.items():
        longest = ", ".join(f"{max(gap):.0f}" for gap in each)
        table.add_row(name, longest, f"{statistics.median(g for gap in each for g in gap):.1f}")
    console.print(table)
    write_json(options, {"copies": alone, "gaps": found})


if __name__ == "__main__":
    main()
