"""How the servers under load choose their tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """Greedy with temperature 0; otherwise top-k, then top-p, then the temperature.

    Attributes:
        top_k: 0 keeps all tokens.
        top_p: 1 keeps all tokens.
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


GREEDY = Sampling()
