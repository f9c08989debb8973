"""Answer of a sequence: its text, and which tokens may come next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.constraints.constraints import Constraint, Masking
from inferflux.worker.engine.constraints.reasoning import Closing, Reasoning

from .text import TextAssembler


class PieceSource(Protocol):
    """Interface of a vocabulary that an answer needs."""

    @property
    def eog(self) -> frozenset[int]: ...

    def piece(self, token: int) -> bytes: ...

    def control_token(self, text: str) -> int | None: ...

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> Sequence[int]: ...


@dataclass(slots=True, eq=False)
class Answer:
    """What a sequence has generated as text, and what the rest has to look like.

    Attributes:
        text: of the tokens so far.
        markers: control tokens that the text shows.
        form: how readers tell the text apart, which its chunks say; None: all of it is content.
        reasoning: of one that may begin with reasoning.
        constraint: which it keeps to; `step/constrained_answers.py` sets it.
    """

    text: TextAssembler
    markers: Mapping[int, bytes] = field(default_factory=dict)
    form: generation_pb2.AnswerFormat | None = None
    reasoning: Reasoning | None = None
    constraint: Constraint | None = None

    def piece(self, token: int, pieces: PieceSource) -> bytes:
        """The bytes that a token adds to the text."""
        return pieces.piece(token) or self.markers.get(token, b"")

    def push(self, token: int, pieces: PieceSource) -> str:
        """Take the next token in; returns the text that it releases."""
        if self.constraint is not None:
            self.constraint.accept(token)
        piece = pieces.piece(token) or self.markers.get(token, b"")
        if self.reasoning is not None:
            self.reasoning.push(piece)
        return self.text.push(piece)

    @property
    def masking(self) -> Masking | None:
        """Says which tokens may come next; None: any."""
        if self.reasoning is not None and self.reasoning.forced:
            return Closing(self.reasoning.forced, self.constraint)
        return self.constraint

    def forced(self) -> Sequence[int]:
        """The next tokens, as far as there is no choice of them."""
        if self.reasoning is not None and self.reasoning.forced:
            return self.reasoning.forced
        return [] if self.constraint is None else self.constraint.forced()
