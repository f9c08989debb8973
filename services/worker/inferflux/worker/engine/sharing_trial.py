"""Finds out what of a sequence another one can begin with, by having a model's context do it.

llama.cpp has several kinds of memory, and no question to ask them. So logits decide: those after what was
shared have to be those after what was computed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .context import Context, DecodeError
from .prefix_sharing import PrefixSharing, Sharing
from .state import UnknownLayout, first_positions
from .trial import are_alike, trial_tokens

_NO_CELLS = "the model keeps a state, not a cell for each token: sequences are shared as a whole"
_WINDOW = "the model's attention has a sliding window of {} tokens: cells beyond it are reused"
_NOTHING = "the model's memory cannot share a sequence"


def find_sharing(context: Context, vocabulary: int, window: int) -> PrefixSharing:
    """What the memory of an empty context allows; it is empty again afterwards.

    Args:
        context: of two sequence ids at least, its cells being those of all sequences.
        window: tokens that a layer with a sliding window attends to; 0: no layer has one.
    """
    tokens = trial_tokens(vocabulary)[: min(context.batch_tokens, context.cells // 2)]
    try:
        expected = context.decode_tokens(tokens, seq_id=0, position=0).copy()
        if _shares_a_part(context, tokens, expected):
            if window:
                return PrefixSharing(Sharing.WINDOW, _WINDOW.format(window), window)
            return PrefixSharing(Sharing.FULL)
        context.clear()
        if _shares_a_whole(context, tokens, expected):
            return PrefixSharing(Sharing.CHECKPOINTS, _NO_CELLS)
    except DecodeError:
        pass
    finally:
        context.clear()
    return PrefixSharing(Sharing.NONE, _NOTHING)


def can_cut_states(context: Context, vocabulary: int) -> bool:
    """Whether the first positions of a state can be restored alone. The context is empty before and after."""
    tokens = trial_tokens(vocabulary)[:2]
    context.decode_tokens(tokens, seq_id=0, position=0)
    state = np.empty(context.state_size(0), np.uint8)
    try:
        return context.copy_out(0, state) and first_positions(state, 1).size > 0
    except UnknownLayout:
        return False
    finally:
        context.clear()


def _shares_a_part(context: Context, tokens: NDArray[np.int32], expected: NDArray[np.float32]) -> bool:
    """Whether sequence 1 can go on after the first half of sequence 0, which holds `tokens` and is cut.

    Where it cannot be cut, nothing is shared: some memory ends the process if it is asked for a part.
    """
    n = tokens.shape[0]
    half = n // 2
    if not context.cut(0, n - 1):
        return False
    context.share(0, 1, half)
    if context.positions(0) != (0, n - 2) or context.positions(1) != (0, half - 1):
        return False
    return are_alike(context.decode_tokens(tokens[half:], seq_id=1, position=half), expected)


def _shares_a_whole(context: Context, tokens: NDArray[np.int32], expected: NDArray[np.float32]) -> bool:
    """Whether sequence 1 can go on after all of sequence 0, and that one then as well. It is empty before."""
    last = tokens.shape[0] - 1
    context.decode_tokens(tokens[:last], seq_id=0, position=0)
    context.share_whole(0, 1)
    if context.positions(1)[1] != last - 1:
        return False
    # With another token first: what it changes must not be seen by the other sequence.
    others = np.roll(tokens, 1)[last:]
    context.decode_tokens(others, seq_id=1, position=last)
    if not are_alike(context.decode_tokens(tokens[last:], seq_id=0, position=last), expected):
        return False
    context.forget(1)
    context.forget(0)
    context.decode_tokens(tokens[:last], seq_id=0, position=0)
    context.share_whole(0, 1)
    return are_alike(context.decode_tokens(tokens[last:], seq_id=1, position=last), expected)
