"""What drafts of next tokens gain, and whether answers stay the same.

    python -m benchmarks.speculation [--model-file FILE] [--source ngram] [--rounds 5]
    python -m benchmarks.speculation --source draft [--draft-file FILE] ...
    python -m benchmarks.speculation --fixed 1 3 7 15 [--streams 1] ...
    python -m benchmarks.speculation --same 500 [--model-file FILE] [--source ngram] [--threads 1]

Engines in this process serve the same requests in turn, one without drafts and one with them. Prints tokens
per second of a stream, from its first token on, and with ÷ without, for one stream and for several: medians
of the rounds. A round before them teaches what steps cost and what is accepted. Prompts to copy are held-out
ones that ask the demo model to repeat ten words or more, up to the end of its answer. Prompts of the other
kind are words drawn at random; their answers are cut.

With `--fixed`, further engines draft that number of tokens in every step, as far as there are any: is the
number that the engine finds by itself the best one? With `--ablation`, further engines have one rule less.

With `--same N`, N held-out prompts of the demo model are answered greedily and with three seeds, without
drafts and with them: from the start, going on from a cached prefix, after a preemption to host memory, and
as a retry elsewhere. Prints how many answers differ. On one thread none should.
"""

from __future__ import annotations

import argparse
import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track
from rich.table import Table

from inferflux.api.speculation import SOURCES
from inferflux.worker.processes.engine_process import SPIN_COUNT

from .command_line import positive
from .speculation_rules import EXACTLY, RULES, Rule, without
from .stats import median

if TYPE_CHECKING:
    from inferflux.v1 import worker_pb2
    from inferflux.worker.engine.llama.draft_model import DraftModel
    from inferflux.worker.engine.llama.native import Backend
    from inferflux.worker.engine.plan.budget import Worth
    from inferflux.worker.engine.plan.speculation import Row
    from inferflux.worker.engine.step.core import Engine
    from tools.demo_model.sample import Sample

STREAMS = (1, 4, 16)
_CHARACTERS = (200, 400)
_FEWEST_WORDS = 10
_ASKED = 400
_PROMPTS = 16
_SAME_TOKENS = 64
_SEEDS = (1, 2, 3)


class Client:
    """Has an engine answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.tokens: dict[str, list[int]] = {}
        self.decode_ms = 0.0
        self.drafted = self.accepted = self.steps = 0

    def start(self, item: worker_pb2.BatchItem) -> None:
        self._engine.start(item)
        self.tokens[item.request.request_id] = []

    def run(self, *, until: int = 0) -> None:
        """Until all have ended, or the first has `until` tokens."""
        from inferflux.v1 import tokens_pb2

        while self._engine._sequences:  # noqa: SLF001 - nothing else knows
            self._engine.step()
            report = self._engine.take_report()
            if report is None:
                continue
            for emission in report.step.emissions:
                chunk = tokens_pb2.TokenChunk.FromString(emission.chunk)
                self.tokens[chunk.request_id].extend(chunk.token_ids)
                self.decode_ms += chunk.finished.timings.decode_ms
            self.steps += 1
            self.drafted += report.step.stats.draft_tokens
            self.accepted += sum(report.step.stats.accepted_draft_tokens)
            if until and len(next(iter(self.tokens.values()))) >= until:
                return

    @property
    def rate(self) -> float:
        """Tokens per second of a stream, its first one not counted."""
        return 1000 * sum(len(tokens) - 1 for tokens in self.tokens.values()) / self.decode_ms


@dataclass(frozen=True, slots=True)
class Models:
    """What engines are made of."""

    backend: Backend
    draft: DraftModel | None


def engine_of(models: Models, source: str, *, has_prefix_cache: bool = False) -> Engine:
    """A new engine, over an empty cache."""
    from inferflux.worker.engine.step.core import Engine
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
    """Chats that ask for some words again."""
    from tools.demo_model.chat_data import held_out

    asked = (sample for sample in held_out("repeat", _ASKED) if len(sample.answer.split()) >= _FEWEST_WORDS)
    return [chat_tokens(backend, sample) for sample, _ in zip(asked, range(n), strict=False)]


def other_prompts(backend: Backend, n: int) -> list[list[int]]:
    """Words in no order."""
    from .prompts import LogNormal, TextPrompts

    texts = TextPrompts(LogNormal(*_CHARACTERS))
    return [
        backend.vocab.tokenize(f" {texts[i]}".encode(), add_special=False, parse_special=False)
        for i in range(n)
    ]


def chat_tokens(backend: Backend, sample: Sample) -> list[int]:
    """The prompt of a sample, as the demo model's template has it."""
    text = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in sample.prompt)
    return backend.vocab.tokenize(
        f"{text}<|im_start|>assistant\n".encode(), add_special=False, parse_special=True
    )


