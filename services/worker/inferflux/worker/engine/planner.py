"""Which tokens go into the next batch: those of the streams, of prompts, or of both.

A prompt that is soon done goes beside the streams, every decoding sequence first, then prompts within the
budget. Where the backend has a context for prompts, those that take several steps are computed there,
*apart*, in turn with the streams, whose steps then hold nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from .budget import StepBudget
from .sequence import Sequence

# A prompt of more tokens is long: see `StepBudget`.
_LONG_PROMPT = 512


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
    is_apart: bool = False
    """Whether the step is computed in the context for prompts."""

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
        self._had_prompts_apart = False

    def next(self, decoding: list[Sequence], prefilling: list[Sequence], room_apart: int) -> StepPlan:
        """The next step for these sequences, the prompts most urgent first.

        Args:
            room_apart: tokens that the context for prompts has room for.
        """
        if not prefilling:
            self._had_prompts_apart = False
            return plan_step(decoding, [], 0)
        is_lasting = prefilling[0].n_tokens > _LONG_PROMPT
        tokens = self._budget.beside(len(decoding), len(prefilling), is_lasting=is_lasting)
        line, are_apart = first_in_line(prefilling, tokens, room_apart)
        if not are_apart:
            self._had_prompts_apart = False
            return plan_step(decoding, line, tokens)
        self._had_prompts_apart = not (decoding and self._had_prompts_apart)
        if not self._had_prompts_apart:
            return plan_step(decoding, [], 0)
        # A prompt more urgent than every stream does not heed them.
        is_urgent = all(line[0].order < s.order for s in decoding)
        n_heeded = 0 if is_urgent else len(decoding)
        tokens = self._budget.apart(n_heeded, len(prefilling), is_lasting=is_lasting)
        return plan_step([], line, even_share([s.n_pending for s in line], tokens), is_apart=True)


def split(sequences: Iterable[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """(decoding, prefilling); the latter most urgent first."""
    decoding: list[Sequence] = []
    prefilling: list[Sequence] = []
    for sequence in sequences:
        (prefilling if sequence.is_prefilling else decoding).append(sequence)
    prefilling.sort(key=lambda s: s.order)
    return decoding, prefilling


def first_in_line(prefilling: list[Sequence], tokens: int, room_apart: int) -> tuple[list[Sequence], bool]:
    """The prompts that come first and are computed in the same place, and whether that is apart.

    What has begun goes on where it is. A prompt is begun apart if it finds room there, unless it is
    complete with this step's `tokens` beside the streams.
    """
    line: list[Sequence] = []
    are_apart = False
    for sequence in prefilling:
        begins_apart = sequence.position == 0 and tokens < sequence.n_pending <= room_apart
        is_apart = sequence.is_apart or begins_apart
        if line and is_apart != are_apart:
            break
        are_apart = is_apart
        line.append(sequence)
        if not is_apart:
            tokens -= min(sequence.n_pending, tokens)
        elif not sequence.is_apart:
            room_apart -= sequence.n_pending
    return line, are_apart


def even_share(pending: list[int], most: int) -> int:
    """Tokens of the next of the fewest steps of at most `most` that compute prompts with so many tokens left.

    A small rest would cost a step of its own, in which the model's weights are read for a few tokens. The
    first prompt is not divided for the sake of the others.
    """
    whole = sum(pending)
    even = math.ceil(whole / math.ceil(whole / most))
    return max(even, pending[0]) if pending[0] <= most else even


def plan_step(
    decoding: list[Sequence], prefilling: list[Sequence], prefill_tokens: int, *, is_apart: bool = False
) -> StepPlan:
    """Fill one step.

    Prompts are served one after the other, not in parallel: the first then has its first token as
    early as it can, and the last no later than if they shared.

    Args:
        prefill_tokens: most prompt tokens the step may hold.
    """
    shares: list[Share] = []
    left = prefill_tokens
    for sequence in prefilling:
        if left <= 0:
            break
        n = min(left, sequence.n_pending)
        shares.append(Share(sequence, n, wants_logits=n == sequence.n_pending))
        left -= n
    return StepPlan([Share(sequence, 1, wants_logits=True) for sequence in decoding], shares, is_apart)


def plan_of(grants: Iterable[tuple[Sequence, int]], *, is_apart: bool = False) -> StepPlan:
    """The step that computes so many tokens of each sequence."""
    plan = StepPlan([], [], is_apart)
    for sequence, n in grants:
        part = plan.prefilling if sequence.is_prefilling else plan.decoding
        part.append(Share(sequence, n, wants_logits=n == sequence.n_pending))
    return plan
