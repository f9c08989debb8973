"""Which tokens go into the next batch: every decoding sequence first, then prompts within the budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


def split(sequences: Iterable[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """(decoding, prefilling); the latter most urgent first."""
    decoding: list[Sequence] = []
    prefilling: list[Sequence] = []
    for sequence in sequences:
        (prefilling if sequence.is_prefilling else decoding).append(sequence)
    prefilling.sort(key=lambda s: s.order)
    return decoding, prefilling


def plan_step(decoding: list[Sequence], prefilling: list[Sequence], prefill_tokens: int) -> StepPlan:
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
    return StepPlan([Share(sequence, 1, wants_logits=True) for sequence in decoding], shares)


def plan_of(grants: Iterable[tuple[Sequence, int]]) -> StepPlan:
    """The step that computes so many tokens of each sequence."""
    plan = StepPlan([], [])
    for sequence, n in grants:
        part = plan.prefilling if sequence.is_prefilling else plan.decoding
        part.append(Share(sequence, n, wants_logits=n == sequence.n_pending))
    return plan
