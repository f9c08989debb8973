"""How many of an answer's tokens are its reasoning (pure)."""

from __future__ import annotations

import codecs

from inferflux.common.answers.parser import AnswerParser
from inferflux.v1 import generation_pb2


class ReasoningCount:
    """Counts tokens up to the end of the reasoning, its markers among them. It depends on the tokens alone.

    Args:
        form: what of the answer may be reasoning.
    """

    def __init__(self, form: generation_pb2.ReasoningFormat.ValueType) -> None:
        self._parser = AnswerParser(reasoning=form)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n = 0

    @property
    def n_tokens(self) -> int:
        return self._n if self._parser.has_reasoned else 0

    def push(self, piece: bytes) -> None:
        """Take the bytes of the next token."""
        if self._parser.may_reason:
            self._n += 1
            self._parser.push(self._decoder.decode(piece))
