"""Planning of the next batch: tokens of decodes, of prefills, or of both.

A prefill that is soon complete goes into a mixed batch: every decode first, then prefills within the budget.
Where the backend has a prefill context, prefills that take several steps are computed there, in turn with
steps that hold decodes alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace

from .budget import StepBudget
from .sequence import Sequence

# A prompt of more tokens is long: see `StepBudget`.
_LONG_PROMPT = 512
# After fewer tokens a suffix is computed as soon in a mixed batch.
_LONG_PREFIX = 256
MOST_DETERMINISTIC_ROWS = 63
"""Rows of a step of deterministic requests: llama.cpp computes more in another way."""


# Not frozen: a step makes one for each sequence, and a frozen one takes three times as long.
@dataclass(slots=True)
class ScheduledTokens:
    """A sequence's part of a step: the first `n` of its pending tokens, drafted ones after them included."""

    sequence: Sequence
    n: int
    n_logits: int = 0
    """Of how many of its last tokens logits are wanted: none before the part ends the pending tokens."""
    n_drafted: int = 0
    """How many of its last tokens are drafted, and become the sequence's once they are accepted."""
    n_scored: int = 0
    """All of its tokens, where logits after each of them are told; only the last may choose a token."""

    @property
    def n_rows(self) -> int:
        """Rows of logits."""
        return self.n_scored or self.n_logits


@dataclass(frozen=True, slots=True)
class StepPlan:
    decoding: list[ScheduledTokens]
    prefilling: list[ScheduledTokens]
    in_prefill_context: bool = False
    """Whether the step is computed in the prefill context."""
    is_long: bool = False
    """Whether it may take longer than others, and is given up for what cannot wait for it."""
    adapter: str = ""
    """The digest of the adapter that computes all of it; empty: none."""
    is_deterministic: bool = False
    """Return whether it holds requests that ask for the same answer again, and nothing else."""

    @property
    def parts(self) -> list[ScheduledTokens]:
        """Scheduled tokens of the step in batch order."""
        return self.decoding + self.prefilling

    @property
    def n_prefill(self) -> int:
        return sum(part.n for part in self.prefilling)

    @property
    def n_tokens(self) -> int:
        return len(self.decoding) + self.n_drafted + self.n_prefill

    @property
    def n_drafted(self) -> int:
        return sum(part.n_drafted for part in self.decoding)

    @property
    def wanted(self) -> dict[Sequence, int]:
        """Tokens of each sequence."""
        return {part.sequence: part.n for part in self.parts}


class Planner:
    """Plans one step after the other.

    Args:
        shortest_suffix: see `select_prefills`.
    """

    def __init__(self, budget: StepBudget, shortest_suffix: int = 0) -> None:
        self._budget = budget
        self._shortest_suffix = shortest_suffix
        self._had_prefills = False
        self._may_be_long = True

    def interrupted(self) -> None:
        """A long step was given up: none is planned until all that waits is prefilled."""
        self._may_be_long = False

    def next(
        self,
        decoding: list[Sequence],
        prefilling: list[Sequence],
        prefill_room: int,
        waiting: Several[Sequence] = (),
    ) -> StepPlan:
        """The next step for these sequences, the prefills most urgent first.

        Args:
            prefill_room: tokens that the prefill context has room for.
            waiting: decoding sequences of other adapters. They wait for this step: prefills spare them too.
        """
        if not prefilling:
            self._had_prefills = False
            self._may_be_long = True
            return plan_step(decoding, [], 0)
        is_long = prefilling[0].n_tokens > _LONG_PROMPT
        n_decoding = len(decoding) + len(waiting)
        tokens = self._budget.mixed(n_decoding, len(prefilling), is_long=is_long)
        selected, in_context = select_prefills(prefilling, tokens, prefill_room, self._shortest_suffix)
        long_tokens = self._budget.in_long_step() if in_context else self._budget.in_long_mixed_step()
        can_be_long = self._may_be_long and not n_decoding and long_tokens > tokens
        if not in_context:
            self._had_prefills = False
            # What is computed of an image stays where a step is given up.
            can_be_long = (
                can_be_long and selected[0].n_pending > tokens and not any(s.images for s in selected)
            )
            plan = plan_step(decoding, selected, long_tokens if can_be_long else tokens)
            return replace(plan, is_long=True) if can_be_long else plan
        self._had_prefills = not (decoding and self._had_prefills)
        if not self._had_prefills:
            return plan_step(decoding, [], 0)
        # A prefill that is more urgent than every decode lets them wait.
        is_urgent = all(selected[0].order < s.order for s in (*decoding, *waiting))
        n_spared = 0 if is_urgent else n_decoding
        tokens = self._budget.in_prefill_context(n_spared, len(prefilling), is_long=is_long)
        can_be_long = self._may_be_long and not n_decoding and long_tokens > tokens
        plan = plan_step([], selected, long_tokens if can_be_long else tokens, in_prefill_context=True)
        return replace(plan, is_long=can_be_long)


