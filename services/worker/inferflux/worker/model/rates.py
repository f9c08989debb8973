"""How fast an engine prefills and decodes (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from inferflux.v1 import engine_pb2

_SMOOTHING = 0.1


@dataclass(slots=True)
class Rates:
    """Tokens per second, smoothed over the engine's steps; 0 before the first such step."""

    prefill: float = 0.0
    decode: float = 0.0

    def observe(self, stats: engine_pb2.StepStats) -> None:
        """Take a step into account, unless it was a mixed batch."""
        seconds = max(stats.step_us, 1) / 1e6
        if stats.prefill_tokens and not stats.decode_tokens:
            self.prefill = _smoothed(self.prefill, stats.prefill_tokens / seconds)
        elif stats.decode_tokens and not stats.prefill_tokens:
            self.decode = _smoothed(self.decode, stats.decode_tokens / seconds)


def _smoothed(old: float, new: float) -> float:
    return new if old == 0.0 else old + _SMOOTHING * (new - old)
