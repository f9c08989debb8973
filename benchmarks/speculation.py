"""What drafts of next tokens gain, and whether answers stay the same.

    python -m benchmarks.speculation [--model-file FILE] [--source ngram] [--rounds 5]
    python -m benchmarks.speculation --source draft [--draft-file FILE] ...
    python -m benchmarks.speculation --same 500 [--model-file FILE] [--source ngram] [--threads 1]

One engine in this process serves the same requests in turn without drafts and with them. Prints tokens per
second with ÷ without, the median of the rounds, for one stream and for several, and the share of drafted
tokens that were accepted. Prompts to copy are a text of words drawn at random, twice, and its first words
again. Prompts of the other kind are words drawn at random: nothing repeats.

With `--same N`, N held-out prompts of the demo model are answered greedily and with three seeds, without
drafts and with them: from the start, going on from a cached prefix, after a preemption to host memory, and
as a retry elsewhere. Prints how many answers differ. On one thread none should.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track
from rich.table import Table

from inferflux.common.speculation import SOURCES
from inferflux.worker.engine_host import SPIN_COUNT

from .command_line import positive
from .stats import median

if TYPE_CHECKING:
    from inferflux.v1 import worker_pb2
    from inferflux.worker.engine.core import Engine
    from inferflux.worker.engine.draft_model import DraftModel
    from inferflux.worker.engine.native import Backend

STREAMS = (1, 4, 16)
_CHARACTERS = (200, 400)
_SAME_TOKENS = 64
_SEEDS = (1, 2, 3)


class Client:
    """Has an engine answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.tokens: dict[str, list[int]] = {}
        self.seconds = 0.0
        self.drafted = self.accepted = 0

    def start(self, item: worker_pb2.BatchItem) -> None:
        self._engine.start(item)
        self.tokens[item.request.request_id] = []

    def run(self, *, until: int = 0) -> None:
        """Until all have ended, or the first has `until` tokens. Timed from when each has a token."""
        from inferflux.v1 import tokens_pb2

        began, counted = time.perf_counter(), 0
        while self._engine._sequences:  # noqa: SLF001 - nothing else knows
            self._engine.step()
            report = self._engine.take_report()
            if report is None:
                continue
            for emission in report.step.emissions:
                chunk = tokens_pb2.TokenChunk.FromString(emission.chunk)
                self.tokens[chunk.request_id].extend(chunk.token_ids)
            self.drafted += report.step.stats.draft_tokens
            self.accepted += sum(report.step.stats.accepted_draft_tokens)
            if not counted and all(self.tokens.values()):
                began, counted = time.perf_counter(), sum(map(len, self.tokens.values()))
            if until and len(next(iter(self.tokens.values()))) >= until:
                return
        self.seconds = time.perf_counter() - began
        self.rate = (sum(map(len, self.tokens.values())) - counted) / self.seconds


@dataclass(frozen=True, slots=True)
class Models:
    """What engines are made of."""

    backend: Backend
    draft: DraftModel | None


def engine_of(models: Models, source: str, *, has_prefix_cache: bool = False) -> Engine:
    """A new engine, over an empty cache."""
    from inferflux.worker.engine.core import Engine
    from inferflux.worker.engine.tiers.tiers import Tiers

    backend = models.backend
    for seq_id in range(backend.sequences):
        backend.forget(seq_id)
        backend.forget_prefill(seq_id)
    return Engine(
        backend,
        worker_id="bench",
        max_itl_factor=5.0,
        step_limit_s=0.2,
        tiers=Tiers(backend.identity, host_bytes=1 << 28, is_divisible=backend.cuts_states),
        has_prefix_cache=has_prefix_cache,
        speculation=SOURCES[source],
        draft_model=models.draft,
    )


def item_of(prompt: list[int], slot: int, *, tokens: int, seed: int | None = None) -> worker_pb2.BatchItem:
    """A request; greedy without a seed."""
    from inferflux.v1 import worker_pb2

    item = worker_pb2.BatchItem(slot=slot)
    request = item.request
    request.tenant, request.request_id, request.epoch = "bench", f"r{slot}", 1
    request.prompt_token_ids.extend(prompt)
    request.params.max_tokens = tokens
    request.params.ignore_eos = True
    sampling = request.params.sampling
    if seed is not None:
        sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed = 0.8, 40, 0.95, seed
    return item


