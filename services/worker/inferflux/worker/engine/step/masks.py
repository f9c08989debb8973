"""Masks of tokens over logits: what may not come next is minus infinity while a token is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from inferflux.worker.engine.constraints.constraints import Mask, Masking
from inferflux.worker.engine.plan.planner import ScheduledTokens
from inferflux.worker.engine.sampling.sampling import Logits

from .verification import drafted_tokens

# Of each byte of a mask, the largest logits its eight tokens may have.
_CEILINGS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), np.inf, -np.inf
).astype(np.float32)


@dataclass(frozen=True, slots=True)
class MaskedRow:
    """A row of logits under a constraint.

    Attributes:
        is_read_after: whether its logits are needed once the token is chosen.
        drafted: the token before it, if that was drafted; None: its row is the first one of its constraint.
    """

    row: int
    constraint: Masking
    is_read_after: bool
    drafted: int | None = None


def masked_rows(parts: Iterable[ScheduledTokens]) -> list[MaskedRow]:
    """The rows of a step that have a constraint, of the parts one after the other."""
    found: list[MaskedRow] = []
    row = 0
    for part in parts:
        constraint = part.sequence.answer.masking
        if constraint is not None and part.n_logits:
            is_read_after = part.sequence.sampler.n_logprobs is not None
            before = [None, *drafted_tokens(part)] if part.n_drafted else [None]
            found += [MaskedRow(row + i, constraint, is_read_after, token) for i, token in enumerate(before)]
        row += part.n_logits
    return found


class Masks:
    """Fills and applies the masks of a step's rows, in buffers that are kept."""

    def __init__(self) -> None:
        self._mask: Mask = np.zeros(0, np.int32)
        self._ceilings: Logits = np.empty((0, 8), np.float32)

    @contextmanager
    def applied(self, logits: Logits, rows: Sequence[MaskedRow]) -> Iterator[None]:
        """Meanwhile these rows of `logits`, of shape (rows, vocabulary), are masked.

        Where no token may come next, the row has no finite choice, and the constraint an error. Rows that are
        not read after are left masked: a copy of a row takes as long as its mask.
        """
        if rows and self._mask.shape[0] != -(-logits.shape[1] // 32):
            self._mask = np.zeros(-(-logits.shape[1] // 32), np.int32)
            self._ceilings = np.empty((self._mask.nbytes, 8), np.float32)
        saved = [(of.row, logits[of.row].copy()) for of in rows if of.is_read_after]
        for of in rows:
            if of.drafted is not None:
                of.constraint.look_ahead(of.drafted)
            self._apply(logits[of.row], of.constraint)
        for of in rows:
            if of.drafted is not None:
                of.constraint.look_back()
        yield
        for row, raw in saved:
            logits[row] = raw

    def _apply(self, logits: Logits, constraint: Masking) -> None:
        if not constraint.fill(self._mask):
            logits[:] = -np.inf
            return
        np.take(_CEILINGS, self._mask.view(np.uint8), axis=0, out=self._ceilings, mode="clip")
        np.minimum(logits, self._ceilings.reshape(-1)[: logits.shape[0]], out=logits)
