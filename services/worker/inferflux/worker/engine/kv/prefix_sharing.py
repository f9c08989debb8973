"""Prefix sharing: the part of a computed sequence that another can begin with, as a model's memory allows
(pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Sharing(Enum):
    """Part of a sequence that another one can begin with."""

    FULL = "full"
    """Any of its first tokens: there is a cell for each of them."""
    WINDOW = "window"
    """Any of its first tokens, while the cells of the attention window before the end of them are kept."""
    CHECKPOINTS = "checkpoints"
    """All of it and nothing less: there is one state, after its last token."""
    NONE = "none"
    """Nothing."""


@dataclass(frozen=True, slots=True)
class PrefixSharing:
    """Prefix sharing that a model's memory allows.

    Attributes:
        kind: see `Sharing`.
        reason: why not any part of a sequence can be shared; empty where it can.
        window: tokens that a layer with a sliding window attends to; 0: there is no such layer.
    """

    kind: Sharing
    reason: str = ""
    window: int = 0

    @property
    def is_divisible(self) -> bool:
        """True if a sequence can be cut, and every part of it can be shared."""
        return self.kind is Sharing.FULL

    def can_begin(self, first: int, last: int, n: int) -> bool:
        """True if a sequence can begin with the first `n` tokens of another.

        Args:
            first, last: positions that the other holds in every layer, by llama.cpp's own view.
        """
        if self.kind is Sharing.FULL or (self.kind is not Sharing.NONE and last + 1 == n):
            return True
        return self.kind is Sharing.WINDOW and last >= n and first <= max(0, n - self.window + 1)


FULL = PrefixSharing(Sharing.FULL)
