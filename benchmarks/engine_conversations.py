"""Prompt tokens that conversations compute, with the prefix cache and without.

    python -m benchmarks.engine_conversations --model-file FILE [--json FILE]

One process, one model. Conversations with one system prompt go on in turn, one request at a time. The prompt
of a turn is all that was said before, and something new. Some conversations say their answers again as they
were; others leave them out, as those of a model that thinks do. Prints the prompt tokens that were computed
for each that is new, and the time to first token with the cache for that without, turns alternating.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import track

from inferflux.worker.processes.engine_process import SPIN_COUNT

from .command_line import positive
from .engine_loop import item_of
from .stats import median

if TYPE_CHECKING:
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.step.core import Engine

SLOTS = 8
# The tests' tiny models have a vocabulary of single bytes.
_IDS = (0, 250)


@dataclass(slots=True)
class Loop:
    """An engine, and what it computed."""

    engine: Engine
    prefilled: int = 0
    first_token_s: list[float] = field(default_factory=list)
    _asked: int = 0

    def answer(self, prompt: list[int], n: int) -> list[int]:
        """The `n` tokens after a prompt."""
        from inferflux.v1 import tokens_pb2

        self._asked += 1
        began = time.perf_counter()
        self.engine.start(item_of(self._asked, prompt, n))
        tokens: list[int] = []
        while len(tokens) < n:
            self.engine.step()
            report = self.engine.take_report()
            if report is None:
                continue
            self.prefilled += report.step.stats.prefill_tokens
            for emission in report.step.emissions:
                new = tokens_pb2.TokenChunk.FromString(emission.chunk).token_ids
                if new and not tokens:
                    self.first_token_s.append(time.perf_counter() - began)
                tokens.extend(new)
        return tokens


def converse(loops: dict[bool, Loop], options: argparse.Namespace, *, says_again: bool) -> dict[str, Any]:
    """Conversations in turn; each turn with the cache and without, one after the other."""
    rng = np.random.default_rng(1)

    def ids(n: int) -> list[int]:
        return [int(token) for token in rng.integers(*_IDS, n)]

    system = ids(options.system_tokens)
    said = [list(system) for _ in range(options.conversations)]
    new_tokens = len(system)
    turns = [(turn, talk) for turn in range(options.turns) for talk in range(options.conversations)]
    for turn, talk in track(turns, description="turns", console=Console(stderr=True)):
        said[talk] += ids(options.turn_tokens)
        new_tokens += options.turn_tokens
        on_off = (True, False) if turn % 2 else (False, True)
        answers = {is_on: loops[is_on].answer(said[talk], options.max_tokens) for is_on in on_off}
        if says_again:
            said[talk] += answers[True]
            new_tokens += 1  # the last token of an answer is not computed with it
    return {
        "new_tokens": new_tokens,
        "computed_on": loops[True].prefilled / new_tokens,
        "computed_off": loops[False].prefilled / new_tokens,
        "first_token_ratio": median(
            [on / off for on, off in zip(loops[True].first_token_s, loops[False].first_token_s, strict=True)]
        ),
    }


def loop_of(config: engine_pb2.EngineConfig, *, is_on: bool) -> tuple[Loop, str]:
    """(an engine, how it shares prefixes)."""
    from inferflux.worker.engine.llama.native import Backend
    from inferflux.worker.engine.step.core import Engine
    from inferflux.worker.engine.tiers.tiers import Tiers

    backend = Backend(config)
    engine = Engine(
        backend,
        worker_id="bench",
        max_itl_factor=5.0,
        step_limit_s=0.2,
        tiers=Tiers.off(),
        has_prefix_cache=is_on,
    )
    return Loop(engine), backend.sharing.kind.value


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-file", type=Path, required=True, help="GGUF to measure")
    parser.add_argument("--conversations", type=positive, default=4)
    parser.add_argument("--turns", type=positive, default=6)
    parser.add_argument("--system-tokens", type=positive, default=200)
    parser.add_argument("--turn-tokens", type=positive, default=40, help="new ones of each turn")
    parser.add_argument("--max-tokens", type=positive, default=40)
    parser.add_argument("--kv-cells", type=positive, default=8192)
    parser.add_argument("--threads", type=int, default=0, help="0: every core this process may use")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
    from inferflux.v1 import engine_pb2

    found: dict[str, Any] = {}
    for says_again in (True, False):
        config = engine_pb2.EngineConfig(
            model_path=str(options.model_file),
            slots=SLOTS,
            sequences=2 * SLOTS + 64,
            batch_tokens=2048,
            kv_cells=options.kv_cells,
            threads=options.threads,
            flash_attention=True,
        )
        loops = {}
        for is_on in (True, False):
            loops[is_on], found["sharing"] = loop_of(config, is_on=is_on)
        name = "answers_said_again" if says_again else "answers_left_out"
        found[name] = converse(loops, options, says_again=says_again)
    Console().print_json(json.dumps(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
