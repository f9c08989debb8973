"""Budget of the prompt tokens that a step may carry while others decode.

Every decode waits for the whole step, so a step's prompt tokens lengthen its inter-token latency (ITL). Two
ideas bound that: a cost line, seconds over tokens, fitted to measured steps; and a longest step,
`max_itl_factor` times a step of decodes alone, or `limit_s` if that is less. On a CPU that is a handful of
tokens, on a GPU hundreds, where they are nearly free. With a prefill context, the gap is one of its steps and
one of the decodes.

Three constants bend the limit; docs/decisions/step-budget.md has a worker without each. Under
queue pressure, when many prefills wait and few sequences decode, the limit rises in proportion: small steps
waste the fixed part of each. A step below the ITL floor is not cut further. A long prompt makes hundreds of
gaps and decodes see the longest of them, so its steps aim lower. Nothing can be taken up or cancelled within
a step, so none should be long: where nothing decodes, `limit_s` alone cuts prefills. A step that the engine
gives up for what cannot wait may be longer: the more rows, the less the threads wait for each other.

A step that verifies drafts has rows beside those of its sequences, and gives more tokens. What steps take by
their rows (`RowTimes`) says how many are worth their time: as many as give the most tokens per second. Where
many decode, a row adds nearly as much time as one of theirs, so only what is nearly certain is drafted.

The fixed part of a step grows where cores are busy: the engine's threads wait for each other, however few
tokens there are. It may then exceed `limit_s` alone, and no chunk keeps that limit. So `limit_s` never cuts a
step to less than twice its fixed part: half of a step's time goes into tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .row_times import RowTimes
from .speculation import MOST_DRAFTED, MOST_ROWS, Row

_SMOOTHING = 0.2
_SMALLEST_CHUNK = 8
_OUTLIER = 3.0
# No step takes less.
_SHORTEST_S = 1e-6
# Sizes of steps are alike while their variance is below this, in tokens squared.
_ALIKE = float(_SMALLEST_CHUNK**2)
# A token costs at most this many times what the fastest recent step took per token, its fixed part included.
_SLACK = 2.0
# Queue pressure begins where there is more than one waiting prefill for this many decodes.
DECODES_PER_PREFILL = 4
# The ITL floor: shorter gaps, in seconds, are not noticed.
ITL_FLOOR_S = 0.015
# A long prompt's steps aim at this part of the factor.
LONG_PROMPT_PART = 1 / 2
# `limit_s` cuts no step to less than this many times its fixed part.
FIXED_PARTS = 2
# The best number of drafted rows is not looked for beyond this many that make a step no better: times of rows
# go up in stairs.
_ROWS_LOOKED_AHEAD = 4
# Drafts are to give this many times the tokens per second of a step without: finding them takes time as well.
_DRAFTS_WORTH = 1.05
# A step that can be given up aims at this many times `limit_s`.
LONG_STEP = 5


@dataclass(frozen=True, slots=True)
class Worth:
    """Drafted rows that are worth their time.

    Attributes:
        gain: tokens per second of a step with them, divided by those of one without any.
        tokens_s: those tokens per second.
        least: tokens that a row has to give.
    """

    rows: list[Row]
    gain: float
    tokens_s: float
    least: float


NOTHING = Worth([], 1.0, 0.0, 0.0)


class StepBudget:
    """Prompt tokens per step, adapted to measured times.

    Args:
        batch_tokens: most tokens of any step.
        max_itl_factor: prefills may lengthen a decode's ITL to this many times a step of decodes alone.
        limit_s: a step should take at most this long.
        long_step_tokens: most tokens of a step in the prefill context that can be given up.
        long_mixed_tokens: the same of one in the main context.
    """

    def __init__(
        self,
        batch_tokens: int,
        max_itl_factor: float,
        limit_s: float,
        long_step_tokens: int = 0,
        long_mixed_tokens: int = 0,
    ) -> None:
        self._batch_tokens = batch_tokens
        self._max_itl_factor = max_itl_factor
        self._limit_s = limit_s
        self._long_step_tokens = long_step_tokens
        self._long_mixed_tokens = long_mixed_tokens
        self._decode_s: dict[int, float] = {}
        self._mixed = StepTime()
        self._prefill = StepTime()
        self._rows = RowTimes(MOST_ROWS)

    @property
    def most_tokens(self) -> int:
        """Largest number of tokens in any step."""
        return max(self._batch_tokens, self._long_step_tokens, self._long_mixed_tokens)

    def mixed(self, n_decoding: int, n_waiting: int = 1, *, is_long: bool = False) -> int:
        """Prompt tokens of a mixed batch, which also holds a token of `n_decoding` sequences.

        Args:
            n_waiting: sequences whose prompt is not finished.
            is_long: whether the first of these prompts is long.
        """
        target_s = self._target_s(n_decoding, n_waiting, is_long, self._mixed.fixed_s)
        wanted = self._mixed.tokens_within(target_s) - n_decoding
        return self._within_bounds(wanted, self._batch_tokens - n_decoding)

    def in_prefill_context(self, n_decoding: int, n_waiting: int = 1, *, is_long: bool = False) -> int:
        """Prompt tokens of a step in the prefill context, between two steps of `n_decoding` sequences.

        Args:
            n_waiting, is_long: as for `mixed`.
        """
        target_s = self._target_s(n_decoding, n_waiting, is_long, self._prefill.fixed_s)
        if n_decoding:
            target_s -= self._decode_time(n_decoding)
        return self._within_bounds(self._prefill.tokens_within(target_s), self._batch_tokens)

    def copying_s(self, n_decoding: int) -> float:
        """Seconds that copies of KV state may add to a step of `n_decoding` sequences: as prefill may."""
        target_s = self._target_s(n_decoding, 1, is_long=False, fixed_s=0.0)
        return max(target_s - self._decode_time(n_decoding), 0.0) if n_decoding else target_s

    def in_long_step(self) -> int:
        """Prompt tokens of a step in the prefill context that nothing waits for, and that can be given up."""
        return self._long(self._prefill, self._long_step_tokens)

    def in_long_mixed_step(self) -> int:
        """The same in the main context, for a prompt that the prefill context has no room for."""
        return self._long(self._mixed, self._long_mixed_tokens)

    def _long(self, times: StepTime, most: int) -> int:
        return min(times.tokens_within(LONG_STEP * self._target_s(0, 1, False, times.fixed_s)), most)

    def know_rows(self, measured: Mapping[int, float]) -> None:
        """Seconds that steps of some numbers of rows take, as measured at the start."""
        self._rows.know(measured)

    def rows_worth(self, n_decoding: int, rows: Iterable[Row], most: int) -> Worth:
        """The first of these drafted rows, as many as make a step of `n_decoding` sequences give the most
        tokens per second; none, unless that is more than a step without drafts gives.

        It takes no longer than prefill may have it take.

        Args:
            rows: the best first.
            most: of them.
        """
        times = self._rows
        if not times.is_known:
            return NOTHING
        limit_s = self._target_s(n_decoding, 1, is_long=False, fixed_s=0.0)
        chosen: list[Row] = []
        n_best, best = 0, 0.0
        tokens, drafting_s = float(n_decoding), 0.0
        for row in itertools.islice(rows, most):
            chosen.append(row)
            n = len(chosen)
            tokens += row.gain
            drafting_s += row.draft_s
            seconds = times.seconds_of(n_decoding + n) + drafting_s
            if seconds > limit_s:
                break
            rate = tokens / max(seconds, _SHORTEST_S)
            if rate > best:
                n_best, best = n, rate
            elif n - n_best >= _ROWS_LOOKED_AHEAD:
                break
        without = n_decoding / max(times.seconds_of(n_decoding), _SHORTEST_S)
        if best <= _DRAFTS_WORTH * without:
            return NOTHING
        ahead = n_best + _ROWS_LOOKED_AHEAD
        row_s = (times.seconds_of(n_decoding + ahead) - times.seconds_of(n_decoding + 1)) / (ahead - 1)
        return Worth(chosen[:n_best], best / without, best, best * row_s)

    def least_gain(self, n_decoding: int) -> float:
        """Tokens that a drafted row has to be expected to give: with fewer, no number of such rows is worth
        its time."""
        times = self._rows
        if not times.is_known:
            return 1.0
        without_s = max(times.seconds_of(n_decoding), _SHORTEST_S)
        ahead = range(1, MOST_DRAFTED + 1)
        row_s = min((times.seconds_of(n_decoding + n) - without_s) / n for n in ahead)
        return max(row_s, 0.0) * n_decoding / without_s

    def token_s(self, n_decoding: int) -> float:
        """Seconds of a step of `n_decoding` sequences for each of its tokens."""
        return self._decode_time(n_decoding) / n_decoding

    @staticmethod
    def _within_bounds(wanted: int, room: int) -> int:
        return max(1, min(max(wanted, _SMALLEST_CHUNK), room))

    def observe(
        self,
        n_prefill: int,
        n_decoding: int,
        seconds: float,
        *,
        in_prefill_context: bool = False,
        n_drafted: int = 0,
    ) -> None:
        """Learn from a finished step.

        Args:
            seconds: without those that drafting took.
        """
        if not n_prefill:
            self._rows.observe(n_decoding + n_drafted, seconds)
        if n_drafted:
            return
        if in_prefill_context:
            self._prefill.observe(n_prefill, seconds)
        elif n_prefill + n_decoding > 1:  # a single token takes another path
            self._mixed.observe(n_prefill + n_decoding, seconds)
        if n_prefill == 0:
            known = self._decode_s.get(n_decoding, seconds)
            calm = min(seconds, known * _OUTLIER)
            self._decode_s[n_decoding] = known + _SMOOTHING * (calm - known)

    def _target_s(self, n_decoding: int, n_waiting: int, is_long: bool, fixed_s: float) -> float:
        limit_s = max(self._limit_s, FIXED_PARTS * fixed_s)
        if n_decoding == 0:
            return limit_s
        queue_pressure = max(1.0, n_waiting * DECODES_PER_PREFILL / n_decoding)
        most = max(self._max_itl_factor * LONG_PROMPT_PART, 1.0) if is_long else self._max_itl_factor
        factor = 1.0 + (most - 1.0) * queue_pressure
        return min(max(factor * self._decode_time(n_decoding), ITL_FLOOR_S), limit_s)

    def _decode_time(self, n_decoding: int) -> float:
        """Seconds of a decode-only step of `n_decoding` sequences: measured, or as other sizes suggest."""
        known = self._decode_s.get(n_decoding)
        if known is not None:
            return known
        if n_decoding > 1 and self._mixed.is_known:
            return self._mixed.seconds_of(n_decoding)
        return min(self._decode_s.values(), default=self._limit_s / self._max_itl_factor)


class StepTime:
    """Seconds of a step as a straight line over its tokens, fitted to recent steps by least squares.

    Older steps count less and less (by 3 % a step): a deeper context makes tokens dearer. A step that took
    several times what was expected says that the machine was busy, not what a token costs. Two rules keep
    delays that last from being charged to tokens. Sizes that are alike cannot tell the fixed part from the
    tokens: a token then costs what it did. And a token costs little more than the fastest recent step took
    per token.
    """

    _MEMORY = 0.97

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._per_token = 0.0
        # Seconds of a step divided by its tokens: the least of recent steps.
        self._most_per_token = math.inf

    @property
    def is_known(self) -> bool:
        return self._weight > 0.0

    @property
    def fixed_s(self) -> float:
        """Seconds of a step of no tokens."""
        return (self._y - self._per_token * self._x) / self._weight if self.is_known else 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        if self.is_known:
            seconds = min(seconds, self.seconds_of(tokens) * _OUTLIER)
        keep = self._MEMORY
        self._weight = self._weight * keep + 1.0
        self._x = self._x * keep + tokens
        self._y = self._y * keep + seconds
        self._xx = self._xx * keep + tokens * tokens
        self._xy = self._xy * keep + tokens * seconds
        self._most_per_token = min(self._most_per_token / keep, seconds / tokens)
        self._per_token = self._fitted()

    def seconds_of(self, tokens: int) -> float:
        return self.fixed_s + self._per_token * tokens

    def tokens_within(self, seconds: float) -> int:
        """Tokens of a step that takes `seconds`; without bound where tokens cost nothing."""
        return int(min(max(seconds - self.fixed_s, 0.0) / max(self._per_token, 1e-9), 1e9))

    def _fitted(self) -> float:
        """Seconds per token, not below zero and not more than leaves a fixed part of zero."""
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x * mean_x
        if self._weight == 1.0:
            return mean_y / mean_x
        if spread < _ALIKE:
            found = self._per_token
        else:
            found = max((self._xy / self._weight - mean_x * mean_y) / spread, 0.0)
        return min(found, _SLACK * self._most_per_token, mean_y / mean_x)
