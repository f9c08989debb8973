"""Log-probabilities as chunks have them (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inferflux.v1 import tokens_pb2

_REPLACED = "\ufffd"


class PieceTexts(Protocol):
    """The texts of a vocabulary's tokens."""

    def piece(self, token: int) -> bytes: ...

    def piece_text(self, token: int) -> str: ...

    def text(self, token: int) -> str: ...


def fill(
    entry: tokens_pb2.TokenLogprobs,
    token: int,
    logprob: float,
    top: Sequence[tuple[int, float]],
    pieces: PieceTexts,
) -> None:
    """Write a token's logarithm and those of its alternatives.

    Filled in place: messages that are made first and copied in take almost twice as long.
    """
    _fill_one(entry.chosen, token, logprob, pieces)
    for other, of_other in top:
        _fill_one(entry.top.add(), other, of_other, pieces)  # keywords take almost twice as long


def _fill_one(one: tokens_pb2.TokenLogprob, token: int, logprob: float, pieces: PieceTexts) -> None:
    text = pieces.piece_text(token)
    one.token_id, one.text, one.logprob = token, text, logprob
    if _REPLACED in text:
        one.piece = pieces.piece(token)
