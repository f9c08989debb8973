"""Which is the shortest match of a prompt that is worth sharing?

    python -m benchmarks.shortest_match [--model-file FILE] [--rounds 5] [--json FILE]

Engines in this process that differ in nothing but the shortest match, in turn. Prompts begin with the same
few tokens, as those of one chat template do, and go on with 100 of their own. Prints, for each length of the
common part, tokens per second and the median time to the first token, as the median of the ratios to the
first engine of the same round.
"""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from rich.console import Console
from rich.progress import track
from rich.table import Table

from inferflux.worker.processes.engine_process import SPIN_COUNT

from .command_line import add_json, make_parser, positive, write_json
from .engine_loop import EngineLoop, item_of
from .stats import median
from .trace import Trace, totals

if TYPE_CHECKING:
    from inferflux.worker.engine.llama.native import Backend

# Token ids that are ordinary text in the demo and the bench model.
_IDS = range(300, 1800)
_OWN_TOKENS = 100
_ANSWER_TOKENS = 32
_SLOTS = 8


def served(backend: Backend, common: int, requests: int, seed: int) -> dict[str, float]:
    """Tokens per second and milliseconds to the first token of requests that share their first tokens."""
    rng = random.Random(seed)
    beginning = rng.choices(_IDS, k=common)
    waiting = [
        item_of(number, beginning + rng.choices(_IDS, k=_OWN_TOKENS), _ANSWER_TOKENS)
        for number in range(requests)
    ]
    loop, traces = EngineLoop(backend, _SLOTS), list[Trace]()
    while waiting or not loop.is_idle:
        while waiting and loop.n_free:
            traces.append(loop.start(waiting.pop()))
        loop.step()
    result = totals(traces)
    return {"tokens_per_s": result["tokens_per_s"], "ttft_ms": result["ttft_ms"]["p50"]}


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"), help="GGUF to measure")
    parser.add_argument("--shortest", type=positive, nargs="+", default=[16, 1, 64])
    parser.add_argument("--common", type=positive, nargs="+", default=[8, 32, 96])
    parser.add_argument("--requests", type=positive, default=32, help="of a round")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: every core this process may use")
    add_json(parser, "every figure")
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.llama.native import Backend
    from inferflux.worker.engine.memory import prefix_cache

    config = engine_pb2.EngineConfig(
        model_path=str(options.model_file),
        slots=_SLOTS,
        sequences=2 * _SLOTS + 64,
        batch_tokens=2048,
        kv_cells=16384,
        threads=options.threads,
        flash_attention=True,
    )
    backend = Backend(config)
    served(backend, 8, _SLOTS, seed=0)
    found: dict[int, dict[int, list[dict[str, float]]]] = {}
    for common in options.common:
        found[common] = {shortest: [] for shortest in options.shortest}
        for number in track(range(options.rounds), description=str(common), console=Console(stderr=True)):
            for shortest in options.shortest:
                with mock.patch.object(prefix_cache, "SHORTEST_MATCH", shortest):
                    found[common][shortest].append(served(backend, common, options.requests, number))
    table = Table("common tokens", "shortest match", "tokens/s, ratio", "first token, ratio")
    for common, by_shortest in found.items():
        first = by_shortest[options.shortest[0]]
        for shortest, rounds in by_shortest.items():
            ratios = [
                f"{median(mine[key] / its[key] for mine, its in zip(rounds, first, strict=True)):.3f}"
                for key in ("tokens_per_s", "ttft_ms")
            ]
            table.add_row(str(common), str(shortest), *ratios)
    Console().print(table)
    write_json(options, found)


if __name__ == "__main__":
    main()
