"""How many tokens are drafted for which sequence, by what became of earlier drafts (pure).

A step computes a sequence's last token and a draft of those after it, a row for each. Every row costs time,
and only those before the first rejection give a token. So a row is drafted if the tokens it is expected to
give are worth its time: see `StepBudget.rows_worth`. How often a drafted token is accepted is measured for
each sequence. It begins with what others of the same source had.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, field

from inferflux.v1 import generation_pb2

from .ngram import NgramIndex

OFF = generation_pb2.SPECULATION_OFF
NGRAM = generation_pb2.SPECULATION_NGRAM
DRAFT = generation_pb2.SPECULATION_DRAFT

MOST_ROWS = 63
"""Rows of a step that verifies drafts. llama.cpp's attention computes more rows on a CPU in tiles, and adds
up in another order there."""
MOST_DRAFTED = 24
"""Tokens of one draft."""

# Before anything is known.
_FIRST_RATE = 0.6
# An estimate begins with what others had, as if it was of this many tokens.
_PRIOR_TOKENS = 4.0
# What was seen counts this much less with each draft.
_MEMORY = 0.85
_SHARED_MEMORY = 0.98
# Where no draft was worth its time in this many steps, one is tried all the same: what is known may have
# become wrong.
_TRY_EVERY = 64
_TRY_TOKENS = 2


@dataclass(slots=True)
class Acceptance:
    """How often a drafted token was accepted, if those before it were."""

    tested: float = 0.0
    accepted: float = 0.0

    def rate(self, prior: float) -> float:
        """In (0, 1).

        Args:
            prior: the rate while little is known.
        """
        return (self.accepted + _PRIOR_TOKENS * prior) / (self.tested + _PRIOR_TOKENS)

    def observe(self, drafted: int, accepted: int, memory: float = _MEMORY) -> None:
        """A draft is verified. What follows the first rejected token was not tested."""
        self.tested = self.tested * memory + min(accepted + 1, drafted)
        self.accepted = self.accepted * memory + accepted


@dataclass(slots=True)
class Drafts:
    """What one sequence drafts.

    Attributes:
        source: of its drafts: `NGRAM` or `DRAFT`.
        kind: of its latest draft: drafts of different kinds are not equally good. For `NGRAM`, how many of
            the last tokens had occurred before.
        drafted, accepted: tokens since it came here.
    """

    source: generation_pb2.Speculation.ValueType
    index: NgramIndex = field(default_factory=NgramIndex)
    kind: int = 0
    drafted: int = 0
    accepted: int = 0
    # By kind.
    seen: dict[int, Acceptance] = field(default_factory=dict)

    def acceptance(self, kind: int) -> Acceptance:
        """Of drafts of one kind."""
        found = self.seen.get(kind)
        if found is None:
            found = self.seen[kind] = Acceptance()
        return found


class SharedRates:
    """What drafts of each kind had over all sequences: what a new one begins with."""

    def __init__(self) -> None:
        self._seen: dict[int, Acceptance] = {}

    def rate(self, kind: int) -> float:
        """In (0, 1)."""
        seen = self._seen.get(kind)
        return seen.rate(_FIRST_RATE) if seen else _FIRST_RATE

    def observe(self, kind: int, drafted: int, accepted: int) -> None:
        """A draft of this kind is verified."""
        self._seen.setdefault(kind, Acceptance()).observe(drafted, accepted, _SHARED_MEMORY)


class Tries:
    """When drafts are tried that do not seem worth their time, and when none are looked for.

    Looking for drafts takes time as well, for each sequence. After a step that found none the engine looks
    again the later, the more sequences decode.
    """

    _SEQUENCES_PER_STEP = 4

    def __init__(self) -> None:
        self._fruitless = 0
        self._resting = 0

    def is_resting(self) -> bool:
        """Whether this step looks for none."""
        self._resting = max(self._resting - 1, -1)
        return self._resting >= 0

    def none_found(self, n_decoding: int) -> None:
        """A step with `n_decoding` sequences found no draft, or none that is worth its time."""
        self._resting = n_decoding // self._SEQUENCES_PER_STEP

    def rows(self, worth: int, most: int) -> int:
        """How many rows to draft, where `worth` of `most` seem worth their time."""
        self._fruitless = 0 if worth else self._fruitless + 1
        if self._fruitless < _TRY_EVERY:
            return worth
        self._fruitless = 0
        return min(_TRY_TOKENS, most)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that may draft.

    Attributes:
        rate: at which its drafted tokens are expected to be accepted, in (0, 1).
        most: tokens that it may draft.
        draft_s: seconds that drafting a token takes.
    """

    rate: float
    most: int
    draft_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A token that may be drafted.

    Attributes:
        gain: tokens that it is expected to give, in (0, 1).
        draft_s: as its candidate's, which is at index `of`.
    """

    gain: float
    draft_s: float
    of: int


def rows_of(candidates: Several[Candidate], most: int) -> list[Row]:
    """The `most` rows that give most, the best first.

    A row of a sequence never comes before the one that it follows: it gives less.
    """
    rows = []
    for i, candidate in enumerate(candidates):
        gain = 1.0
        for _ in range(candidate.most):
            gain *= candidate.rate
            rows.append(Row(gain, candidate.draft_s, i))
    rows.sort(key=lambda row: -row.gain)
    return rows[:most]
