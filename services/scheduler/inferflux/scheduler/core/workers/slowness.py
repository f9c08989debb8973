"""How many times slower than the fastest worker of its model a worker is (pure).

Workers measure their speed. What they measure depends on use as well: short prompts and few sequences
understate it. So a worker's best counts, which fades slowly, and of prefill, decode and decode for each
sequence the one in which it is closest to the fastest. Ratios below 2 count as none. Those above are rounded
to steps of a quarter, and a worker stays on its step until the ratio is more than a step away.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from inferflux.v1 import scheduler_pb2

# Heartbeats with requests and rates before a worker's speed is known: the first steps of an engine are slow.
_BEATS = 10
# What of its best is left with each further one: half after ten minutes of work.
_FADE = 0.999

_LEAST = 2.0
_STEP = 1.25
# A worker that measures no sense makes others no slower than this.
_MOST = 64.0


@dataclass(slots=True)
class Speed:
    """Tokens per second of one worker, the best of late.

    Attributes:
        decode: of all its sequences together.
        each: decode, for each sequence that runs.
        latest: the three of the last heartbeat.
    """

    prefill: float = 0.0
    decode: float = 0.0
    each: float = 0.0
    beats: int = 0
    latest: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def is_known(self) -> bool:
        return self.beats >= _BEATS

    def observe(self, status: scheduler_pb2.WorkerStatus) -> None:
        """Take in a heartbeat. One without requests or rates tells nothing, and what no second one in a row
        has does not count."""
        prefill, decode = status.prefill_tokens_per_s, status.decode_tokens_per_s
        if status.residents and prefill and decode:
            running = sum(r.residence == scheduler_pb2.RESIDENCE_RUNNING for r in status.residents)
            before, self.latest = self.latest, (prefill, decode, decode / max(running, 1))
            prefill, decode, each = map(min, self.latest, before)
            self.prefill = max(prefill, _FADE * self.prefill)
            self.decode = max(decode, _FADE * self.decode)
            self.each = max(each, _FADE * self.each)
            self.beats += 1


def fastest(speeds: Collection[Speed]) -> Speed | None:
    """The best of each rate among those that are known; None if fewer than two are."""
    known = [speed for speed in speeds if speed.is_known]
    if len(known) < 2:
        return None
    return Speed(*(max(each) for each in zip(*((s.prefill, s.decode, s.each) for s in known), strict=True)))


def slowness_of(speed: Speed, best: Speed | None, now: float) -> float:
    """How many times slower a worker counts as than the fastest one: 1, or 2 and more.

    Args:
        now: what it counts as so far.

    Returns:
        A multiple of a quarter, so that its products with tokens are exact.
    """
    if best is None or not speed.is_known:
        return 1.0
    ratios = best.prefill / speed.prefill, best.decode / speed.decode, best.each / speed.each
    ratio = min(*ratios, _MOST)
    if now > 1.0 and now / _STEP <= ratio <= now * _STEP:
        return now
    if ratio < (_LEAST if now == 1.0 else _LEAST / _STEP):
        return 1.0
    return max(_LEAST, round(4 * _STEP ** round(math.log(ratio, _STEP))) / 4)
