"""Where a context has its KV cells, as llama.cpp logs it: no function of its API says (pure)."""

from __future__ import annotations

import re
from collections.abc import Reversible
from dataclasses import dataclass

SWITCH = "LLAMA_KV_CACHE_DEBUG"
"""An environment variable: with it, a context that is made logs a line for every batch."""

# Of llama_kv_cache::find_slot in llama.cpp's src/llama-kv-cache.cpp.
_LINE = re.compile(rb"find_slot: stream\[0\], n = *(\d+), used = *(\d+), .*n_swa = *(\d+)")


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Cells before a batch was placed.

    Attributes:
        width: cells up to the highest filled one: every step goes through all of them.
        used: filled ones.
    """

    width: int = 0
    used: int = 0

    @property
    def holes(self) -> int:
        """Empty cells below a filled one."""
        return self.width - self.used


UNKNOWN = Occupancy()


def latest(lines: Reversible[bytes]) -> Occupancy:
    """What the last of these lines says of the cells that hold every position; `UNKNOWN` if none does.

    A model with sliding windows has a second cache, of the last positions alone.
    """
    for line in reversed(lines):
        match = _LINE.match(line)
        if match and int(match[3]) == 0:
            return Occupancy(int(match[1]), int(match[2]))
    return UNKNOWN