def plan_deterministic(decoding: list[Sequence], prefilling: list[Sequence], prefill_tokens: int) -> StepPlan:
    """A step of deterministic requests. What it holds beside a sequence does not change its tokens.

    Args:
        prefill_tokens: most prompt tokens the step may hold.
    """
    # Those that have least come first: no step leaves the same ones out.
    rows = sorted(decoding, key=lambda s: s.generated)[:MOST_DETERMINISTIC_ROWS]
    left = min(prefill_tokens, MOST_DETERMINISTIC_ROWS - len(rows))
    return replace(plan_step(rows, prefilling, left), is_deterministic=True)


def split(sequences: Iterable[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """(decoding, prefilling); the latter most urgent first."""
    decoding: list[Sequence] = []
    prefilling: list[Sequence] = []
    for sequence in sequences:
        (prefilling if sequence.is_prefilling else decoding).append(sequence)
    prefilling.sort(key=lambda s: s.order)
    return decoding, prefilling


def select_prefills(
    prefilling: list[Sequence], tokens: int, prefill_room: int, shortest_suffix: int = 0
) -> tuple[list[Sequence], bool]:
    """(the prefills that come first and are computed in the same context, whether it is the prefill context).

    A prefill that is in the prefill context stays there. Another one goes there from any position if all its
    tokens find room, unless it is complete with this step's `tokens` of a mixed batch. It goes there all the
    same with a suffix that takes longer beside the main context's cells than copying what is before it.

    Args:
        shortest_suffix: tokens of such a suffix; 0: there is none.
    """
    selected: list[Sequence] = []
    in_context = False
    for sequence in prefilling:
        is_suffix = sequence.position >= _LONG_PREFIX and 0 < shortest_suffix <= sequence.n_pending
        can_enter = (sequence.n_pending > tokens or is_suffix) and sequence.n_tokens <= prefill_room
        # Cells of images are computed in the main context alone, and it alone gives many rows of logits.
        is_bound = bool(sequence.images) or sequence.is_scored
        in_prefill_context = sequence.in_prefill_context or (can_enter and not is_bound)
        if selected and in_prefill_context != in_context:
            break
        in_context = in_prefill_context
        selected.append(sequence)
        if not in_prefill_context:
            tokens -= min(sequence.n_pending, tokens)
        elif not sequence.in_prefill_context:
            prefill_room -= sequence.n_tokens
    return selected, in_context


def plan_step(
    decoding: list[Sequence],
    prefilling: list[Sequence],
    prefill_tokens: int,
    *,
    in_prefill_context: bool = False,
) -> StepPlan:
    """Fill one step.

    Prompts are served one after the other, not in parallel: the first then has its first token as
    early as it can, and the last no later than if they shared.

    Args:
        prefill_tokens: most prompt tokens the step may hold.
    """
    parts: list[ScheduledTokens] = []
    left = prefill_tokens
    has_scored = False
    for sequence in prefilling:
        if left <= 0:
            break
        if sequence.is_scored and has_scored:  # their rows of logits are bounded together
            continue
        has_scored |= sequence.is_scored
        n = max(min(left, sequence.n_computable), sequence.n_indivisible)
        parts.append(_prefill_part(sequence, n))
        left -= n
    return StepPlan(
        [ScheduledTokens(sequence, 1, n_logits=1) for sequence in decoding], parts, in_prefill_context
    )


def _prefill_part(sequence: Sequence, n: int) -> ScheduledTokens:
    is_last = int(n == sequence.n_pending)
    return ScheduledTokens(sequence, n, n_logits=is_last, n_scored=n if sequence.is_scored else 0)


def plan_of(
    grants: Iterable[tuple[Sequence, int]],
    *,
    in_prefill_context: bool = False,
    is_long: bool = False,
    adapter: str = "",
    is_deterministic: bool = False,
) -> StepPlan:
    """The step that computes the given number of tokens of each sequence."""
    plan = StepPlan([], [], in_prefill_context, is_long, adapter, is_deterministic)
    for sequence, n in grants:
        if sequence.is_prefilling and n < sequence.n_indivisible:
            continue
        part = plan.prefilling if sequence.is_prefilling else plan.decoding
        part.append(_prefill_part(sequence, n))
    return plan
