"""Number of tokens drafted for each sequence, by what became of earlier drafts (pure).

A step computes a sequence's last token and a draft of those after it, a row for each. Every row costs time,
and only those before the first rejection give a token. So a row is drafted if the tokens it is expected to
give are worth its time: see `StepBudget.rows_worth`. How often a drafted token is accepted is measured for
each sequence. It begins with what others of the same source had.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import NamedTuple

from inferflux.v1 import generation_pb2

from .ngram import NgramIndex

OFF = generation_pb2.SPECULATION_OFF
NGRAM = generation_pb2.SPECULATION_NGRAM
DRAFT = generation_pb2.SPECULATION_DRAFT
FORCED = generation_pb2.Speculation.ValueType(-1)
"""What a constraint leaves no choice of. No request asks for it: it is not counted as drafted."""

MOST_ROWS = 63
"""Rows of a step that verifies drafts. llama.cpp's attention computes more rows on a CPU in tiles, and adds
up in another order there."""
MOST_DRAFTED = 24
"""Tokens of one draft."""

# Kinds of drafted tokens. Of what is looked up: how many tokens before it agreed; more are as good.
_LONGEST = 8
# Of a draft model: any that it may say next, and those that it has said, by how far their logit is above all
# others.
_OF_MODEL = 0
_MARGINS = (0.5, 1.0, 2.0, 4.0, 8.0)
_FIRST_MARGIN = _LONGEST + 1
_KINDS = _FIRST_MARGIN + len(_MARGINS) + 1
# Before anything is known, by kind.
_FIRST_RATES = (0.7, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.9, 0.4, 0.5, 0.6, 0.8, 0.9, 0.95)
# An estimate begins with what others had, as if it was of this many tokens.
_PRIOR_TOKENS = 4.0
# What was seen counts this much less with each token.
_MEMORY = 0.95
_SHARED_MEMORY = 0.99
# Evidence against a model's drafts fades by this with each step that has none.
_FADING = 0.99


class Rates:
    """Rates at which drafted tokens were accepted, if those before them were, by kind."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._tested = [0.0] * _KINDS
        self._accepted = [0.0] * _KINDS

    def of_kind(self, kind: int, prior: float) -> float:
        """Return the rate of one kind; see `of_kinds`."""
        return (self._accepted[kind] + _PRIOR_TOKENS * prior) / (self._tested[kind] + _PRIOR_TOKENS)

    def of_kinds(self, first: int, end: int, priors: Several[float]) -> list[float]:
        """Return the rates of the kinds from `first` up to `end`, each in (0, 1).

        Args:
            priors: of every kind, the rate while little is known.
        """
        seen = zip(self._accepted[first:end], self._tested[first:end], priors[first:end], strict=True)
        return [(hits + _PRIOR_TOKENS * prior) / (n + _PRIOR_TOKENS) for hits, n, prior in seen]

    def observe(self, kind: int, is_accepted: bool) -> None:
        """Count one token that was accepted or rejected."""
        self._tested[kind] = self._tested[kind] * self._memory + 1.0
        self._accepted[kind] = self._accepted[kind] * self._memory + is_accepted

    def fade(self) -> None:
        """Let what was seen of a draft model count a little less."""
        self._tested[_OF_MODEL] *= _FADING
        self._accepted[_OF_MODEL] *= _FADING


class ModelDraft(NamedTuple):
    """Draft of a draft model.

    Attributes:
        tokens: one after the other.
        margins: how far the logit of each was above all others; below 0 if it was drawn all the same.
        n_worth: how many of them are worth a row: all, or all but the last.
    """

    tokens: list[int]
    margins: list[float]
    n_worth: int


@dataclass(slots=True)
class Drafts:
    """Drafts of one sequence.

    Attributes:
        source: of its drafts: `NGRAM`, `DRAFT` or `FORCED`.
        drafted, accepted: tokens since it came here.
        said: by the draft model from position `said_at` on, as far as it is not known what became of it.
    """

    source: generation_pb2.Speculation.ValueType
    index: NgramIndex = field(default_factory=NgramIndex)
    drafted: int = 0
    accepted: int = 0
    rates: Rates = field(default_factory=lambda: Rates(_MEMORY))
    said: ModelDraft | None = None
    said_at: int = 0


