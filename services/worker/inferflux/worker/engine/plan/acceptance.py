"""Acceptance of the tokens sampled for a sequence: those that are appended, and the reason that ends it
(pure)."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

from inferflux.v1 import generation_pb2

from .answer import PieceSource
from .sequence import Sequence


# Not frozen, as `ScheduledTokens`.
@dataclass(slots=True)
class Accepted:
    """The first of the sampled tokens, as many as the sequence takes.

    Attributes:
        tokens: those that were appended.
        text: that they release.
        finish_reason: what ended the generation; None if it goes on.
        is_timeslice_over: whether the sequence has generated what it may in this run.
    """

    tokens: list[int]
    text: str
    finish_reason: generation_pb2.FinishReason.ValueType | None
    is_timeslice_over: bool


def accept(sequence: Sequence, sampled: Several[int], pieces: PieceSource) -> Accepted:
    """Append `sampled` tokens, which follow each other, until one ends the generation or the timeslice.

    What follows such a token is dropped. It would be sampled again: a draw depends on its index alone.
    """
    answer = sequence.answer
    tokens: list[int] = []
    text = ""
    for token in sampled:
        sequence.append(token)
        tokens.append(token)
        text += answer.push(token, pieces)
        reason = finish_reason(sequence, token)
        is_timeslice_over = reason is None and sequence.generated == sequence.yields_at
        if reason is not None or is_timeslice_over:
            return Accepted(tokens, text, reason, is_timeslice_over)
    return Accepted(tokens, text, None, is_timeslice_over=False)


def finish_reason(sequence: Sequence, token: int) -> generation_pb2.FinishReason.ValueType | None:
    """Finish reason of a generation whose last token is `token`; None if it goes on."""
    answer = sequence.answer
    if answer.text.is_stopped or token in sequence.end_tokens:
        return generation_pb2.FINISH_REASON_STOP
    if answer.constraint is not None and answer.constraint.is_over:
        return generation_pb2.FINISH_REASON_STOP
    if sequence.generated >= sequence.max_tokens:
        return generation_pb2.FINISH_REASON_LENGTH
    return None