class FixedBudget:
    """A fixed number of tokens is drafted for each sequence, whatever they cost."""

    def __init__(self, most: int) -> None:
        self._most = most

    def rows_worth(self, _n_decoding: int, rows: Iterable[Row], most: int) -> Worth:
        """The first `most` rows of those."""
        from inferflux.worker.engine.plan.budget import Worth

        drafted: Counter[int] = Counter()
        chosen = []
        for row in rows:
            drafted[row.of] += 1
            if drafted[row.of] <= self._most:
                chosen.append(row)
        return Worth(chosen[:most], gain=math.inf, tokens_s=0.0, least=0.0)

    def least_gain(self, _n_decoding: int) -> float:
        """Whatever it gives."""
        return 0.0

    def copying_s(self, _n_decoding: int) -> float:
        """Computing a prompt may take any time."""
        return math.inf

    def token_s(self, _n_decoding: int) -> float:
        """No prompt is too long."""
        return math.inf


@dataclass(slots=True)
class Way:
    """An engine that serves all prompts, and its rates by round."""

    name: str
    engine: Engine
    left_out: Rule | None = None
    rates: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    steps: int = 0

    def serve(self, prompts: list[tuple[int, list[int]]], client: Client, *, tokens: int, ends: bool) -> None:
        """These prompts, each with its number, at once; `ends`: the model ends its answers."""
        with without(self.left_out):
            for slot, (number, prompt) in enumerate(prompts):
                item = item_of(prompt, slot, tokens=tokens)
                item.request.request_id = f"r{number}"
                item.request.params.ignore_eos = not ends
                client.start(item)
            client.run()

    def count(self, client: Client) -> None:
        """A round is over."""
        self.rates.append(client.rate)
        self.drafted += client.drafted
        self.accepted += client.accepted
        self.steps += client.steps


@dataclass(frozen=True, slots=True)
class Load:
    """`streams` prompts at a time, each for `tokens` tokens, or fewer where the model `ends` its answers."""

    prompts: list[list[int]]
    streams: int
    tokens: int
    ends: bool


def ways_of(models: Models, source: str, *, fixed: list[int], is_ablation: bool) -> list[Way]:
    """Without drafts, with those that seem worth it, with fixed numbers of them, and without each rule."""
    ways = [Way(name, engine_of(models, name)) for name in ("off", source)]
    for most in fixed:
        ways.append(Way(f"{source}, {most}", engine_of(models, source), EXACTLY))
        ways[-1].engine._drafting._budget = FixedBudget(most)  # type: ignore[assignment]  # noqa: SLF001
    for name, rule in RULES.items():
        if is_ablation and source in rule.sources:
            with without(rule):
                ways.append(Way(f"without: {name}", engine_of(models, source), rule))
    return ways


def gain(ways: list[Way], load: Load, rounds: int) -> None:
    """Have each way serve the same requests."""
    numbered = list(enumerate(load.prompts))
    for number in range(rounds + 1):
        clients = [Client(way.engine) for way in ways]
        in_turn = list(zip(ways, clients, strict=True))
        for first in range(0, len(numbered), load.streams):
            in_turn.reverse()  # whatever comes first gains nothing by it
            for way, client in in_turn:
                way.serve(numbered[first : first + load.streams], client, tokens=load.tokens, ends=load.ends)
        if number:  # the first one teaches
            for way, client in zip(ways, clients, strict=True):
                way.count(client)


def gains(models: Models, options: argparse.Namespace) -> Table:
    """Rows for each kind of prompt and number of streams."""
    table = Table("prompts", "streams", "drafts", "tokens/s", "÷ off", "lowest", "accepted", "drafted a step")
    for name, make in (("to copy", prompts_to_copy), ("other", other_prompts)):
        for streams in options.streams:
            prompts = make(models.backend, max(streams, _PROMPTS))
            load = Load(prompts, streams, options.tokens, ends=make is prompts_to_copy)
            ways = ways_of(models, options.source, fixed=options.fixed, is_ablation=options.ablation)
            gain(ways, load, options.rounds)
            off, *others = ways
            for way in others:
                ratios = [b / a for a, b in zip(off.rates, way.rates, strict=True)]
                table.add_row(
                    name,
                    str(streams),
                    way.name,
                    f"{median(way.rates):.0f}",
                    f"{median(ratios):.2f}",
                    f"{min(ratios):.2f}",
                    f"{way.accepted / max(way.drafted, 1):.0%}",
                    f"{way.drafted / max(way.steps, 1):.1f}",
                )
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
    return [chat_tokens(backend, sample) for sample in samples]


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
    parser.add_argument("--fixed", type=positive, nargs="+", default=[], help="tokens drafted in every step")
    parser.add_argument("--ablation", action="store_true", help="leave each rule out once")
    parser.add_argument("--same", type=int, default=0, metavar="N", help="compare answers to N prompts")
    options = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
    from inferflux.v1 import engine_pb2
    from inferflux.worker.engine.llama.native import Backend

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
    console = Console(width=110)
    if options.same:
        # An engine of each answer would measure the same speeds again.
        engine_of(models, "off")
        config.trials.CopyFrom(backend.trials.to_message())
        models = Models(Backend(config), models.draft)
        console.print(differences(models, options.source, options.same))
        return
    console.print(gains(models, options))


if __name__ == "__main__":
    main()
