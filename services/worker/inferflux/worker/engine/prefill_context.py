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

from .context import Context, DecodeError, IsInterrupted
from .planner import ScheduledTokens
from .state import UnknownLayout, by_cell, by_dimension
from .trial import are_alike, trial_tokens

# Tokens copied after a step, at most: a few milliseconds' worth of a small model.
_PIECE = 256


@dataclass(slots=True)
class _Held:
    """How much of a sequence is computed here, and how much of that the main context has."""

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
        """As `Context.decode`. Of a prefill that is complete the main context then has everything.

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

    def works(self, vocabulary: int) -> bool:
        """Whether each context goes on after what the other computed as if it had computed that itself.

        Both have to be empty, and are again.
        """
        tokens = trial_tokens(vocabulary)
        expected = self._main.decode_tokens(tokens, seq_id=0, position=0).copy()
        self._main.forget(0)
        try:
            seen = [self._trial_to_main(tokens), self._trial_from_main(tokens)]
        except DecodeError:
            return False
        finally:
            self.forget(0)
            self._main.forget(0)
        return all(are_alike(logits, expected) for logits in seen)

    def _trial_to_main(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """The last token's logits by the main context, all others being computed here and copied."""
        last = tokens.shape[0] - 1
        self.context.decode_tokens(tokens[:last], seq_id=0, position=0)
        self._held[0] = _Held(computed=last)
        self._copy(0, last // 2)
        self.catch_up(0)
        logits = self._main.decode_tokens(tokens[last:], seq_id=0, position=last).copy()
        self.forget(0)
        self._main.forget(0)
        return logits

    def _trial_from_main(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """The last token's logits by this context, the first half of the tokens being of the main one."""
        half = tokens.shape[0] // 2
        self._main.decode_tokens(tokens[:half], seq_id=0, position=0)
        self._take_over(0, half)
        return self.context.decode_tokens(tokens[half:], seq_id=0, position=half).copy()


def n_due(waiting: int, left: int, n: int) -> int:
    """How many of the `waiting` tokens to copy now, so that pieces are large and the last is not too large.

    Args:
        waiting: computed and not copied.
        left: of the prompt, still to be computed.
        n: computed in this step; the next ones are taken to be alike.
    """
    steps_left = -(-left // n)
    return max(waiting - _PIECE * steps_left, 0)