def prompts_to_copy(backend: Backend, n: int) -> list[list[int]]:
    """Texts that go on with what they begin with."""
    return [text * 2 + text[: len(text) // 4] for text in other_prompts(backend, n)]


def other_prompts(backend: Backend, n: int) -> list[list[int]]:
    """Words in no order."""
    from .prompts import LogNormal, TextPrompts

    texts = TextPrompts(LogNormal(*_CHARACTERS))
    return [
        backend.vocab.tokenize(f" {texts[i]}".encode(), add_special=False, parse_special=False)
        for i in range(n)
    ]


def gain(
    models: Models, source: str, prompts: list[list[int]], *, tokens: int, rounds: int
) -> tuple[float, float, float]:
    """(tokens/s without drafts, with ÷ without, accepted ÷ drafted), medians of the rounds."""
    rates: dict[str, list[float]] = {"off": [], source: []}
    drafted = accepted = 0
    for number in range(rounds + 1):
        for way, found in rates.items():
            client = Client(engine_of(models, way))
            for slot, prompt in enumerate(prompts):
                client.start(item_of(prompt, slot, tokens=tokens))
            client.run()
            if number:  # the first one warms up
                found.append(client.rate)
                drafted += client.drafted
                accepted += client.accepted
    ratio = median(b / a for a, b in zip(rates["off"], rates[source], strict=True))
    return median(rates["off"]), ratio, accepted / max(drafted, 1)


def gains(models: Models, source: str, counts: list[int], tokens: int, rounds: int) -> Table:
    """A row for each kind of prompt and number of streams."""
    table = Table("prompts", "streams", "tokens/s without", "with ÷ without", "accepted")
    for name, make in (("to copy", prompts_to_copy), ("other", other_prompts)):
        for streams in counts:
            rate, ratio, accepted = gain(
                models, source, make(models.backend, streams), tokens=tokens, rounds=rounds
            )
            table.add_row(name, str(streams), f"{rate:.0f}", f"{ratio:.2f}", f"{accepted:.0%}")
    return table


class Answers:
    """Answers of the same request in every way that it may come about."""

    def __init__(self, models: Models, source: str) -> None:
        self._models = models
        self._source = source

    def all(self, prompt: list[int], seed: int | None) -> dict[str, list[int]]:
        """By way: the tokens."""
        return {
            way: getattr(self, f"_{way}")(prompt, seed) for way in ("plain", "cached", "preempted", "moved")
        }

    def _plain(self, prompt: list[int], seed: int | None) -> list[int]:
        return self._answer(engine_of(self._models, self._source), prompt, seed)

    def _cached(self, prompt: list[int], seed: int | None) -> list[int]:
        engine = engine_of(self._models, self._source, has_prefix_cache=True)
        self._answer(engine, prompt, seed)
        return self._answer(engine, prompt, seed)

    def _preempted(self, prompt: list[int], seed: int | None) -> list[int]:
        from inferflux.v1 import engine_pb2

        engine = engine_of(self._models, self._source)
        client = Client(engine)
        client.start(item_of(prompt, 0, tokens=_SAME_TOKENS, seed=seed))
        client.run(until=_SAME_TOKENS // 3)
        if engine._sequences:  # noqa: SLF001
            engine._evict(engine._sequences["bench.r0"])  # noqa: SLF001
            engine.resume(engine_pb2.EngineResume(key="bench.r0", epoch=1, slot=0, run=1))
            client.run()
        return client.tokens["r0"]

    def _moved(self, prompt: list[int], seed: int | None) -> list[int]:
        client = Client(engine_of(self._models, self._source))
        client.start(item_of(prompt, 0, tokens=_SAME_TOKENS, seed=seed))
        client.run(until=_SAME_TOKENS // 3)
        item = item_of(prompt, 0, tokens=_SAME_TOKENS, seed=seed)
        item.request.epoch = 2
        # At the same token with drafts and without: how many rows a prompt has decides its bits.
        item.request.generated_token_ids.extend(client.tokens["r0"][: _SAME_TOKENS // 3])
        other = Client(engine_of(self._models, self._source))
        other.start(item)
        other.run()
        return other.tokens["r0"]

    @staticmethod
    def _answer(engine: Engine, prompt: list[int], seed: int | None) -> list[int]:
        client = Client(engine)
        client.start(item_of(prompt, 0, tokens=_SAME_TOKENS, seed=seed))
        client.run()
        return client.tokens["r0"]


def held_out_prompts(backend: Backend, n: int) -> list[list[int]]:
    """Prompts of every kind that the demo model knows, none of which it was trained on."""
    from tools.demo_model.chat_data import held_out
    from tools.demo_model.kinds import WRITERS

    samples = [sample for kind in WRITERS for sample in held_out(kind, -(-n // len(WRITERS)))][:n]
    texts = (
        "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in sample.prompt) for sample in samples
    )
    return [
        backend.vocab.tokenize(f"{t}<|im_start|>assistant\n".encode(), add_special=False, parse_special=True)
        for t in texts
    ]


def differences(models: Models, source: str, n: int) -> Table:
    """A row for each way: how many of the answers differ."""
    without, with_drafts = Answers(models, "off"), Answers(models, source)
    differ: Counter[str] = Counter()
    compared = 0
    for prompt in track(held_out_prompts(models.backend, n), console=Console(stderr=True)):
        for seed in (None, *_SEEDS):
            expected, found = without.all(prompt, seed), with_drafts.all(prompt, seed)
            compared += 1
            for way, tokens in expected.items():
                differ[way] += tokens != found[way]
    table = Table("way", "answers", "differ")
    for way in differ:
        table.add_row(way, str(compared), str(differ[way]))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-file", type=Path, default=Path("models/inferflux-demo.gguf"))
    parser.add_argument("--source", choices=[name for name in SOURCES if name != "off"], default="ngram")
    parser.add_argument("--draft-file", type=Path, default=Path("models/inferflux-demo-draft.gguf"))
    parser.add_argument("--tokens", type=positive, default=160, help="of each answer; default: %(default)s")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--streams", type=positive, nargs="+", default=list(STREAMS))
    parser.add_argument("--threads", type=int, default=0, help="0: every core this process may use")
    parser.add_argument("--same", type=int, default=0, metavar="N", help="compare answers to N prompts")
    options = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.native import Backend

    config = engine_pb2.EngineConfig(
        model_path=str(options.model_file),
        draft_model_path=str(options.draft_file),
        slots=max(STREAMS),
        sequences=2 * max(STREAMS),
        batch_tokens=512,
        kv_cells=8192,
        threads=options.threads,
        flash_attention=True,
    )
    backend = Backend(config)
    models = Models(backend, backend.new_draft_model(config) if options.source == "draft" else None)
    console = Console(width=100)
    if options.same:
        console.print(differences(models, options.source, options.same))
        return
    console.print(gains(models, options.source, options.streams, options.tokens, options.rounds))


if __name__ == "__main__":
    main()
