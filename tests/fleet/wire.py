"""When a frame comes out of the switch, if it does (pure)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Quality:
    """What a network does to every frame, in each direction.

    Attributes:
        delay_s: from one host to another.
        jitter_s: each frame takes that much more or less, at most. Frames between two hosts keep their order.
        loss: the part of frames that is lost, 0 to 1.
        reorder: the part that does not wait for those before it, and so may overtake them.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    reorder: float = 0.0

    @property
    def is_perfect(self) -> bool:
        return self == Quality()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Wire:
    """Decides over each frame. The same seed and the same frames: the same fates.

    Attributes:
        quality: of all pairs.
        passed, lost, cut: frames so far.
    """

    def __init__(self, seed: int) -> None:
        self.quality = Quality()
        self.passed = self.lost = self.cut = 0
        self._rng = random.Random(f"{seed}/wire")
        self._cuts: dict[str, frozenset[Pair]] = {}
        self._all_cuts: frozenset[Pair] = frozenset()
        self._last_s: dict[Pair, float] = {}

    @property
    def has_cuts(self) -> bool:
        return bool(self._cuts)

    def cut_off(self, name: str, pairs: Iterable[Pair]) -> None:
        """Let nothing through from the first host of a pair to the second, until the cut is mended."""
        self._cuts[name] = frozenset(pairs)
        self._all_cuts = frozenset().union(*self._cuts.values())

    def mend(self, name: str) -> None:
        """Mend a cut; nothing if there is none of that name."""
        self._cuts.pop(name, None)
        self._all_cuts = frozenset().union(*self._cuts.values())

    def due(self, pair: Pair, now_s: float) -> float | None:
        """When the frame comes out; None: it never does."""
        if pair in self._all_cuts:
            self.cut += 1
            return None
        quality = self.quality
        if quality.is_perfect:
            self.passed += 1
            return now_s
        random_number = self._rng.random
        if quality.loss and random_number() < quality.loss:
            self.lost += 1
            return None
        self.passed += 1
        at_s = now_s + max(0.0, quality.delay_s + (2 * random_number() - 1) * quality.jitter_s)
        if quality.reorder and random_number() < quality.reorder:
            return at_s
        at_s = max(at_s, self._last_s.get(pair, 0.0))
        self._last_s[pair] = at_s
        return at_s
