"""How many seeded answers go on with other tokens when they are retried.

    python -m benchmarks.draw_retries [--model-file FILE] [--seeds 40] [--json FILE]

An engine in this process generates an answer for each seed, and again from two of its tokens on, as a retry
does: prompt and tokens so far are computed in one go. That takes several steps of 32 tokens, in the prefill
context where there is one. Prints for each way of sampling how many retries went on with other tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from inferflux.v1 import engine_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.step.core import Engine
from inferflux.worker.engine.tiers.tiers import Tiers

from .command_line import add_json, make_parser, positive, write_json

SAMPLINGS: dict[str, dict[str, float]] = {
    "temperature 1, whole vocabulary, penalties": {
        "temperature": 1.0,
        "repeat_penalty": 1.3,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.2,
        "penalty_last_n": 64,
    },
    "temperature 0.8, top-k 40, top-p 0.95": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
}
_PROMPT = (10, 20, 30, 40)
_ANSWER_TOKENS = 100
_RETRIED_FROM = (40, 61)
_BATCH_TOKENS = 32
_NEUTRAL = {"top_p": 1.0, "repeat_penalty": 1.0}


def engine_of(path: Path, *, has_prefill_context: bool) -> Engine:
    config = engine_pb2.EngineConfig(
        model_path=str(path), slots=4, sequences=8, batch_tokens=_BATCH_TOKENS, flash_attention=True
    )
    if not has_prefill_context:
        config.prefill_cells = 0
    return Engine(Backend(config), worker_id="bench", max_itl_factor=5.0, step_limit_s=1.0, tiers=Tiers.off())


class Requests:
    """Requests of one engine, one after the other."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._n = 0

    def answer(self, seed: int, sampling: dict[str, float], generated: list[int]) -> list[int]:
        """Token ids that follow the prompt and what was `generated`."""
        self._n += 1
        item = worker_pb2.BatchItem()
        request = item.request
        request.tenant, request.request_id, request.epoch = "bench", f"r{self._n}", 1
        request.prompt_token_ids.extend(_PROMPT)
        request.generated_token_ids.extend(generated)
        request.params.max_tokens = _ANSWER_TOKENS
        request.params.ignore_eos = True
        for name, value in (_NEUTRAL | sampling).items():
            setattr(request.params.sampling, name, value)
        request.params.sampling.seed = seed
        self._engine.start(item)
        tokens: list[int] = []
        while True:
            self._engine.step()
            report = self._engine.take_report()
            if report is None:
                continue
            for emission in report.step.emissions:
                tokens.extend(tokens_pb2.TokenChunk.FromString(emission.chunk).token_ids)
            if report.step.finished:
                return tokens


def changed_retries(requests: Requests, sampling: dict[str, float], seeds: int) -> int:
    """Of two retries for each seed, how many went on with other tokens than the answer had."""
    changed = 0
    for seed in range(seeds):
        whole = requests.answer(seed, sampling, [])
        changed += sum(requests.answer(seed, sampling, whole[:n]) != whole[n:] for n in _RETRIED_FROM)
    return changed


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/inferflux-demo.gguf"))
    parser.add_argument("--seeds", type=positive, default=40)
    add_json(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    retries = options.seeds * len(_RETRIED_FROM)
    found: dict[str, dict[str, int]] = {}
    table = Table("sampling", "prefill context", "none", title=f"retries of {retries} with other tokens")
    for has_prefill_context in (True, False):
        requests = Requests(engine_of(options.model_file, has_prefill_context=has_prefill_context))
        for name, sampling in SAMPLINGS.items():
            key = "prefill context" if has_prefill_context else "none"
            found.setdefault(name, {})[key] = changed_retries(requests, sampling, options.seeds)
    for name, changed in found.items():
        table.add_row(name, *(str(n) for n in changed.values()))
    Console().print(table)
    write_json(options, {"retries": retries, "changed": found})


if __name__ == "__main__":
    main()
