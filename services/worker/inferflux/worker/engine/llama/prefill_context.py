"""Prefills that are computed in a context of their own, and copied from there to the main context.

Copied cells lengthen every decode's attention from then on. Small pieces scattered among other sequences'
cells cost most. So a prefill is copied as late as possible, in few large pieces: none takes long, and the
last comes with the prefill's last token. What the main context has already, of a shared prefix or from
before, is copied here first.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferflux.worker.engine.plan.planner import ScheduledTokens

from .context import Context, DecodeError, IsInterrupted
from .pinned_state import UnknownLayout, by_cell, by_dimension, first_positions
from .trial import TRIAL_ROWS, deviation

# Tokens copied after a step, at most: a few milliseconds' worth of a small model.
_PIECE = 256


@dataclass(slots=True)
class _Held:
    """Number of a sequence's tokens that are computed here, and of those that the main context has."""

    computed: int = 0
    copied: int = 0


class PrefillContext:
    """A context for prefills beside the main one.

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

    def decode(
        self, parts: Several[ScheduledTokens], is_interrupted: IsInterrupted | None = None
    ) -> NDArray[np.float32]:
        """Decode as `Context.decode` does. Of a prefill that is complete the main context then has
        everything.

        Raises:
            Interrupted: because of `is_interrupted`.
            DecodeError: the engine has to start again.
        """
        for part in parts:
            if part.sequence.seq_id not in self._held:
                self._take_over(part.sequence.seq_id, part.sequence.position)
        logits = self.context.decode(parts, is_interrupted)
        for part in parts:
            held = self._held[part.sequence.seq_id]
            held.computed += part.n
            left = part.sequence.n_pending - part.n
            self._copy(part.sequence.seq_id, n_due(held.computed - held.copied, left, part.n))
        return logits

    def _take_over(self, seq_id: int, position: int) -> None:
        """Go on with a sequence of which the main context has the tokens before `position`."""
        if position:
            state = self._main.copy_part_out(seq_id, 0, position)
            try:
                is_taken = state is not None and self.context.append(seq_id, by_dimension(state))
            except UnknownLayout:
                is_taken = False
            if not is_taken:
                raise DecodeError("what was computed of a prompt could not be copied to the prefill context")
        self._held[seq_id] = _Held(computed=position, copied=position)

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
            raise DecodeError("what was computed of a prompt could not be copied to the main context")
        held.copied += n

    def why_not(self, tokens: NDArray[np.int32]) -> str:
        """Reason why the two contexts do not go on after what the other computed as if they had computed
        that; empty if they do.

        Both have to be empty, and are again. What is copied has to arrive bit by bit. What follows it may
        differ by what the two contexts' kernels differ by when each computes all.

        Args:
            tokens: of `trial_tokens`.
        """
        try:
            expected = self._computed(self._main, tokens)
            rounding = deviation(self._computed(self.context, tokens), expected)
            for trial in (self._trial_to_main, self._trial_from_main):
                logits = trial(tokens)
                if logits is None:
                    return "what is copied between it and the main context does not arrive as it was"
                seen = deviation(logits, expected)
                if not seen.is_rounding(rounding):
                    return (
                        "the main context does not go on after what it computes: logits are turned by "
                        f"{seen.turn:.1e}, by the two kernels alone by {rounding.turn:.1e}"
                    )
        except DecodeError as error:
            return str(error)
        finally:
            self.forget(0)
            self._main.forget(0)
        return ""

    def _computed(self, context: Context, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """The logits of the last tokens by one context alone, which is empty again."""
        logits = context.decode_tokens(tokens, seq_id=0, position=0, rows=self._rows(tokens)).copy()
        context.forget(0)
        return logits

    def _rows(self, tokens: NDArray[np.int32]) -> int:
        return min(TRIAL_ROWS, int(tokens.shape[0]) // 2, self._main.rows, self.context.rows)

    def _trial_to_main(self, tokens: NDArray[np.int32]) -> NDArray[np.float32] | None:
        """The last tokens' logits by the main context, all others being computed here and copied; None if
        they are not there as they are here."""
        n, rows = tokens.shape[0], self._rows(tokens)
        first = n - rows
        self.context.decode_tokens(tokens[:first], seq_id=0, position=0)
        self._held[0] = _Held(computed=first)
        self._copy(0, first // 2)
        self.catch_up(0)
        if not self._holds_the_same(first):
            return None
        logits = self._main.decode_tokens(tokens[first:], seq_id=0, position=first, rows=rows).copy()
        self.forget(0)
        self._main.forget(0)
        return logits

    def _trial_from_main(self, tokens: NDArray[np.int32]) -> NDArray[np.float32] | None:
        """The last tokens' logits by this context, the first half of the tokens being of the main one; None
        if they are not here as they are there."""
        half = tokens.shape[0] // 2
        self._main.decode_tokens(tokens[:half], seq_id=0, position=0)
        self._take_over(0, half)
        if not self._holds_the_same(half):
            return None
        rows = self._rows(tokens)
        return self.context.decode_tokens(tokens[half:], seq_id=0, position=half, rows=rows).copy()

    def _holds_the_same(self, n: int) -> bool:
        """Return whether both contexts hold the same bits of sequence 0 below position `n`, and no more."""
        here, there = (context.copy_part_out(0, 0, n) for context in (self.context, self._main))
        if here is None or there is None:
            return False
        if any(context.positions(0) != (0, n - 1) for context in (self.context, self._main)):
            return False
        try:
            return np.array_equal(first_positions(by_cell(here), n), first_positions(there, n))
        except UnknownLayout:
            return False


def n_due(waiting: int, left: int, n: int) -> int:
    """Number of the `waiting` tokens to copy now, so that pieces are large and the last is not too large.

    Args:
        waiting: computed and not copied.
        left: of the prompt, still to be computed.
        n: computed in this step; the next ones are taken to be alike.
    """
    steps_left = -(-left // n)
    return max(waiting - _PIECE * steps_left, 0)
