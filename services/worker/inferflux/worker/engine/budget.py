"""How many prompt tokens a step may carry while others decode.

Every running stream waits for the whole step, so the prompt part of a step is what a long prompt
adds to everyone's gap between tokens. The budget keeps that gap within `stretch` times a step
that only decodes, from times measured on the way: on a CPU that is a handful of tokens, on a GPU
hundreds, where they are nearly free. Where prompts are computed apart, the gap is a step of theirs and one
of the streams.

Some things bend that rule. When many wait for their first token and few for their next, steps stretch
in proportion: small steps waste the fixed part of each, and the few would make the many wait. A gap that
nobody notices may be as long as that, however fast the streams are. A long prompt makes hundreds of gaps, and
what its streams see is the longest of them: it aims lower. And since nothing can be taken up or cancelled
within a step, none should be long: where nothing decodes, prompts are cut by time alone.
"""

from __future__ import annotations

_SMOOTHING = 0.2
_SMALLEST_CHUNK = 8
_OUTLIER = 3.0
# Up to one waiting prompt for this many streams is the ordinary share; more stretch steps in proportion.
_STREAMS_PER_PROMPT = 4
# A stream that pauses for so long still looks as if it ran.
_UNNOTICED_S = 0.015
# A long prompt's steps aim at this part of the stretch.
_LASTING = 1 / 2


class StepBudget:
    """Prompt tokens per step, adapted to measured times.

    Args:
        batch_tokens: most tokens of any step.
        stretch: prompts may make a stream wait this many times as long as a decode-only step.
        limit_s: a step should take at most this long.
    """

    def __init__(self, batch_tokens: int, stretch: float, limit_s: float) -> None:
        self._batch_tokens = batch_tokens
        self._stretch = stretch
        self._limit_s = limit_s
        self._decode_s: dict[int, float] = {}
        self._together = StepTime()
        self._apart = StepTime()

    def beside(self, n_decoding: int, n_waiting: int = 1, *, is_lasting: bool = False) -> int:
        """Prompt tokens of a step that also holds a token of `n_decoding` sequences.

        Args:
            n_waiting: sequences whose prompt is not finished.
            is_lasting: whether the first of these prompts takes many steps.
        """
        target_s = self._target_s(n_decoding, n_waiting, is_lasting)
        wanted = self._together.tokens_within(target_s) - n_decoding
        return self._within_bounds(wanted, self._batch_tokens - n_decoding)

    def apart(self, n_decoding: int, n_waiting: int = 1, *, is_lasting: bool = False) -> int:
        """Prompt tokens of a step apart, between two steps of `n_decoding` sequences.

        Args:
            n_waiting, is_lasting: as for `beside`.
        """
        target_s = self._target_s(n_decoding, n_waiting, is_lasting)
        if n_decoding:
            target_s -= self._decode_time(n_decoding)
        return self._within_bounds(self._apart.tokens_within(target_s), self._batch_tokens)

    @staticmethod
    def _within_bounds(wanted: int, room: int) -> int:
        return max(1, min(max(wanted, _SMALLEST_CHUNK), room))

    def observe(self, n_prefill: int, n_decoding: int, seconds: float, *, is_apart: bool = False) -> None:
        """Learn from a finished step."""
        if is_apart:
            self._apart.observe(n_prefill, seconds)
        elif n_prefill + n_decoding > 1:  # a single token takes another path
            self._together.observe(n_prefill + n_decoding, seconds)
        if n_prefill == 0:
            known = self._decode_s.get(n_decoding, seconds)
            calm = min(seconds, known * _OUTLIER)
            self._decode_s[n_decoding] = known + _SMOOTHING * (calm - known)

    def _target_s(self, n_decoding: int, n_waiting: int, is_lasting: bool) -> float:
        if n_decoding == 0:
            return self._limit_s
        crowding = max(1.0, n_waiting * _STREAMS_PER_PROMPT / n_decoding)
        most = max(self._stretch * _LASTING, 1.0) if is_lasting else self._stretch
        stretch = 1.0 + (most - 1.0) * crowding
        return min(max(stretch * self._decode_time(n_decoding), _UNNOTICED_S), self._limit_s)

    def _decode_time(self, n_decoding: int) -> float:
        """Seconds of a decode-only step of `n_decoding` sequences: measured, or as other sizes suggest."""
        known = self._decode_s.get(n_decoding)
        if known is not None:
            return known
        if n_decoding > 1 and self._together.is_known:
            return self._together.seconds_of(n_decoding)
        return min(self._decode_s.values(), default=self._limit_s / self._stretch)


class StepTime:
    """Seconds of a step as a straight line over its tokens, fitted to recent steps by least squares.

    Older steps count less and less (by 3 % a step): a deeper context makes tokens dearer. A step that took
    several times what was expected says that the machine was busy, not what a token costs.
    """

    _MEMORY = 0.97

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def is_known(self) -> bool:
        return self._weight > 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        if self.is_known:
            seconds = min(seconds, self.seconds_of(tokens) * _OUTLIER)
        keep = self._MEMORY
        self._weight = self._weight * keep + 1.0
        self._x = self._x * keep + tokens
        self._y = self._y * keep + seconds
        self._xx = self._xx * keep + tokens * tokens
        self._xy = self._xy * keep + tokens * seconds

    def seconds_of(self, tokens: int) -> float:
        fixed, per_token = self._line()
        return fixed + per_token * tokens

    def tokens_within(self, seconds: float) -> int:
        """Tokens of a step that takes `seconds`; without bound where tokens cost nothing."""
        fixed, per_token = self._line()
        return int(min(max(seconds - fixed, 0.0) / max(per_token, 1e-9), 1e9))

    def _line(self) -> tuple[float, float]:
        """(seconds of a step of no tokens, seconds per token), neither below zero."""
        if not self.is_known:
            return 0.0, 0.0
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x * mean_x
        if spread < 1.0:
            return 0.0, mean_y / mean_x
        per_token = max((self._xy / self._weight - mean_x * mean_y) / spread, 0.0)
        fixed = mean_y - per_token * mean_x
        return (fixed, per_token) if fixed >= 0.0 else (0.0, mean_y / mean_x)
