"""Clients that go on with what was answered: each prompt is all that was said before, and something new."""

from __future__ import annotations

from itertools import count
from random import Random

from .traffic import Arrival, length

_SAID, _ANSWERED = 100, 64
_THINKS_S = 5.0


class Conversation:
    """One client of a tenant that all share. No two conversations have a token in common.

    Args:
        number: its name, and that of its requests before the turn: `<number>-<turn>`.

    Attributes:
        added: tokens of all its turns so far, without answers.
    """

    def __init__(self, number: int, turns: int, random: Random) -> None:
        self.added = 0
        self._number = number
        self._turns = turns
        self._random = random
        self._said: list[int] = []
        self._turn = 0
        self._token = count(number * 1_000_000)

    def first(self, at_s: float) -> Arrival:
        return self._say(at_s)

    def next(self, ended: Arrival) -> Arrival | None:
        """The turn after this one; None when all is said."""
        if self._turn == self._turns:
            return None
        return self._say((ended.ended_s or 0.0) + self._random.expovariate(1 / _THINKS_S))

    def _say(self, at_s: float) -> Arrival:
        said = length(_SAID, self._random, 1000)
        answer = length(_ANSWERED, self._random, 1000)
        self.added += said
        self._said += [next(self._token) for _ in range(said)]
        prompt_tokens = len(self._said)
        self._said += [next(self._token) for _ in range(answer)]
        arrival = Arrival(
            name=f"{self._number}-{self._turn}",
            tenant="clients",
            priority=0,
            at_s=at_s,
            prompt_tokens=prompt_tokens,
            output_tokens=answer,
            max_tokens=answer,
            tokens=list(self._said),
        )
        self._turn += 1
        return arrival
