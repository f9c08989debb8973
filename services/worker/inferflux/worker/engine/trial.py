"""Trials at the start: whether a context goes on after shared or copied state as after what it computed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Few enough for any context, and enough for states to differ.
TRIAL_TOKENS = 24
# Logits that differ by less than this part of their spread come from the same state.
_ALIKE = 0.2


def trial_tokens(vocabulary: int) -> NDArray[np.int32]:
    """Token ids of shape (`TRIAL_TOKENS`,)."""
    return np.arange(TRIAL_TOKENS, dtype=np.int32) % vocabulary


def are_alike(logits: NDArray[np.float32], expected: NDArray[np.float32]) -> bool:
    """Whether logits of the same shape come from the same state, computed in batches of other shapes."""
    return bool(np.abs(logits - expected).max() < _ALIKE * expected.std())