class Learned:
    """Rates of the drafts of all sequences, which count for one sequence while little is known of it."""

    def __init__(self) -> None:
        self._shared = Rates(_SHARED_MEMORY)
        self._priors = list(_FIRST_RATES)

    def next_of_lookup(self, drafts: Drafts) -> float:
        """Rate at which the next token that its run has may come."""
        kind = min(drafts.index.length, _LONGEST)
        return drafts.rates.of_kind(kind, self._priors[kind])

    def of_lookup(self, drafts: Drafts) -> list[float]:
        """Rates at which the next tokens that its run has may come, one after the other."""
        return drafts.rates.of_kinds(min(drafts.index.length, _LONGEST), _LONGEST + 1, self._priors)

    def of_model(self, drafts: Drafts) -> float:
        """Rate at which any token that a draft model may say next comes."""
        return drafts.rates.of_kind(_OF_MODEL, self._priors[_OF_MODEL])

    def by_margin(self, drafts: Drafts) -> list[float]:
        """Rates at which tokens that a draft model has said come, by their margin."""
        return drafts.rates.of_kinds(_FIRST_MARGIN, _KINDS, self._priors)

    def looked_up(self, drafts: Drafts, length: int, *, is_accepted: bool) -> None:
        """Count a token that was looked up, as accepted or rejected.

        Args:
            length: how many tokens before it agreed with what was followed.
        """
        self._observe(drafts, min(length, _LONGEST), is_accepted)

    def said(self, drafts: Drafts, margin: float, *, is_accepted: bool) -> None:
        """Count a draft model's token, as accepted or rejected."""
        self._observe(drafts, _OF_MODEL, is_accepted)
        self._observe(drafts, _FIRST_MARGIN + bisect_right(_MARGINS, margin), is_accepted)

    def _observe(self, drafts: Drafts, kind: int, is_accepted: bool) -> None:
        drafts.rates.observe(kind, is_accepted)
        self._shared.observe(kind, is_accepted)
        self._priors[kind] = self._shared.of_kind(kind, _FIRST_RATES[kind])


class Course:
    """Expected gain of a draft model's draft, token by token.

    Args:
        rates: by margin. next_rate: of any token.
        least: tokens that a row has to give. draft: those that have to come for drafting one.
    """

    def __init__(self, rates: Several[float], next_rate: float, *, least: float, draft: float) -> None:
        self._rates = rates
        self._next_rate = next_rate
        self._least = least
        self._draft = draft
        self._gain = 1.0

    def is_worth_a_row(self, margin: float) -> bool:
        """True if the next token, which has this margin, is worth a row."""
        self._gain *= self._rates[bisect_right(_MARGINS, margin)]
        return self._gain >= self._least

    @property
    def goes_on(self) -> bool:
        """True if another token is worth drafting."""
        return self._gain * self._next_rate >= self._least + self._draft


class Tries:
    """Trials of drafts that do not seem worth their time.

    What is known may have become wrong. Tries are the rarer, the more of them changed nothing.
    """

    TOKENS = 3
    _SOONEST = 16
    _LATEST = 1024

    def __init__(self) -> None:
        self._every = self._SOONEST
        self._steps = 0

    def is_due(self) -> bool:
        """A step has no draft that seems worth its time: whether it tries one all the same.

        It stays due until it was `made`: what drafts may not be ready.
        """
        self._steps += 1
        return self._steps >= self._every

    def made(self) -> None:
        """A draft was tried."""
        self._steps = 0
        self._every = min(2 * self._every, self._LATEST)

    def paid(self) -> None:
        """A draft is worth its time."""
        self._steps, self._every = 0, self._SOONEST


@dataclass(slots=True)
class Candidate:
    """A sequence that may draft.

    Attributes:
        rates: at which its drafted tokens are expected to be accepted, one after the other, each in (0, 1);
            the last one holds for all after it.
        most: tokens that it may draft.
        draft_s: seconds that drafting a token takes.
        tokens: that it would draft; empty if they are still to be asked for.
    """

    rates: Several[float]
    most: int
    draft_s: float = 0.0
    tokens: Several[int] = ()


@dataclass(slots=True)
class Row:
    """A token that may be drafted.

    Attributes:
        gain: tokens that it is expected to give, in (0, 1).
        draft_s: as its candidate's, which is at index `of`.
    """

    gain: float
    draft_s: float
    of: int


def rows_of(candidates: Several[Candidate]) -> Iterator[Row]:
    """Rows, the one that gives most first.

    A row of a sequence never comes before the one that it follows: it gives less.
    """
    heap = [(-candidate.rates[0], i, 1) for i, candidate in enumerate(candidates)]
    heapq.heapify(heap)
    while heap:
        loss, i, n = heap[0]
        candidate = candidates[i]
        yield Row(-loss, candidate.draft_s, i)
        if n < candidate.most:
            heapq.heapreplace(heap, (loss * candidate.rates[min(n, len(candidate.rates) - 1)], i, n + 1))
        else:
            heapq.heappop(heap)
