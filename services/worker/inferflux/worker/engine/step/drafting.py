"""Adds drafts to steps, and learns what becomes of them.

Drafts are added to steps of decodes alone, after they are planned: a step that holds tokens of a prompt is as
long as it should be already. They take cells that are empty. So nothing is evicted for a guess.

What followed the same tokens before is compared with what comes in every step, with a draft or without. So
such drafts begin when they are worth their time, and end when they are not. What a draft model says is known
only when it is asked, so it is asked now and then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Several

from inferflux.v1 import engine_pb2, generation_pb2, scheduler_pb2
from inferflux.worker.engine.llama.context import DecodeError
from inferflux.worker.engine.llama.draft_model import DraftModel, Wanted
from inferflux.worker.engine.plan.budget import StepBudget, Worth
from inferflux.worker.engine.plan.planner import ScheduledTokens, StepPlan
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.plan.speculation import (
    DRAFT,
    FORCED,
    MOST_DRAFTED,
    NGRAM,
    Candidate,
    Course,
    Drafts,
    Learned,
    Tries,
    rows_of,
)

from .parts import Part

# Computing what a draft model lacks of a sequence may take this part of what drafts save if the answer is as
# long as it may be: most are shorter.
_CATCHING_UP_PART = 0.5
_FIRST_GAIN = 1.3
# Where the draft model is sure, a draft has this many times the tokens that are worth it on average, at most.
_MORE_OF_SURE = 2
# A draft that is tried goes on however unsure the draft model is: by margin.
_SURE = (1.0,) * 6
# Steps between two looks at what rows cost.
_COSTS_EVERY = 32
# What is looked up is tried if it is more likely than this: how often it comes is known without a try, and
# what its rows cost may be found out by what is likely.
_LIKELY = 0.5
# Looking for drafts takes time as well. After a step without any, they are looked for again one step later
# for this many sequences.
_SEQUENCES_PER_STEP = 8
# At which a token comes that the constraint leaves no choice of.
_FORCED_RATES = (0.999,)


class Drafting(Part):
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
        self._learned = Learned()
        self._tries = Tries()
        # Tokens per second with the draft model's latest drafts, divided by those without.
        self._gain = _FIRST_GAIN
        # What a row has to give to be looked at, in a step of this many sequences.
        self._least_gain, self._least_gain_of = 0.0, 0
        self._steps = 0
        # Steps in which no drafts are looked for.
        self._resting = 0
        # Since the last report. By position in a draft: accepted tokens.
        self._drafts = self._drafted = 0
        self._accepted_at: list[int] = []
        # In the latest step.
        self._taken = 0
        self._error = ""

    def begin(self, sequence: Sequence, request: scheduler_pb2.InferenceRequest) -> None:
        """Have tokens drafted for a new sequence, if its request asks for it and it is possible. Not where
        its prompt has images, or its answer is to be the same again.

        Under a constraint these are the tokens that it leaves no choice of, whatever was asked for.
        """
        if sequence.images:  # what drafts looks at tokens, and cells of images are none
            return
        if sequence.is_deterministic:
            return
        asked = request.params.speculation or self._default
        source = FORCED if sequence.answer.constraint is not None else asked
        is_possible = source in (NGRAM, FORCED) or (source == DRAFT and self._model is not None)
        if self._most_rows and is_possible:
            sequence.drafts = Drafts(source)

    def extend(self, plan: StepPlan, empty_cells: int) -> None:
        """Add the drafts to `plan` that are worth their time, written after their sequences' tokens."""
        n_decoding = len(plan.decoding)
        most = min(self._most_rows, empty_cells) - n_decoding
        if plan.prefilling or most <= 0:
            return
        if self._resting:
            self._resting -= 1
            return
        asking = [part for part in plan.decoding if part.sequence.drafts is not None]
        if not asking:
            return
        self._look_at_costs(n_decoding)
        found = [(part, candidate) for part in asking if (candidate := self._find(part.sequence, n_decoding))]
        self._resting = len(asking) // _SEQUENCES_PER_STEP
        if not found:
            return
        parts, candidates = zip(*found, strict=True)
        numbers, worth = self._numbers(candidates, n_decoding, most)
        if not numbers:
            return
        self._resting = 0
        by_model: dict[int, ScheduledTokens] = {}
        for i, n in numbers.items():
            part, tokens = parts[i], candidates[i].tokens
            if tokens:
                _add(part, tokens[:n])
                most -= n
            else:
                by_model[i] = part
        is_ready = True
        if by_model:
            asked = [
                self._wanted(part, candidates[i], numbers[i], worth, most // len(by_model))
                for i, part in by_model.items()
            ]
            is_ready = self._add_of_model(list(by_model.values()), asked, n_decoding)
        if is_ready and not worth.rows:
            self._tries.made()

    def _wanted(self, part: ScheduledTokens, candidate: Candidate, n: int, worth: Worth, most: int) -> Wanted:
        """A draft of `n` tokens: fewer where the model is not sure, and more, up to `most`, where it is."""
        sequence, drafts = part.sequence, part.sequence.drafts
        if drafts is None or not worth.rows:
            return Wanted(sequence, n, Course(_SURE, 1.0, least=0.0, draft=0.0))
        course = Course(
            self._learned.by_margin(drafts),
            candidate.rates[0],
            least=worth.least,
            draft=worth.tokens_s * candidate.draft_s,
        )
        return Wanted(sequence, max(min(_MORE_OF_SURE * n, candidate.most, most), 1), course)

    def _look_at_costs(self, n_decoding: int) -> None:
        """Find out what a draft has to give at least, from time to time and when the step is another one."""
        self._steps += 1
        if n_decoding != self._least_gain_of or self._steps % _COSTS_EVERY == 0:
            self._least_gain_of, self._least_gain = n_decoding, self._budget.least_gain(n_decoding)

    def _add_of_model(self, parts: list[ScheduledTokens], wanted: list[Wanted], n_decoding: int) -> bool:
        """Have the draft model draft for these; returns whether it was ready for all.

        One that fails drafts no more: answers need it for nothing.
        """
        if self._model is None:
            return False
        try:
            said = self._model.draft(wanted, self._budget.copying_s(n_decoding))
        except DecodeError as error:
            self._model, self._error = None, str(error)
            return False
        for part, draft in zip(parts, said, strict=True):
            drafts = part.sequence.drafts
            if draft is not None and drafts is not None:
                drafts.said, drafts.said_at = draft, part.sequence.n_tokens
                _add(part, draft.tokens[: draft.n_worth])
        return None not in said

    def _numbers(
        self, candidates: Several[Candidate], n_decoding: int, most: int
    ) -> tuple[dict[int, int], Worth]:
        """(how many tokens to draft, by the candidate's index; what they are worth, if they are no try)."""
        worth = self._budget.rows_worth(n_decoding, rows_of(candidates), most)
        numbers = Counter(row.of for row in worth.rows)
        if numbers:
            self._tries.paid()
            if any(not candidates[i].tokens for i in numbers):
                self._gain = worth.gain
        elif self._tries.is_due():
            best = max(range(len(candidates)), key=lambda i: candidates[i].rates[0])
            tried = candidates[best]
            if not tried.tokens or tried.rates[0] > _LIKELY:
                numbers[best] = min(Tries.TOKENS, tried.most, most)
        return numbers, worth

    def _find(self, sequence: Sequence, n_decoding: int) -> Candidate | None:
        """Return what a sequence may draft, if anything."""
        drafts = sequence.drafts
        if drafts is None:
            return None
        if drafts.source == NGRAM:
            self._follow(sequence, drafts)
            if not drafts.index.length or self._learned.next_of_lookup(drafts) < self._least_gain:
                return None
            most = min(sequence.n_draftable, MOST_DRAFTED)
            if most <= 0:
                return None
            tokens = _before_end(drafts.index.draft(most), sequence.end_tokens)
            return Candidate(self._learned.of_lookup(drafts), len(tokens), tokens=tokens) if tokens else None
        if drafts.source == FORCED:
            most = min(sequence.n_draftable, MOST_DRAFTED)
            forced = sequence.answer.forced() if most > 0 else []
            tokens = _before_end(list(forced[:most]), sequence.end_tokens)
            return Candidate(_FORCED_RATES, len(tokens), tokens=tokens) if tokens else None
        model = self._model
        if model is None:
            return None
        most_left = sequence.n_draftable
        most = min(most_left, MOST_DRAFTED, model.context_length - sequence.n_tokens)
        self._compare(sequence, drafts)
        drafts.rates.fade()
        if most <= 0:
            return None
        saved_s = most_left * self._budget.token_s(n_decoding) * (1.0 - 1.0 / self._gain)
        if model.catch_up_s(sequence) > _CATCHING_UP_PART * saved_s:
            return None  # a short answer after a long prompt
        return Candidate([self._learned.of_model(drafts)], most, draft_s=model.token_s(n_decoding))

    def _follow(self, sequence: Sequence, drafts: Drafts) -> None:
        """Take up what a sequence got since the last time."""
        for length, is_same in drafts.index.extend(sequence.tokens, sequence.n_tokens):
            self._learned.looked_up(drafts, length, is_accepted=is_same)

    def _compare(self, sequence: Sequence, drafts: Drafts) -> None:
        """Find out what became of what the draft model said: of what got no row, too."""
        if drafts.said is None:
            return
        came = sequence.tokens[drafts.said_at : sequence.n_tokens].tolist()
        for token, margin, other in zip(drafts.said.tokens, drafts.said.margins, came, strict=False):
            self._learned.said(drafts, margin, is_accepted=token == other)
            if token != other:
                break
        drafts.said = None

    def end(self, sequence: Sequence) -> None:
        if self._model is not None:
            self._model.forget(sequence)

    def verified(self, part: ScheduledTokens, taken: int) -> None:
        """A step has computed the draft of a sequence.

        Args:
            taken: how many of its first tokens are the model's own, as far as the sequence took them.
        """
        sequence, drafts, n = part.sequence, part.sequence.drafts, part.n_drafted
        if drafts is None:
            return
        if drafts.source == FORCED:
            self._taken += taken
            return
        if drafts.source == NGRAM:
            self._follow(sequence, drafts)
        else:
            self._compare(sequence, drafts)
            if self._model is not None:
                self._model.verified(sequence)
        drafts.drafted += n
        drafts.accepted += taken
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

    def stats(self, step: engine_pb2.StepReport) -> None:
        step.draft_model_error, self._error = self._error, ""
        stats = step.stats
        stats.drafts, stats.draft_tokens = self._drafts, self._drafted
        stats.accepted_draft_tokens.extend(self._accepted_at)
        self._drafts = self._drafted = 0
        self._accepted_at = []


def _before_end(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """The tokens before the first that ends an answer: nothing comes after that one, and it needs no row: the
    row before it says that it comes."""
    if ends:
        for i, token in enumerate(tokens):
            if token in ends:
                return tokens[:i]
    return tokens


def _add(part: ScheduledTokens, tokens: Several[int]) -> None:
    """Have a part compute these tokens as well, which are written after those of its sequence."""
    n, known = len(tokens), part.sequence.n_tokens
    part.sequence.tokens[known : known + n] = tokens
    part.n += n
    part.n_logits += n
    part.n_drafted = n
