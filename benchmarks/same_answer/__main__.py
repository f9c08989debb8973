"""Find answers that change with what else is cached, runs or dies: `python -m benchmarks.same_answer MODEL`.

Each prompt is answered greedily by an engine that is empty, and again: with a cache full of other prompts,
after the same prompt, beside eight others, after it was parked while others ran, after it was evicted, and by
a new engine that is given the first half of the answer. A stack of two workers answers it too: one of them is
killed with -9 in the middle of its answers. Counted is how many answers differ from those of the empty
engine, by default and deterministic. The cost is the CPU time of deterministic requests, divided by that of
default ones.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load.engine_loop import SLOTS, EngineLoop, item_of
from inferflux.v1 import engine_pb2

from .killed import answers_of_killed
from .trial import STATES, Trial, prompts_of

if TYPE_CHECKING:
    from inferflux.worker.engine.llama.native import Backend

_WAYS = ("default", "deterministic")
_KILLED = "killed"
_FIGURES = (*STATES, _KILLED, "cost")
_SHORT = 64


def differing(one: Iterable[Sequence[int]], other: Iterable[Sequence[int]]) -> int:
    """How many answers are not the same."""
    return sum(list(a) != list(b) for a, b in zip(one, other, strict=True))


def _seconds(
    backend: Backend, prompts: Sequence[list[int]], max_tokens: int, *, deterministic: bool
) -> tuple[float, float]:
    """CPU seconds of these requests at once: until each has a token, and from then on."""
    serving = EngineLoop(backend)
    began = time.process_time()
    names = [
        serving.start(item_of(i, prompt, max_tokens), deterministic=deterministic)
        for i, prompt in enumerate(prompts)
    ]
    serving.run_to(names, 1)
    first = time.process_time()
    serving.run_all()
    return first - began, time.process_time() - first


def _print_costs(backend: Backend, *, long: int, tokens: int, rounds: int) -> None:
    words = [token for prompt in prompts_of(backend, 40, seed=7, words=90) for token in prompt]
    prompts = [words[i * _SHORT : (i + 1) * _SHORT] for i in range(8)]
    cases = {
        f"prompt of {long:,} tokens": ([words[:long]], 1, 0),
        f"eight prompts of {_SHORT}": (prompts, 1, 0),
        f"one answer of {tokens}": (prompts[:1], tokens, 1),
        f"eight answers of {tokens}": (prompts, tokens, 1),
    }
    print(f"CPU seconds, deterministic ÷ default, median of {rounds} (least to most)")
    for name, (given, n, phase) in cases.items():
        ratios = []
        for _ in range(rounds):
            default, same = (_seconds(backend, given, n, deterministic=d)[phase] for d in (False, True))
            ratios.append(same / default)
        print(
            f"  {name}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True
        )


def _killed(asked: argparse.Namespace, prompts: Sequence[list[int]], way: str) -> list[list[int]]:
    return answers_of_killed(
        asked.model, prompts, asked.tokens, threads=asked.threads, deterministic=way == _WAYS[1]
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--words", type=int, default=60, help="most of a prompt")
    parser.add_argument("--tokens", type=int, default=24, help="of each answer")
    parser.add_argument("--long", type=int, default=1231, help="tokens of a long prompt, for its cost")
    parser.add_argument("--rounds", type=int, default=3, help="of each cost")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=_WAYS, default=list(_WAYS))
    parser.add_argument("--figures", nargs="+", choices=_FIGURES, default=list(_FIGURES))
    return parser.parse_args()


def main() -> int:
    """Print how many answers differ, and the cost; returns 1 if a deterministic one differs."""
    asked = _parse()

    from inferflux.worker.engine.llama.native import Backend

    backend = Backend(
        engine_pb2.EngineConfig(
            model_path=str(asked.model),
            slots=SLOTS,
            sequences=64,
            batch_tokens=512,
            kv_cells=8192,
            context_length=2048,
            threads=asked.threads,
            flash_attention=True,
        )
    )
    prompts = prompts_of(backend, asked.prompts, words=asked.words)
    states = [figure for figure in asked.figures if figure != "cost"]
    n_broken = 0
    for way in asked.ways if states else ():
        is_deterministic = way == _WAYS[1]
        trial = Trial(backend, prompts, asked.tokens, deterministic=is_deterministic)
        print(f"{way}: {len(prompts)} prompts, answers of {asked.tokens} tokens that differ", flush=True)
        for state in states:
            found = _killed(asked, prompts, way) if state == _KILLED else trial.answers(state)
            n = differing(found, trial.alone)
            n_broken += n if is_deterministic else 0
            print(f"  {state}: {n}", flush=True)
    if "cost" in asked.figures:
        _print_costs(backend, long=asked.long, tokens=asked.tokens, rounds=asked.rounds)
    return 1 if n_broken else 0


if __name__ == "__main__":
    sys.exit(main())
