"""Which tokens go into the next batch: those of the streams, of prompts, or of both.

Prompts go beside the streams: every decoding sequence first, then prompts within the budget.

On a CPU that is the rule as well: attention works through a batch row by row, each row reading the cells of
its own sequence. From `tile` rows on it takes so many at a time, which is faster, but reads for all of them
what any of them needs. So a prompt that is more urgent than every stream takes turns with them, which have
nothing in common, and is cut into whole tiles. Other prompts do not: a tile makes the streams wait for long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .budget import StepBudget
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Share:
    """A sequence's part of a step: the first `n` of its pending tokens."""

    sequence: Sequence
    n: int
    wants_logits: bool
    """Whether the part ends the pending tokens, so that the next token can be sampled."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    decoding: list[Share]
    prefilling: list[Share]

    @property
    def shares(self) -> list[Share]:
        """In batch order."""
        return self.decoding + self.prefilling

    @property
    def n_prefill(self) -> int:
        return sum(share.n for share in self.prefilling)

    @property
    def n_tokens(self) -> int:
        return len(self.decoding) + self.n_prefill

    @property
    def wanted(self) -> dict[Sequence, int]:
        """Tokens of each sequence."""
        return {share.sequence: share.n for share in self.shares}


class Planner:
    """Plans one step after the other."""

    def __init__(self, budget: StepBudget) -> None:
        self._budget = budget
        self._had_prompts_alone = False

    def next(self, decoding: list[Sequence], prefilling: list[Sequence]) -> StepPlan:
        """The next step for these sequences, the prompts most urgent first."""
        takes_turns = self._takes_turns(decoding, prefilling)
        if takes_turns and self._had_prompts_alone:
            self._had_prompts_alone = False
            return plan_step(decoding, [], 0)
        self._had_prompts_alone = takes_turns
        if decoding and not takes_turns:
            return plan_step(decoding, prefilling, self._budget.beside(len(decoding), len(prefilling)))
        tokens = self._budget.alone(len(decoding), len(prefilling))
        return plan_step([], prefilling, tokens, self._budget.tile)

    def _takes_turns(self, decoding: list[Sequence], prefilling: list[Sequence]) -> bool:
        if not decoding or not prefilling:
            return False
        tile = self._budget.tile
        if tile == 1 or len(decoding) + sum(s.n_pending for s in prefilling) < tile:
            return False
        return all(prefilling[0].order < s.order for s in decoding)


def split(sequences: Iterable[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """(decoding, prefilling); the latter most urgent first."""
    decoding: list[Sequence] = []
    prefilling: list[Sequence] = []
    for sequence in sequences:
        (prefilling if sequence.is_prefilling else decoding).append(sequence)
    prefilling.sort(key=lambda s: s.order)
    return decoding, prefilling


def plan_step(
    decoding: list[Sequence], prefilling: list[Sequence], prefill_tokens: int, tile: int = 1
) -> StepPlan:
    """Fill one step.

    Prompts are served one after the other, not in parallel: the first then has its first token as
    early as it can, and the last no later than if they shared.

    Args:
        prefill_tokens: most prompt tokens the step may hold.
        tile: see `_cut`.
    """
    shares: list[Share] = []
    left = prefill_tokens
    for sequence in prefilling:
        if left <= 0:
            break
        n = _cut(min(left, sequence.n_pending), sequence.n_pending, tile)
        shares.append(Share(sequence, n, wants_logits=n == sequence.n_pending))
        left -= n
    return StepPlan([Share(sequence, 1, wants_logits=True) for sequence in decoding], shares)


def _cut(n: int, pending: int, tile: int) -> int:
    """`n` of `pending` tokens, and what whole tiles leave over: at the beginning of a prompt some rows more
    take next to nothing, while deep in it a few take as long as a tile."""
    return n + (pending - n) % tile


def plan_of(grants: Iterable[tuple[Sequence, int]]) -> StepPlan:
    """The step that computes so many tokens of each sequence."""
    plan = StepPlan([], [])
    for sequence, n in grants:
        part = plan.prefilling if sequence.is_prefilling else plan.decoding
        part.append(Share(sequence, n, wants_logits=n == sequence.n_pending))
    return plan
