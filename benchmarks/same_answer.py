"""Find answers that change with what else is cached or runs: `python -m benchmarks.same_answer MODEL`.

Each prompt is answered greedily by an engine that is empty, and again with a cache full of other prompts,
after the same prompt, beside eight others, after it was evicted half way, and by a new engine that is given
the first half of the answer. Counted is how many answers differ from the empty engine's: by default, and
deterministic.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from inferflux.v1 import engine_pb2, tokens_pb2, worker_pb2
from inferflux.worker.settings import WorkerSettings

from .engine_loop import item_of

if TYPE_CHECKING:
    from inferflux.worker.engine.core import Engine
    from inferflux.worker.engine.native import Backend

SLOTS = 9
_OTHERS_CELLS = 4_200
_LONG = 1_231
_WORDS = (
    *("river", "stone", "light", "old", "paper", "winter", "engine", "garden", "letter", "bridge", "small"),
    *("green", "answer", "question", "market", "sugar", "train", "mountain", "window", "history", "number"),
    *("water", "music", "doctor", "salt", "island", "school", "copper", "north", "bread", "morning"),
)
_ASKED = ("Tell me about", "Why is there", "Write a story with", "What do people say of", "List ten uses of")
# Of the prompts, how many are tried without determinism: enough to see that answers differ.
_MOST_BY_DEFAULT = 30


def prompts_of(backend: Backend, n: int, *, seed: int = 1, words: int = 60) -> list[list[int]]:
    """Token ids of `n` prompts, of about 8 to `words` words."""
    draw = random.Random(seed)
    made = []
    for _ in range(n):
        text = f"{draw.choice(_ASKED)} {' '.join(draw.choices(_WORDS, k=draw.randint(6, words)))}."
        made.append(backend.vocab.tokenize(text.encode(), add_special=True, parse_special=False))
    return made


@dataclass(slots=True)
class Serving:
    """An engine of an empty backend, and what it has answered by request."""

    backend: Backend
    answers: dict[str, list[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    engine: Engine = field(init=False)
    _free: list[int] = field(default_factory=lambda: list(range(SLOTS)))
    _slots: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
        from inferflux.worker.engine.core import Engine
        from inferflux.worker.engine.tiers.tiers import Tiers

        for seq_id in range(self.backend.sequences):  # what an earlier engine has left there
            self.backend.forget(seq_id)
            self.backend.forget_prefill(seq_id)
        names = ("max_itl_factor", "step_limit_s")
        defaults = {name: WorkerSettings.model_fields[name].default for name in names}
        self.engine = Engine(self.backend, worker_id="bench", tiers=Tiers.off(), **defaults)

    def start(self, item: worker_pb2.BatchItem, *, deterministic: bool) -> str:
        """Take a request up; returns its name."""
        item.slot = self._free.pop()
        if deterministic:
            item.request.params.deterministic = True
        self.answers[item.request.request_id] = []
        self._slots[f"{item.request.tenant}.{item.request.request_id}"] = item.slot
        self.engine.start(item)
        return item.request.request_id

    def run(self, until: Callable[[], bool]) -> None:
        """Step until that holds. Requests that were evicted go on."""
        while not until():
            for sequence in self.engine._sequences.values():  # noqa: SLF001
                if not sequence.is_running:
                    slot = self._slots[sequence.key]
                    self.engine.resume(engine_pb2.EngineResume(key=sequence.key, epoch=1, slot=slot, run=1))
            self.engine.step()
            report = self.engine.take_report()
            for emission in report.step.emissions if report else ():
                chunk = tokens_pb2.TokenChunk.FromString(emission.chunk)
                self.answers[chunk.request_id].extend(chunk.token_ids)
                if chunk.HasField("failed"):
                    self.failures.append(chunk.failed.message)
            for ended in report.step.finished if report else ():
                self._free.append(self._slots.pop(ended.key))

    def run_to(self, name: str, tokens: int) -> None:
        """Step until a request has this many tokens."""
        self.run(lambda: len(self.answers[name]) >= tokens)

    def run_all(self) -> None:
        self.run(lambda: not self._slots)

    def evict(self, name: str) -> None:
        """Take a request's cells, as for one that is more urgent."""
        self.engine._evict(self.engine._sequences[f"bench.{name}"])  # noqa: SLF001


