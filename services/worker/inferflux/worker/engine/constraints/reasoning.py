"""Budget of reasoning tokens in an answer, and the tokens that close the reasoning at its limit (pure)."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import numpy as np

from inferflux.common.text.answers.families import syntax_in
from inferflux.common.text.answers.parser import AnswerParser
from inferflux.v1 import generation_pb2

from .constraints import Mask, Masking

_NO_LIMIT = 1 << 62


class Reasoning:
    """Counts tokens up to the end of the reasoning, its markers among them. It depends on the tokens alone.

    Args:
        form: how the answer is written.
        most: tokens that it may take before it is closed; None: any number.
        closing: tokens that end it and begin the answer. They come once a character is complete.
    """

    def __init__(
        self,
        form: generation_pb2.AnswerFormat,
        *,
        most: int | None = None,
        closing: Sequence[int] = (),
    ) -> None:
        syntax = syntax_in(form.syntax, form.reasoning)
        self._parser = AnswerParser(syntax=syntax, reasoning=form.reasoning, prefix=form.prefix)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Tokens while it may reason, and up to the last one that did.
        self._n = self._n_reasoning = 0
        self._most = _NO_LIMIT if most is None or not closing else most
        self._closing = closing
        # Of the closing, what is still to come.
        self._left: Sequence[int] = ()
        if form.reasoning == generation_pb2.REASONING_FORMAT_OPEN:
            self._parser.push("")
        self._close_if_due()

    @property
    def n_tokens(self) -> int:
        return self._n_reasoning

    @property
    def forced(self) -> Sequence[int]:
        """The next tokens, as far as the reasoning is being closed."""
        return self._left

    @property
    def n_free(self) -> int:
        """Tokens that may follow before one is forced, at least."""
        if self._left or not self._parser.may_reason:
            return _NO_LIMIT
        return max(self._most - self._n, 0)

    def push(self, piece: bytes) -> None:
        """Take the bytes of the next token."""
        self._left = self._left[1:]
        if self._parser.may_reason:
            self._n += 1
            parser = self._parser
            before = (parser.is_thinking, parser.has_reasoned)
            parser.push(self._decoder.decode(piece))
            if before[0] or (parser.is_thinking, parser.has_reasoned) != before:
                self._n_reasoning = self._n
            self._close_if_due()

    def _close_if_due(self) -> None:
        if self._left or self._n < self._most:
            return
        if self._parser.is_thinking and not self._decoder.getstate()[0]:
            self._left = self._closing


class Closing:
    """Masks of tokens that close the reasoning, and then those of the constraint.

    Args:
        forced: the tokens that come next, one after the other.
        constraint: of the answer; None: it has none.
    """

    def __init__(self, forced: Sequence[int], constraint: Masking | None) -> None:
        self._forced = forced
        self._constraint = constraint
        self._n_ahead = 0

    def fill(self, mask: Mask) -> bool:
        if self._n_ahead < len(self._forced):
            token = self._forced[self._n_ahead]
            mask[:] = 0
            mask.view(np.uint32)[token // 32] = 1 << token % 32
            return True
        if self._constraint is not None:
            return self._constraint.fill(mask)
        mask[:] = -1
        return True

    def look_ahead(self, token: int) -> None:
        self._n_ahead += 1
        if self._constraint is not None:
            self._constraint.look_ahead(token)

    def look_back(self) -> None:
        self._n_ahead = 0
        if self._constraint is not None:
            self._constraint.look_back()
