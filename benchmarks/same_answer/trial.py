"""Prompts that an engine answers greedily in several states."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from benchmarks.load.engine_loop import SLOTS, EngineLoop, item_of

if TYPE_CHECKING:
    from inferflux.worker.engine.llama.native import Backend

_OTHERS_CELLS = 4_200
_WORDS = (
    *("river", "stone", "light", "old", "paper", "winter", "engine", "garden", "letter", "bridge", "small"),
    *("green", "answer", "question", "market", "sugar", "train", "mountain", "window", "history", "number"),
    *("water", "music", "doctor", "salt", "island", "school", "copper", "north", "bread", "morning"),
)
_ASKED = ("Tell me about", "Why is there", "Write a story with", "What do people say of", "List ten uses of")


def prompts_of(backend: Backend, n: int, *, seed: int = 1, words: int = 60) -> list[list[int]]:
    """Token ids of `n` prompts, of about 8 to `words` words."""
    draw = random.Random(seed)
    made = []
    for _ in range(n):
        text = f"{draw.choice(_ASKED)} {' '.join(draw.choices(_WORDS, k=draw.randint(6, words)))}."
        made.append(backend.vocab.tokenize(text.encode(), add_special=True, parse_special=False))
    return made


class Trial:
    """The prompts, and how each is answered in each state.

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

    def answers(self, state: str) -> list[list[int]]:
        """Each prompt's answer in one of `STATES`."""
        return STATES[state](self)

    @cached_property
    def alone(self) -> list[list[int]]:
        """Each prompt's answer by an engine that is empty."""
        return [self._answer(EngineLoop(self._backend), i) for i in range(len(self._prompts))]

    def full(self) -> list[list[int]]:
        """With a cache full of other prompts."""
        serving = EngineLoop(self._backend)
        filled = n = 0
        while filled < min(_OTHERS_CELLS, self._backend.cells - 512):
            n += 1
            (prompt,) = prompts_of(self._backend, 1, seed=1000 + n, words=120)
            serving.start(item_of(10_000 + n, prompt, 1))
            serving.run_all()
            filled += len(prompt)
        return [self._answer(serving, i) for i in range(len(self._prompts))]

    def shared(self) -> list[list[int]]:
        """After the same prompt."""
        serving = EngineLoop(self._backend)
        for prompt in self._prompts:
            serving.start(item_of(10_000, prompt, 1))
            serving.run_all()
        return [self._answer(serving, i) for i in range(len(self._prompts))]

    def beside(self) -> list[list[int]]:
        """Five at once, and four others."""
        serving, found = EngineLoop(self._backend), []
        for group in self._groups(SLOTS - 4):
            others = [self._start_other(serving, n, 16 * self._max_tokens) for n in range(4)]
            serving.run_to(others, 1)
            found += self._answer_all(serving, [self._start(serving, i) for i in group])
            for name in others:
                serving.cancel(name)
        return found

    def parked(self) -> list[list[int]]:
        """Eight at once, each parked half way. Others run in their slots meanwhile."""
        serving, found = EngineLoop(self._backend), []
        for group in self._groups():
            names = [self._start(serving, i) for i in group]
            for name in names:
                serving.run_to([name], self._max_tokens // 2)
                serving.park(name)
            for n in range(len(self._others)):
                self._start_other(serving, n, 4)
            serving.run_all()
            for name in names:
                serving.take_back(name)
            found += self._answer_all(serving, names)
        return found

    def evicted(self) -> list[list[int]]:
        """Eight at once, each evicted half way."""
        serving, found = EngineLoop(self._backend), []
        for group in self._groups():
            names = [self._start(serving, i) for i in group]
            for name in names:
                serving.run_to([name], self._max_tokens // 2)
                serving.evict(name)
            found += self._answer_all(serving, names)
        return found

    def retried(self) -> list[list[int]]:
        """Eight at once, by an engine that is given the first half of the answers."""
        found, half = [], self._max_tokens // 2
        for group in self._groups():
            serving = EngineLoop(self._backend)
            firsts = [self.alone[i][:half] for i in group]
            names = [self._start(serving, i, generated=first) for i, first in zip(group, firsts, strict=True)]
            rests = self._answer_all(serving, names)
            found += [first + rest for first, rest in zip(firsts, rests, strict=True)]
        return found

    def _groups(self, size: int = 8) -> Iterator[range]:
        for i in range(0, len(self._prompts), size):
            yield range(i, min(i + size, len(self._prompts)))

    def _start(self, serving: EngineLoop, i: int, *, generated: Sequence[int] = ()) -> str:
        item = item_of(i, self._prompts[i], self._max_tokens)
        item.request.generated_token_ids.extend(generated)
        return serving.start(item, deterministic=self._is_deterministic)

    def _start_other(self, serving: EngineLoop, n: int, max_tokens: int) -> str:
        """Start another request; of a deterministic trial every second one is deterministic."""
        item = item_of(10_000 + n, self._others[n], max_tokens)
        return serving.start(item, deterministic=self._is_deterministic and n % 2 == 0)

    def _answer(self, serving: EngineLoop, i: int) -> list[int]:
        return self._answer_all(serving, [self._start(serving, i)])[0]

    def _answer_all(self, serving: EngineLoop, names: list[str]) -> list[list[int]]:
        serving.run_to_end(names)
        return [serving.answers.pop(name) for name in names]


STATES: dict[str, Callable[[Trial], list[list[int]]]] = {
    "full": Trial.full,
    "shared": Trial.shared,
    "beside": Trial.beside,
    "parked": Trial.parked,
    "evicted": Trial.evicted,
    "retried": Trial.retried,
}
