"""Filters that few requests ask for: the tokens of a row that may be drawn, and the temperature.

Each takes the logits of the tokens that are left, of shape (tokens,), finite and in any order, and returns
the places of those that stay. They are those of llama.cpp (`llama-sampler.cpp`). `filter_rows` has them for
many rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferflux.v1 import generation_pb2

Logits = NDArray[np.float32]
Places = NDArray[np.int64]

# No two tokens are more likely than this, so XTC has nothing to drop.
_MOST_XTC_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters that a request asks for.

    Attributes:
        n_sigma: 0: all tokens stay.
        typical_p: 1: all tokens stay.
        xtc_probability: 0: it is never applied.
        temperature_range: 0: the temperature is constant.
    """

    n_sigma: float
    typical_p: float
    xtc_probability: float
    xtc_threshold: float
    temperature: float
    temperature_range: float
    temperature_exponent: float

    @classmethod
    def of(cls, params: generation_pb2.SamplingParams) -> Filters | None:
        """None where none is on."""
        has_xtc = params.xtc_probability > 0.0 and params.xtc_threshold <= _MOST_XTC_THRESHOLD
        made = cls(
            n_sigma=max(params.top_n_sigma, 0.0),
            typical_p=params.typical_p if params.HasField("typical_p") else 1.0,
            xtc_probability=params.xtc_probability if has_xtc else 0.0,
            xtc_threshold=params.xtc_threshold,
            temperature=params.temperature,
            temperature_range=max(params.dynatemp_range, 0.0),
            temperature_exponent=params.dynatemp_exponent if params.HasField("dynatemp_exponent") else 1.0,
        )
        is_on = made.n_sigma or made.typical_p < 1.0 or made.xtc_probability or made.temperature_range
        return made if is_on else None

    @property
    def coldest(self) -> float:
        return max(self.temperature - self.temperature_range, 0.0)

    @property
    def warmest(self) -> float:
        return self.temperature + self.temperature_range


def sigma_bound(logits: Logits, n_sigma: float) -> np.float32:
    """Top-n-sigma's: the tokens of a whole row stay whose logits are not less."""
    finite = logits if logits.min() > -np.inf else logits[logits > -np.inf]
    return np.float32(finite.max() - n_sigma * finite.std())


def typical(logits: Logits, p: float) -> Places:
    """The tokens whose information is nearest to the entropy, until their probability exceeds p."""
    probabilities, log_probabilities = _softmax(logits)
    entropy = -(probabilities * log_probabilities).sum()
    order = np.argsort(np.abs(log_probabilities + entropy), kind="stable")
    n = int(np.searchsorted(np.cumsum(probabilities[order]), p, side="right")) + 1
    return np.sort(order[:n])


def without_top_choices(logits: Logits, threshold: float) -> Places:
    """XTC's ("exclude top choices"): of the tokens whose probability reaches the threshold, the least likely
    stays alone."""
    probabilities, _ = _softmax(logits)
    is_top = probabilities >= threshold
    tops = np.flatnonzero(is_top)
    if tops.shape[0] > 1:
        descending = tops[np.argsort(-logits[tops], kind="stable")]
        is_top[descending[-1]] = False
        return np.flatnonzero(~is_top)
    return np.arange(logits.shape[0])


def dynamic_temperature(logits: Logits, filters: Filters) -> float:
    """The temperature of these tokens: the higher, the nearer their entropy is to the largest possible."""
    n = logits.shape[0]
    if not filters.temperature_range or n == 1:
        return filters.temperature
    probabilities, log_probabilities = _softmax(logits)
    entropy = -(probabilities * log_probabilities).sum()
    part = min(max(entropy / math.log(n), 0.0), 1.0)
    return float(filters.coldest + (filters.warmest - filters.coldest) * part**filters.temperature_exponent)


def _softmax(logits: Logits) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(probabilities, their logarithms)."""
    below = logits.astype(np.float64) - logits.max()
    weights = np.exp(below)
    total = weights.sum()
    return weights / total, below - math.log(total)
