"""Holds back the end of a growing text until it is certain that nothing in it is blocked (pure).

A finding depends on the text alone, never on the pieces in which it comes:

- The text is taken by units (see `normal`), each when the next one has begun.
- A blocked text is found with its last unit; one that is a word with the unit after it.
- Patterns are searched for at fixed places, every `BLOCK` units, in the units since the last place and the
  `window` before. So a match of up to `window` characters lies whole in one search. RE2 is shown what is
  around it.

What is held back: the last unit; before it the longest end of the text that a blocked text begins with; where
there are patterns, also `window` units before the last search and all since.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from .compiled import CompiledRules, Finding, Kind, is_word
from .normal import fold_plain, plain, units

BLOCK: Final = 16
"""Units between two searches for patterns."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Part of a text that may be sent, and the finding behind it.

    Attributes:
        text: continues what was passed before. Nothing of a finding is in it.
        finding: ends the text; None while nothing was found.
    """

    text: str
    finding: Finding | None = None


@dataclass(frozen=True, slots=True, order=True)
class _Hit:
    """Hit: a part of the text that is blocked.

    Attributes:
        seen_at: units that are needed to know of it.
        start: its first unit.
    """

    seen_at: int
    start: int
    finding: Finding


class StreamGuard:
    """One text as it grows. Units are counted from its beginning.

    Args:
        sets: the rules; all of them hold.
    """

    def __init__(self, sets: Sequence[CompiledRules]) -> None:
        self._sets = sets
        self._window = max((each.rules.window for each in sets if each.patterns), default=0)
        self._patterns = [
            (pattern, Finding(Kind.PATTERN, i, each.name))
            for each in sets
            for i, pattern in enumerate(each.patterns)
        ]
        # The last unit: a mark may follow.
        self._open = ""
        # Units that are held back, in their three forms, and how many went before.
        self._raw: list[str] = []
        self._plain: list[str] = []
        self._folded: list[str] = []
        self._n_passed = 0
        # The last character that was passed, plain and folded: it may be part of a word.
        self._before = ("", "")
        # Where patterns were searched for last.
        self._searched = 0
        self._is_ended = False

    def push(self, text: str) -> Passed:
        """Take the next piece; what may be sent now."""
        closed = units(self._open + text)
        self._open = closed.pop() if closed else ""
        return self._judge(closed, is_final=False)

    def finish(self) -> Passed:
        """The text is complete; what may be sent of the rest."""
        closed, self._open = [self._open] if self._open else [], ""
        return self._judge(closed, is_final=True)

    def _judge(self, closed: list[str], *, is_final: bool) -> Passed:
        if self._is_ended:
            return Passed("")
        self._raw += closed
        for unit in closed:
            seen = plain(unit)
            self._plain.append(seen)
            self._folded.append(fold_plain(seen))
        found = (self._blocked(is_final=is_final), self._pattern(is_final=is_final))
        hits = [hit for hit in found if hit is not None]
        if not hits:
            return Passed(self._pass(self._n_units if is_final else self._certain(self._n_units)))
        first = min(hits)
        starts = [hit.start for hit in hits if hit.seen_at == first.seen_at]
        self._is_ended = True
        return Passed(self._pass(min(*starts, self._certain(first.seen_at))), first.finding)

    @property
    def _n_units(self) -> int:
        return self._n_passed + len(self._raw)

    def _pass(self, until: int) -> str:
        """Let go of units up to that one."""
        n = until - self._n_passed
        if n <= 0:
            return ""
        text = "".join(self._raw[:n])
        self._before = (
            "".join(self._plain[:n])[-1:] or self._before[0],
            "".join(self._folded[:n])[-1:] or self._before[1],
        )
        for form in (self._raw, self._plain, self._folded):
            del form[:n]
        self._n_passed = until
        return text

    def _certain(self, n_units: int) -> int:
        """Number of units that are certain once `n_units` are known: nothing undecided begins among them."""
        folded = _Text(self._folded[: n_units - self._n_passed])
        undecided = min((each.undecided(folded.text) for each in self._sets), default=len(folded.text))
        certain = self._n_passed + folded.unit_at(undecided)
        if self._patterns:
            certain = min(certain, _last_search(n_units) - self._window)
        return max(certain, self._n_passed)

    def _blocked(self, *, is_final: bool) -> _Hit | None:
        """The blocked text that is known of first."""
        folded = _Text(self._folded)
        hits = (self._blocked_by(each, folded, is_final=is_final) for each in self._sets)
        return min((hit for hit in hits if hit is not None), default=None)

    def _blocked_by(self, compiled: CompiledRules, folded: _Text, *, is_final: bool) -> _Hit | None:
        best: _Hit | None = None
        for match in compiled.matches(folded.text, self._before[1]):
            last = self._n_passed + folded.unit_at(match.end - 1)
            if best is not None and last + 1 > best.seen_at:
                break
            seen_at = last + 1
            if match.needs_end:
                if match.end == len(folded.text):
                    if not is_final:
                        continue
                elif is_word(folded.text[match.end]):
                    continue
                else:
                    seen_at = self._n_passed + folded.unit_at(match.end) + 1
            start = self._n_passed + folded.unit_at(match.start)
            hit = _Hit(seen_at, start, Finding(Kind.BLOCKED, match.index, compiled.name))
            best = hit if best is None else min(best, hit)
        return best

    def _pattern(self, *, is_final: bool) -> _Hit | None:
        """The first match of a pattern in what was not searched yet."""
        if not self._patterns:
            return None
        for end in self._due(is_final=is_final):
            begin = max(0, self._searched - self._window)
            hit = self._search(begin, end)
            if hit is not None:
                return hit
            self._searched = end
        return None

    def _due(self, *, is_final: bool) -> Iterator[int]:
        """Places to search at: each whose next unit is known, and at last the end."""
        yield from range(self._searched + BLOCK, _last_search(self._n_units) + 1, BLOCK)
        if is_final and self._searched < self._n_units:
            yield self._n_units

    def _search(self, begin: int, end: int) -> _Hit | None:
        first, last = begin - self._n_passed, end - self._n_passed
        within = _Text(self._plain[first:last])
        before = "".join(self._plain[:first])[-1:] or self._before[0]
        around = before + within.text + "".join(self._plain[last : last + 1])
        hits = []
        for pattern, finding in self._patterns:
            found = pattern.search(around, len(before), len(before) + len(within.text))
            if found is not None:
                start = begin + within.unit_at(found.start() - len(before))
                hits.append(_Hit(min(end + 1, self._n_units), start, finding))
        return min(hits, default=None)


def _last_search(n_units: int) -> int:
    """The last place where patterns are searched for when that many units are known."""
    return max(0, n_units - 1) // BLOCK * BLOCK


class _Text:
    """Units as one text, and where each is."""

    def __init__(self, parts: Sequence[str]) -> None:
        self.text = "".join(parts)
        self._n_parts = len(parts)
        self._ends = None if len(self.text) == len(parts) else list(accumulate(map(len, parts)))

    def unit_at(self, character: int) -> int:
        """The unit that has a character; behind the last, how many there are."""
        if character >= len(self.text):
            return self._n_parts
        return character if self._ends is None else bisect_right(self._ends, character)
