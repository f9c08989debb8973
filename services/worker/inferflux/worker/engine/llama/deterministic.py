"""A context whose logits are the same to the last bit, whatever else is computed, and in whatever steps.

With flash attention llama.cpp computes a row on a CPU in one of three ways. A step of one row parts all cells
of the cache among its threads, so the sum depends on how full the cache is. From 64 rows on rows go through
tiles of 64 rows and 64 cells, so it depends on where the cells lie. In between each row goes through its own
cells in their order, and skips all others. So steps here have 2 to 63 rows, and the cells of a sequence lie
in the order of its tokens: new ones come after all others, and what a sequence leaves is closed at once.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np
from numpy.typing import NDArray

from inferflux.worker.engine.plan.planner import ScheduledTokens

from .batch import Run
from .context import Adapter, Context, DecodeError

_PAD = np.zeros(1, np.int32)
# Cells of a row that only makes up the number.
_PAD_CELLS = 1
# Tokens that are tried one by one: requests of others wait meanwhile.
_ALONE = 4


class DeterministicContext:
    """Computes the sequences of requests that ask for the same answer again. Shares nothing with any.

    Args:
        context: with flash attention and one unified cache, its spare sequence id not in use.
    """

    def __init__(self, context: Context, spare_id: int) -> None:
        self._context = context
        self._spare_id = spare_id
        # Cells that each sequence id may fill.
        self._reserved: dict[int, int] = {}
        self._has_holes = False

    def close(self) -> None:
        self._context.close()

    @property
    def flash_attention(self) -> bool:
        """True if it is in use."""
        return self._context.flash_attention

    def admits(self, seq_id: int, cells: int) -> bool:
        """Return whether there is room for all `cells` of a sequence; it is kept for it from then on."""
        if seq_id in self._reserved:
            return True
        if sum(self._reserved.values()) + cells + _PAD_CELLS > self._context.cells:
            return False
        self._reserved[seq_id] = cells
        return True

    def forget(self, seq_id: int) -> None:
        """Free what a sequence id has here."""
        if self._reserved.pop(seq_id, None) is not None:
            self._context.forget(seq_id)
            self._has_holes = True

    def decode(self, parts: Several[ScheduledTokens]) -> NDArray[np.float32]:
        """Decode as `Context.decode` does, of at most as many tokens as `plan_deterministic` plans.

        Raises:
            DecodeError: the engine has to start again.
        """
        self._close_holes()
        if len(parts) == 1 and parts[0].n == 1:
            return self._decode_padded(parts[0])
        return self._context.decode(parts)

    def _close_holes(self) -> None:
        if not self._has_holes:
            return
        if not self._reserved:
            self._context.clear()
        elif not self._context.compact():
            raise DecodeError("the cells of deterministic requests could not be moved")
        self._has_holes = False

    def _decode_padded(self, part: ScheduledTokens) -> NDArray[np.float32]:
        sequence = part.sequence
        at = sequence.position
        logits = self._decode_run(Run(sequence.tokens[at : at + 1], sequence.seq_id, at))
        return logits[: part.n_rows]

    def _decode_run(self, run: Run) -> NDArray[np.float32]:
        """Compute one token, and another one beside it; returns the logits of both."""
        logits = self._context.decode_runs([run, Run(_PAD, self._spare_id, 0)])
        self._context.forget(self._spare_id)
        return logits

    def use_adapter(self, adapter: Adapter | None) -> bool:
        """Apply an adapter as `Context.use_adapter` does."""
        return self._context.use_adapter(adapter)

    def is_using(self, adapter: Adapter) -> bool:
        """True if it computes with this adapter, as `Context.is_using`."""
        return self._context.is_using(adapter)

    def keeps_its_word(self, tokens: NDArray[np.int32]) -> bool:
        """Return whether the last token's logits are the same bits in one step, after tokens one by one,
        beside another sequence, and after holes were closed. Empty before and after.

        Args:
            tokens: more than `_ALONE`, and fewer than half the rows of a step.
        """
        context, n = self._context, tokens.shape[0]
        other = np.roll(tokens, 3)
        at_once = context.decode_tokens(tokens, seq_id=0, position=0).copy()
        context.clear()
        context.decode_tokens(other, seq_id=1, position=0)
        context.decode_tokens(tokens[: n // 2], seq_id=0, position=0)
        context.forget(1)
        found = context.compact()
        context.decode_runs([Run(tokens[n // 2 : -1], 0, n // 2), Run(other, 1, 0)])
        beside = self._decode_run(Run(tokens[-1:], 0, n - 1))[:1].copy()
        context.clear()
        context.decode_tokens(tokens[:-_ALONE], seq_id=0, position=0)
        for i in range(n - _ALONE, n):
            alone = self._decode_run(Run(tokens[i : i + 1], 0, i))[:1]
        is_same = found and np.array_equal(at_once, beside) and np.array_equal(at_once, alone)
        context.clear()
        return is_same
