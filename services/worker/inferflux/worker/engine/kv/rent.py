"""Rent of cached prefixes: the number of cells that are worth what they cost the decodes (pure).

On a CPU each token of a step looks at every used cell of a unified cache, cached ones too. So cached cells
pay rent: time that each step takes longer for them. Hits earn the time that was not spent on prefill, and a
small part of all time is theirs in any case. While a balance is left, prefixes stay until their cells are
needed. Without one, those that were used least leave.
"""

from __future__ import annotations

# Cached prefixes that no request asks for may cost this part of the engine's time.
_FREE_PART = 0.01
# No more than this is saved up, in seconds: what repeats no more must not be paid for long.
_MOST_SAVED_S = 30.0
_SMOOTHING = 0.2
# Half of what is known of steps is older than this many seconds of them: prompts and decodes lie within it.
_HALF_LIFE_S = 1.0
# What a new engine begins with: it has seen no traffic yet.
_FIRST_BALANCE_S = 0.1


class Rent:
    """The balance of cached prefixes, in seconds of the engine.

    Args:
        cell_s: seconds that a used cell costs a token of a step; 0 where it costs nothing.
    """

    def __init__(self, cell_s: float) -> None:
        self._cell_s = cell_s
        self._balance_s = _FIRST_BALANCE_S
        self._token_s = 0.0
        # Of late, older steps counting less.
        self._seconds = self._rows = 0.0

    def step(self, seconds: float, *, rows: int, n_prefill: int, cached_cells: int) -> None:
        """A step is over that took `seconds`, while `cached_cells` held nothing but cached prefixes.

        Args:
            rows: tokens that looked at the cache: those of the prefill context do not.
            n_prefill: tokens of prompts, if the step had no others.
        """
        if n_prefill:
            token_s = seconds / n_prefill
            self._token_s += _SMOOTHING * (token_s - self._token_s) if self._token_s else token_s
        fading = 0.5 ** (seconds / _HALF_LIFE_S)
        self._seconds = fading * self._seconds + seconds
        self._rows = fading * self._rows + rows
        self._earn(_FREE_PART * seconds - rows * cached_cells * self._cell_s)

    def hit(self, tokens: int) -> None:
        """These tokens need no prefill."""
        self._earn(tokens * self._token_s)

    def _earn(self, seconds: float) -> None:
        self._balance_s = min(self._balance_s + seconds, _MOST_SAVED_S)
        # Debts are not saved up either: what leaves now costs nothing from now on.
        self._balance_s = max(self._balance_s, -_FIRST_BALANCE_S)

    def affordable_cells(self) -> int | None:
        """Most cached cells for the next steps, if they are like those of late: None for no bound."""
        rows_s = self._rows * self._cell_s
        if self._balance_s >= 0 or not rows_s:
            return None
        return int(_FREE_PART * self._seconds / rows_s)
