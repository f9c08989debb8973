"""What cached prefixes cost where nothing repeats, and what a hit leaves of a long prompt's time.

    python -m benchmarks.prefix_reuse [--model-file models/bench.gguf] [--pairs 5] [--json FILE]

One process, one model. First: the same load without repeats, cache on and off in turn, tokens per second of
each and the median of the ratios. Then: a prompt whose first tokens are cached, and the same prompt cold. The
part after the hit should take no longer per token than the same part of the cold prompt does.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import track

from inferflux.worker.processes.engine_process import SPIN_COUNT

from .command_line import add_json, make_parser, positive, write_json
from .engine_loop import EngineLoop, item_of
from .prompts import Prompts, middle_of
from .stats import median
from .trace import totals

if TYPE_CHECKING:
    pass

SLOTS = 16
_FIRST_ID = 300


def tokens_per_s(loop: EngineLoop, prompts: Prompts, numbers: range, options: argparse.Namespace) -> float:
    """Of as many requests at a time as asked for, each prompt being a new one."""
    waiting = [item_of(index, prompts[index], options.max_tokens) for index in reversed(numbers)]
    traces = []
    while waiting or not loop.is_idle:
        while waiting and loop.n_free:
            traces.append(loop.start(waiting.pop()))
        loop.step()
    return float(totals(traces)["tokens_per_s"])


def no_repeats(loops: dict[bool, EngineLoop], vocabulary: int, options: argparse.Namespace) -> dict[str, Any]:
    """On and off in turn. The cache is not emptied between its turns, so it holds what it wants to hold."""
    prompts = Prompts(options.prompt_tokens, middle_of(vocabulary), 0)
    rates: dict[bool, list[float]] = {True: [], False: []}
    first = 0
    for pair in track(range(options.pairs), description="pairs", console=Console(stderr=True)):
        for is_on in (True, False) if pair % 2 else (False, True):
            numbers = range(first, first + options.requests)
            rates[is_on].append(tokens_per_s(loops[is_on], prompts, numbers, options))
            first += options.requests
    ratios = [on / off for on, off in zip(rates[True], rates[False], strict=True)]
    return {"on": rates[True], "off": rates[False], "ratios": ratios, "median_ratio": median(ratios)}


def long_suffix(loop: EngineLoop, vocabulary: int, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a prompt's part after a hit, and of the same part of a cold prompt: the whole without its
    first part."""
    rng = np.random.default_rng(1)
    n, suffix = options.hit_tokens, options.suffix_tokens
    ids = [rng.integers(_FIRST_ID, vocabulary, n + suffix).tolist() for _ in range(2)]
    cold_first_s = prefill_s(loop, "first-0", ids[0][:n])
    hit_s = prefill_s(loop, "hit", ids[0])
    cold_s = prefill_s(loop, "cold", ids[1])
    again_s = prefill_s(loop, "again", ids[1][:n] + ids[0][n:])
    cold_suffix_s = cold_s - cold_first_s
    return {
        "cold_s": cold_s,
        "hit_s": hit_s,
        "branch_s": again_s,
        "cold_suffix_s": cold_suffix_s,
        "rate_after_hit_ratio": cold_suffix_s / hit_s,
    }


def prefill_s(loop: EngineLoop, name: str, prompt: list[int]) -> float:
    """Seconds to a prompt's first token."""
    item = item_of(0, prompt, 1)
    item.request.request_id = name
    began = time.perf_counter()
    loop.start(item)
    while not loop.is_idle:
        loop.step()
    return time.perf_counter() - began


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"), help="GGUF to measure")
    parser.add_argument("--concurrency", type=positive, default=8, help="requests at a time, at most 16")
    parser.add_argument("--requests", type=positive, default=32, help="of each turn")
    parser.add_argument("--prompt-tokens", type=positive, default=128)
    parser.add_argument("--max-tokens", type=positive, default=64)
    parser.add_argument("--pairs", type=positive, default=5, help="how often both are run (default: 5)")
    parser.add_argument("--hit-tokens", type=positive, default=3000)
    parser.add_argument("--suffix-tokens", type=positive, default=1000)
    parser.add_argument("--threads", type=int, default=0, help="0: every core this process may use")
    add_json(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.llama.native import Backend

    loops = {}
    for is_on in (True, False):
        config = engine_pb2.EngineConfig(
            model_path=str(options.model_file),
            slots=SLOTS,
            sequences=2 * SLOTS + (64 if is_on else 0),
            batch_tokens=2048,
            kv_cells=16384,
            threads=options.threads,
            flash_attention=True,
        )
        backend = Backend(config)
        loops[is_on] = EngineLoop(backend, options.concurrency, has_prefix_cache=is_on)
    vocabulary = backend.vocab.size
    found = {
        "cell_s": loops[True].backend.cell_s,
        # First: what hits save later pays for cached prefixes that the decodes then look at.
        "no_repeats": no_repeats(loops, vocabulary, options),
        "long_suffix": long_suffix(loops[True], vocabulary, options),
    }
    Console().print_json(json.dumps(found))
    write_json(options, found)


if __name__ == "__main__":
    main()