class Trial:
    """The prompts, and how each is answered in each way.

    Args:
        max_tokens: of each answer.
    """

    def __init__(
        self, backend: Backend, prompts: Sequence[list[int]], max_tokens: int, *, deterministic: bool
    ):
        self._backend = backend
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._is_deterministic = deterministic
        self._others = prompts_of(backend, 8, seed=99, words=30)

    def answers(self, condition: str) -> list[list[int]]:
        """Each prompt's answer in one of `CONDITIONS`."""
        return CONDITIONS[condition](self)

    def _start(self, serving: Serving, i: int, *, generated: Sequence[int] = ()) -> str:
        item = item_of(i, self._prompts[i], self._max_tokens)
        item.request.generated_token_ids.extend(generated)
        return serving.start(item, deterministic=self._is_deterministic)

    def _answer(self, serving: Serving, i: int) -> list[int]:
        name = self._start(serving, i)
        serving.run_all()
        if serving.failures:
            raise RuntimeError(serving.failures[0])
        return serving.answers.pop(name)

    def alone(self) -> list[list[int]]:
        return [self._answer(Serving(self._backend), i) for i in range(len(self._prompts))]

    def full(self) -> list[list[int]]:
        serving = Serving(self._backend)
        filled = n = 0
        while filled < min(_OTHERS_CELLS, self._backend.cells - 512):
            n += 1
            (prompt,) = prompts_of(self._backend, 1, seed=1000 + n, words=120)
            serving.start(item_of(10_000 + n, prompt, 1), deterministic=False)
            serving.run_all()
            filled += len(prompt)
        return [self._answer(serving, i) for i in range(len(self._prompts))]

    def shared(self) -> list[list[int]]:
        serving = Serving(self._backend)
        for prompt in self._prompts:
            serving.start(item_of(10_000, prompt, 4), deterministic=False)
            serving.run_all()
        return [self._answer(serving, i) for i in range(len(self._prompts))]

    def beside(self) -> list[list[int]]:
        serving = Serving(self._backend)
        found = []
        for i in range(len(self._prompts)):
            for n, other in enumerate(self._others):
                is_same = self._is_deterministic and n % 2 == 0
                serving.start(item_of(10_000 + n, other, self._max_tokens - n), deterministic=is_same)
            for n in range(len(self._others)):
                serving.run_to(f"r{10_000 + n}", 1)
            found.append(self._answer(serving, i))
        return found

    def evicted(self) -> list[list[int]]:
        found = []
        for i in range(len(self._prompts)):
            serving = Serving(self._backend)
            name = self._start(serving, i)
            serving.run_to(name, self._max_tokens // 2)
            serving.evict(name)
            serving.run_all()
            found.append(serving.answers[name])
        return found

    def retried(self) -> list[list[int]]:
        found = []
        for i, first in enumerate(self.alone()):
            serving = Serving(self._backend)
            half = first[: self._max_tokens // 2]
            name = self._start(serving, i, generated=half)
            serving.run_all()
            found.append(half + serving.answers[name])
        return found


CONDITIONS: dict[str, Callable[[Trial], list[list[int]]]] = {
    "a full cache": Trial.full,
    "the prompt is cached": Trial.shared,
    "beside eight others": Trial.beside,
    "evicted half way": Trial.evicted,
    "retried half way": Trial.retried,
}


def differing(trial: Trial) -> dict[str, int]:
    """How many answers differ from those of an empty engine, in each condition."""
    expected = trial.alone()
    return {
        name: sum(one != other for one, other in zip(trial.answers(name), expected, strict=True))
        for name in CONDITIONS
    }


def _seconds(
    backend: Backend, prompts: Sequence[list[int]], max_tokens: int, *, deterministic: bool
) -> float:
    """CPU seconds of these requests at once."""
    serving = Serving(backend)
    began = time.process_time()
    for i, prompt in enumerate(prompts):
        serving.start(item_of(i, prompt, max_tokens), deterministic=deterministic)
    serving.run_all()
    return time.process_time() - began


def main() -> int:
    """Print how many answers differ, and what determinism costs; returns 1 if it does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--threads", type=int, default=0)
    asked = parser.parse_args()

    from inferflux.worker.engine.native import Backend

    config = engine_pb2.EngineConfig(
        model_path=str(asked.model),
        slots=SLOTS,
        sequences=64,
        batch_tokens=512,
        kv_cells=8192,
        context_length=2048,
        threads=asked.threads,
        flash_attention=True,
    )
    backend = Backend(config)
    prompts = prompts_of(backend, asked.prompts)
    is_held = True
    for is_deterministic in (False, True):
        tried = prompts if is_deterministic else prompts[:_MOST_BY_DEFAULT]
        trial = Trial(backend, tried, asked.tokens, deterministic=is_deterministic)
        found = differing(trial)
        print("deterministic" if is_deterministic else "default")
        for condition, n in found.items():
            print(f"  {condition}: {n} of {len(tried)} answers differ", flush=True)
        is_held = not any(found.values())
    many = prompts_of(backend, 20, seed=7, words=90)
    long = [token for prompt in many for token in prompt][:_LONG]
    cases = {
        f"a prompt of {len(long):,} tokens": ([long], 1),
        "one answer": (prompts[:1], 64),
        "eight answers": (prompts[:8], 64),
    }
    print("CPU seconds, deterministic ÷ default")
    for name, (given, tokens) in cases.items():
        ratios = [
            _seconds(backend, given, tokens, deterministic=True)
            / _seconds(backend, given, tokens, deterministic=False)
            for _ in range(3)
        ]
        print(f"  {name}: {sorted(ratios)[1]:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)
    return 0 if is_held else 1


if __name__ == "__main__":
    sys.exit(main())
