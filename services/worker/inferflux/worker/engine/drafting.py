"""Adds drafts to steps, and learns what becomes of them.

Drafts are added to steps of decodes alone, after they are planned: a step that holds tokens of a prompt is as
long as it should be already. They take cells that are empty. So nothing is evicted for a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Several

from inferflux.v1 import engine_pb2, generation_pb2

from .budget import StepBudget
from .draft_model import DraftModel
from .envelope import TokenArray
from .ngram import continuation
from .planner import ScheduledTokens, StepPlan
from .sequence import Sequence
from .speculation import DRAFT, MOST_DRAFTED, NGRAM, Candidate, Drafts, SharedRates, Tries, rows_of


class Drafting:
    """Drafts for the sequences of an engine.

    Args:
        budget: says which rows are worth their time.
        default: source of requests that leave it open.
        most_rows: of a step with drafts; 0: there are none.
        model: drafts for those that ask for a draft model.
    """

    def __init__(
        self,
        budget: StepBudget,
        *,
        default: generation_pb2.Speculation.ValueType,
        most_rows: int,
        model: DraftModel | None = None,
    ) -> None:
        self._budget = budget
        self._default = default
        self._most_rows = most_rows
        self._model = model
        self._sources = {NGRAM} if model is None else {NGRAM, DRAFT}
        self._rates = SharedRates()
        self._tries = Tries()
        # Since the last report. By position in a draft: accepted tokens.
        self._drafts = self._drafted = 0
        self._accepted_at: list[int] = []
        # In the latest step.
        self._taken = 0

    def begin(self, sequence: Sequence, asked: generation_pb2.Speculation.ValueType) -> None:
        """Have tokens drafted for a new sequence, if its request asks for it and it is possible."""
        source = asked or self._default
        if self._most_rows and source in self._sources and sequence.constraint is None:
            sequence.drafts = Drafts(source)

    def extend(self, plan: StepPlan, empty_cells: int) -> None:
        """Add the drafts to `plan` that are worth their time, written after their sequences' tokens."""
        n_decoding = len(plan.decoding)
        most = min(self._most_rows, empty_cells) - n_decoding
        if plan.prefilling or most <= 0 or self._tries.is_resting():
            return
        found = [each for part in plan.decoding if (each := self._find(part, n_decoding)) is not None]
        rows = rows_of([candidate for _, _, candidate in found], most)
        worth = self._tries.rows(self._budget.rows_worth(n_decoding, rows), len(rows)) if rows else 0
        if not worth:
            self._tries.none_found(n_decoding)
            return
        by_model: list[tuple[ScheduledTokens, int]] = []
        for of, n in Counter(row.of for row in rows[:worth]).items():
            part, end, _ = found[of]
            if end is None:
                by_model.append((part, n))
            else:
                _add(part, continuation(part.sequence.tokens[: part.sequence.n_tokens], end, n))
        if by_model and self._model is not None:
            drafts = self._model.draft([(part.sequence, n) for part, n in by_model])
            for (part, _), tokens in zip(by_model, drafts, strict=True):
                _add(part, tokens)

    def _find(
        self, part: ScheduledTokens, n_decoding: int
    ) -> tuple[ScheduledTokens, int | None, Candidate] | None:
        """(the sequence's part, position from which on it may go on alike, what that may give). A draft model
        needs no position."""
        sequence, drafts = part.sequence, part.sequence.drafts
        if drafts is None:
            return None
        most = min(sequence.n_draftable, MOST_DRAFTED)
        end, draft_s = None, 0.0
        if drafts.source == DRAFT and self._model is not None:
            most = min(most, self._model.context_length - sequence.n_tokens)
            draft_s = self._model.token_s(n_decoding)
        elif most > 0:
            match = drafts.index.find(sequence.tokens[: sequence.n_tokens])
            if match is None:
                return None
            drafts.kind, end = match
        if most <= 0:
            return None
        rate = drafts.acceptance(drafts.kind).rate(self._rates.rate(drafts.kind))
        return part, end, Candidate(rate, most, draft_s)

    def end(self, sequence: Sequence) -> None:
        """A sequence leaves."""
        if self._model is not None:
            self._model.forget(sequence)

    def verified(self, part: ScheduledTokens, accepted: int, taken: int) -> None:
        """A step has computed the draft of a sequence.

        Args:
            accepted: how many of its first tokens are the model's own.
            taken: how many of them the sequence took: it may have ended.
        """
        drafts, n = part.sequence.drafts, part.n_drafted
        if drafts is None:
            return
        if self._model is not None:
            self._model.verified(part.sequence)
        drafts.drafted += n
        drafts.accepted += taken
        drafts.acceptance(drafts.kind).observe(n, accepted)
        self._rates.observe(drafts.kind, n, accepted)
        self._drafts += 1
        self._drafted += n
        self._accepted_at += [0] * (taken - len(self._accepted_at))
        for position in range(taken):
            self._accepted_at[position] += 1
        self._taken += taken

    def take_accepted(self) -> int:
        """Accepted tokens of the latest step."""
        taken, self._taken = self._taken, 0
        return taken

    def write_stats(self, stats: engine_pb2.StepStats) -> None:
        """Write what happened since the last call."""
        stats.drafts, stats.draft_tokens = self._drafts, self._drafted
        stats.accepted_draft_tokens.extend(self._accepted_at)
        self._drafts = self._drafted = 0
        self._accepted_at = []


def _add(part: ScheduledTokens, tokens: Several[int] | TokenArray) -> None:
    """Have a part compute these tokens as well, which are written after those of its sequence."""
    n, known = len(tokens), part.sequence.n_tokens
    part.sequence.tokens[known : known + n] = tokens
    part.n += n
    part.n_logits += n
    part.n_drafted = n
