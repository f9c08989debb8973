"""Prompts that are computed in a context of their own, and copied from there to the streams' context.

What is copied is in the way of the streams' attention from then on, and bits of it among their own cells
even more so. So it is copied as late as possible, in few large pieces: none takes long, and the last comes
with the prompt's last token.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .context import Context, DecodeError
from .planner import Share
from .state import UnknownLayout, by_cell

# Tokens copied after a step, at most: a few milliseconds' worth of a small model.
_PIECE = 256
_TRIAL_TOKENS = 24
# Logits that differ by less than this part of their spread come from the same state.
_ALIKE = 0.2


@dataclass(slots=True)
class _Held:
    """How much of a sequence is computed here, and how much of that the main context has."""

    computed: int = 0
    copied: int = 0


class PromptContext:
    """A context for prompts beside the main one.

    Args:
        main: takes over what is computed.
        own: computes. Both know the same sequence ids.
    """

    def __init__(self, main: Context, own: Context) -> None:
        self._main = main
        self.context = own
        self._held: dict[int, _Held] = {}

    def close(self) -> None:
        self.context.close()

    def decode(self, shares: Several[Share]) -> NDArray[np.float32]:
        """As `Context.decode`. Of a prompt that is complete the main context then has everything.

        Raises:
            DecodeError: the engine has to start again.
        """
        logits = self.context.decode(shares)
        for share in shares:
            held = self._held.setdefault(share.sequence.seq_id, _Held())
            held.computed += share.n
            left = share.sequence.n_pending - share.n
            self._copy(share.sequence.seq_id, n_due(held.computed - held.copied, left, share.n))
        return logits

    def catch_up(self, seq_id: int) -> None:
        """Have the main context take over all that is computed of `seq_id`, if anything is computed here.

        Raises:
            DecodeError: the engine has to start again.
        """
        held = self._held.get(seq_id)
        if held is not None:
            self._copy(seq_id, held.computed - held.copied)

    def forget(self, seq_id: int) -> None:
        """Free the cells of `seq_id` here."""
        self.context.forget(seq_id)
        self._held.pop(seq_id, None)

    def _copy(self, seq_id: int, n: int) -> None:
        if n == 0:
            return
        held = self._held[seq_id]
        state = self.context.copy_part_out(seq_id, held.copied, held.copied + n)
        try:
            is_taken = state is not None and self._main.append(seq_id, by_cell(state))
        except UnknownLayout:
            is_taken = False
        if not is_taken:
            raise DecodeError("what was computed of a prompt could not be copied to the streams")
        held.copied += n

    def works(self, vocabulary: int) -> bool:
        """Whether the main context goes on after what is computed here as if it had computed that itself.

        Both have to be empty, and are again.
        """
        tokens = np.arange(_TRIAL_TOKENS, dtype=np.int32) % vocabulary
        last = _TRIAL_TOKENS - 1
        self.context.decode_tokens(tokens[:last], seq_id=0, position=0)
        held = self._held[0] = _Held(computed=last)
        try:
            self._copy(0, last // 2)
            self.catch_up(0)
            seen = self._main.decode_tokens(tokens[last:], seq_id=0, position=last).copy()
        except DecodeError:
            return False
        finally:
            self.forget(0)
            self._main.forget(0)
        expected = self._main.decode_tokens(tokens, seq_id=0, position=0)
        self._main.forget(0)
        return held.copied == last and bool(np.abs(seen - expected).max() < _ALIKE * expected.std())


def n_due(waiting: int, left: int, n: int) -> int:
    """How many of the `waiting` tokens to copy now, so that pieces are large and the last is not too large.

    Args:
        waiting: computed and not copied.
        left: of the prompt, still to be computed.
        n: computed in this step; the next ones are taken to be alike.
    """
    steps_left = -(-left // n)
    return max(waiting - _PIECE * steps_left, 0)
