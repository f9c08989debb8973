"""What may come next, by what followed the same tokens before in prompt and answer (pure).

Prompt lookup (Saxena, 2023): an answer that quotes, corrects or goes on with its prompt repeats runs of it.
"""

from __future__ import annotations

import numpy as np

from .envelope import TokenArray

# Tokens of a run that has to occur again. Longer runs are asked for first: they mislead less.
SIZES = (4, 2)
# More new tokens are indexed by numpy.
_FEW = 16


class NgramIndex:
    """Where the runs of one sequence's tokens ended last.

    Tokens are indexed when a draft is asked for, so a sequence for which none is asked costs nothing.
    """

    def __init__(self) -> None:
        # By the bytes of a run: the position after it.
        self._ends: dict[int, dict[bytes, int]] = {size: {} for size in SIZES}
        # Runs that end before this position are indexed.
        self._indexed = 0

    def find(self, tokens: TokenArray) -> tuple[int, int] | None:
        """Where the last tokens occurred before.

        Args:
            tokens: all that the sequence has; only more of them than at the last call.

        Returns:
            (how many of the last tokens occurred there, the position after them); None if they are new.
        """
        self._catch_up(tokens)
        n = tokens.shape[0]
        for size in SIZES:
            end = self._ends[size].get(tokens[n - size :].tobytes()) if n > size else None
            if end is not None:
                return size, end
        return None

    def _catch_up(self, tokens: TokenArray) -> None:
        """Index the runs that have a token after them."""
        last = tokens.shape[0] - 1
        for size, ends in self._ends.items():
            first = max(self._indexed, size)
            if last - first < _FEW:
                for end in range(first, last + 1):
                    ends[tokens[end - size : end].tobytes()] = end
            else:
                runs = np.lib.stride_tricks.sliding_window_view(tokens[first - size : last], size)
                keys = np.ascontiguousarray(runs).view(f"V{size * tokens.itemsize}")[:, 0].tolist()
                ends.update(zip(keys, range(first, last + 1), strict=True))
        self._indexed = last + 1


def continuation(tokens: TokenArray, end: int, n: int) -> TokenArray:
    """The `n` tokens that followed position `end`; where they are fewer, they are taken to repeat."""
    return np.resize(tokens[end:], n)
