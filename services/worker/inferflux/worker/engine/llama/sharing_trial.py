"""Finds out what of a sequence another one can begin with, by having a model's context do it.

llama.cpp has several kinds of memory, and no question to ask them. So logits decide: those after what was
shared have to be those after what was computed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferflux.worker.engine.kv.prefix_sharing import PrefixSharing, Sharing

from .context import Context, DecodeError
from .pinned_state import UnknownLayout, first_positions
from .trial import TRIAL_ROWS, Deviation, deviation

_NO_CELLS = "the model keeps a state, not a cell for each token: sequences are shared as a whole"
_WINDOW = "the model's attention has a sliding window of {} tokens: cells beyond it are reused"
_NOTHING = "the model's memory cannot share a sequence"


def find_sharing(context: Context, tokens: NDArray[np.int32], window: int) -> PrefixSharing:
    """Find the prefix sharing that the memory of an empty context allows; it is empty again afterwards.

    Args:
        context: of two sequence ids at least, its cells being those of all sequences.
        tokens: of `trial_tokens`.
        window: tokens that a layer with a sliding window attends to; 0: no layer has one.
    """
    trial = _Trial(context, tokens[: min(context.batch_tokens, context.cells // 2)])
    try:
        if trial.shares_a_part():
            if window:
                return PrefixSharing(Sharing.WINDOW, _WINDOW.format(window), window)
            return PrefixSharing(Sharing.FULL)
        context.clear()
        if trial.shares_a_whole():
            return PrefixSharing(Sharing.CHECKPOINTS, _NO_CELLS)
    except DecodeError:
        pass
    finally:
        context.clear()
    return PrefixSharing(Sharing.NONE, _NOTHING)


def can_cut_states(context: Context, tokens: NDArray[np.int32]) -> bool:
    """True if the first positions of a state can be restored alone. The context is empty before and after."""
    context.decode_tokens(tokens[:2], seq_id=0, position=0)
    state = np.empty(context.state_size(0), np.uint8)
    try:
        return context.copy_out(0, state) and first_positions(state, 1).size > 0
    except UnknownLayout:
        return False
    finally:
        context.clear()


class _Trial:
    """Compares logits after what is shared with those of a sequence that computed all, in steps of the same
    sizes, its cells lying among those of the other. Rounding is what sizes and places change."""

    def __init__(self, context: Context, tokens: NDArray[np.int32]) -> None:
        self._context = context
        self._tokens = tokens

    def shares_a_part(self) -> bool:
        """Return whether sequence 1 can go on after the first half of sequence 0, which is cut.

        Where it cannot be cut, nothing is shared: some memory ends the process if it is asked for a part.
        """
        context, n = self._context, self._tokens.shape[0]
        half = n // 2
        in_steps, rounding = self._computed(half)
        if not context.cut(0, n - 1):
            return False
        context.share(0, 1, half)
        if context.positions(0) != (0, n - 2) or context.positions(1) != (0, half - 1):
            return False
        seen = self._decode(1, half, n, half)
        return deviation(seen, in_steps).is_rounding(rounding)

    def shares_a_whole(self) -> bool:
        """Return whether sequence 1 can go on after all of sequence 0, and 0 then as well. Empty before."""
        context, tokens = self._context, self._tokens
        n = tokens.shape[0]
        last = n - 1
        in_steps, rounding = self._computed(last)
        context.forget(0)
        self._decode(0, 0, last, last)
        context.share_whole(0, 1)
        if context.positions(1)[1] != last - 1:
            return False
        # With another token first: what it changes must not be seen by the other sequence.
        context.decode_tokens(np.roll(tokens, 1)[last:], seq_id=1, position=last)
        if not deviation(self._decode(0, last, n, last), in_steps).is_rounding(rounding):
            return False
        context.forget(1)
        context.forget(0)
        self._decode(0, 0, last, last)
        context.share_whole(0, 1)
        return deviation(self._decode(1, last, n, last), in_steps).is_rounding(rounding)

    def _computed(self, cut: int) -> tuple[NDArray[np.float32], Deviation]:
        """(the logits by sequence 1, which computes the tokens before `cut` and then the others, how far they
        are from those computed at once). Sequence 0 has computed all as well then, and 1 is forgotten."""
        n = self._tokens.shape[0]
        at_once = self._decode(0, 0, n, cut)
        self._context.forget(0)
        for seq_id in (0, 1):
            self._decode(seq_id, 0, cut, cut)
        in_steps = [self._decode(seq_id, cut, n, cut) for seq_id in (0, 1)][1]
        self._context.forget(1)
        return in_steps, deviation(at_once, in_steps)

    def _decode(self, seq_id: int, first: int, end: int, cut: int) -> NDArray[np.float32]:
        """Compute these tokens; the logits of the last few, none of them before `cut`."""
        n = self._tokens.shape[0]
        rows = min(n - cut, TRIAL_ROWS, self._context.rows) if end == n else 1
        tokens = self._tokens[first:end]
        return self._context.decode_tokens(tokens, seq_id=seq_id, position=first, rows=rows).copy()
