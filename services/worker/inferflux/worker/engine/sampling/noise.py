"""Random numbers for drawing tokens: Gumbel noise that is a function of (seed, index, token id) alone.

The token whose logit / temperature + noise is largest is a draw from the softmax of logits / temperature (the
Gumbel-max trick). Logits that differ by rounding then give the same token unless the best two scores are
as close as that: each token keeps its own noise, whatever the others' probabilities are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

States = NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = np.array((30, 27, 31), np.uint64)
_FACTORS = np.array((0xBF58476D1CE4E5B9, 0x94D049BB133111EB), np.uint64)
_BITS = 52
_DROPPED_BITS = np.uint64(64 - _BITS)
_SMALLEST_UNIFORM = 2.0 ** -(_BITS + 1)

RANGE = -math.log(_SMALLEST_UNIFORM) + math.log(-math.log(_SMALLEST_UNIFORM)) + 0.1
"""No two numbers of noise differ by more: 40.5."""


def seed_state(seed: int) -> int:
    """Part of the noise that depends on the seed alone."""
    return int(_splitmix(np.array([seed], np.uint64))[0])


def draw_states(seed_states: Sequence[int], indices: Sequence[int]) -> States:
    """Parts of the noise that depend on (seed, index): one for each pair."""
    return _splitmix(np.array(seed_states, np.uint64) + np.array(indices, np.uint64))


def gumbel(states: States, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """The noise of these token ids; the shapes of both are broadcast."""
    noise = _uniform(states + ids.astype(np.uint64) * _GAMMA)
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)


def uniform(states: States) -> NDArray[np.float64]:
    """A number in (0, 1) for each of these states that the noise of no token is made of."""
    return _uniform(states - _GAMMA)  # as if it were that of the token id -1


def _uniform(states: States) -> NDArray[np.float64]:
    bits = _splitmix(states) >> _DROPPED_BITS
    numbers = bits.astype(np.float64)
    numbers += 0.5  # neither 0 nor 1 once it is scaled
    numbers *= 2.0**-_BITS
    return numbers


def _splitmix(states: States) -> States:
    """SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)."""
    mixed = states + _GAMMA
    shifted = mixed >> _SHIFTS[0]
    mixed ^= shifted
    mixed *= _FACTORS[0]
    np.right_shift(mixed, _SHIFTS[1], out=shifted)
    mixed ^= shifted
    mixed *= _FACTORS[1]
    np.right_shift(mixed, _SHIFTS[2], out=shifted)
    mixed ^= shifted
    return mixed
