"""Comparison of restoring a prefix with computing it again, by what both took before (pure).

An average whose trials stop does not learn any more. So each time restoring is refused, what it is thought to
cost falls a little, until it is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

_SMOOTHING = 0.2
# An estimate that keeps a tier from being used falls by this part at each refusal.
_DOUBT = 0.02


class Tier(Enum):
    """Tier that keeps state outside the KV cache."""

    HOST = "host"
    DISK = "disk"


class Rate:
    """Seconds per unit: an average over recent observations; 0 before the first."""

    def __init__(self) -> None:
        self.seconds_per_unit = 0.0
        self._is_known = False

    def observe(self, units: int, seconds: float) -> None:
        if units <= 0:
            return
        seen = seconds / units
        self.seconds_per_unit += (_SMOOTHING if self._is_known else 1.0) * (seen - self.seconds_per_unit)
        self._is_known = True

    def doubt(self) -> None:
        """Think it a little faster than was seen."""
        self.seconds_per_unit *= 1.0 - _DOUBT


class Rates:
    """Speeds of this engine.

    Attributes:
        prefill: per token.
        copy_out, copy_in: per byte, between KV cache and host memory.
        read: per byte, from disk to host memory, checked.
    """

    def __init__(self) -> None:
        self.prefill = Rate()
        self.copy_out = Rate()
        self.copy_in = Rate()
        self.read = Rate()

    def restore_s(self, read_bytes: int, used_bytes: int) -> float:
        """Seconds to read these bytes from disk, and then to copy `used_bytes` in."""
        return read_bytes * self.read.seconds_per_unit + used_bytes * self.copy_in.seconds_per_unit

    def copied_within(self, seconds: float, tokens: int, n_bytes: int) -> int:
        """Number of the `tokens`, whose state is `n_bytes`, that are copied out within `seconds`."""
        copy_s = n_bytes * self.copy_out.seconds_per_unit
        return tokens if copy_s <= seconds else int(tokens * seconds / copy_s)

    def prefill_s(self, tokens: int) -> float:
        return tokens * self.prefill.seconds_per_unit

    def gain_s(self, read_bytes: int, used_bytes: int, tokens: int) -> float:
        """Seconds by which `tokens` are restored sooner than prefilled; negative: later.

        Args:
            read_bytes: of files that are read before that, its own among them: each is read whole.
            used_bytes: of its state that are copied in.
        """
        return self.prefill_s(tokens) - self.restore_s(read_bytes, used_bytes)

    def refused(self, read_bytes: int, used_bytes: int, tokens: int) -> None:
        """A prompt is computed although it was kept, since that is faster. What decided that is doubted."""
        copy_s = self.restore_s(0, used_bytes)
        if read_bytes and copy_s < self.prefill_s(tokens):
            self.read.doubt()
        else:
            self.copy_in.doubt()

    def is_worth_keeping(self, n_bytes: int, tokens: int) -> bool:
        """True if copying a state out and in again takes less time than to prefill its tokens."""
        copies_s = n_bytes * (self.copy_out.seconds_per_unit + self.copy_in.seconds_per_unit)
        if copies_s < self.prefill_s(tokens):
            return True
        self.copy_out.doubt()
        self.copy_in.doubt()
        return False


@dataclass(slots=True)
class Counts:
    """Counts of what happened since the last look, by tier."""

    hits: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(Tier, 0))
    evictions: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(Tier, 0))
