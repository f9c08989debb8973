"""The DRY sampler ("don't repeat yourself"): penalties of tokens that would prolong a repetition.

As llama.cpp's (`llama_sampler_init_dry`), which has it from KoboldCpp, by pi6am, after p-e-w's idea. There
each step goes through all recent tokens several times; here it is a few calls of numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferflux.common.contract.checks import MAX_TOKENS
from inferflux.v1 import generation_pb2

from .breakers import MAX_TAIL, Breakers

_LOG_FLOAT_MAX = 88.7228391
# Powers of smaller bases do not overflow.
_SMALLEST_BOUNDED_BASE = 1.000001
_LARGEST = float(np.finfo(np.float32).max)
_ROOM = 256


class Penalties(NamedTuple):
    """Penalties to subtract from logits: two arrays of one shape."""

    ids: NDArray[np.int64]
    amounts: NDArray[np.float32]


_NONE = Penalties(np.empty(0, np.int64), np.empty(0, np.float32))


class Dry:
    """The penalties of one request.

    Args:
        history: prompt and already generated token ids.
        breakers: over which no repetition goes on; known before `penalties` is called.
    """

    def __init__(
        self, params: generation_pb2.SamplingParams, history: Sequence[int], breakers: Future[Breakers]
    ) -> None:
        self._multiplier = params.dry_multiplier
        self._base = params.dry_base
        self._allowed = params.dry_allowed_length
        self._last_n = params.dry_penalty_last_n if params.dry_penalty_last_n > 0 else MAX_TOKENS
        is_bounded = self._base > _SMALLEST_BOUNDED_BASE
        self._most_exponent = int(_LOG_FLOAT_MAX / math.log(self._base)) if is_bounded else None
        self._breakers = breakers
        recent = list(history[-self._last_n :])
        self._n = len(recent)
        self._tokens = np.zeros(self._n + _ROOM, np.int32)
        self._tokens[: self._n] = recent
        # Of each token but the last: how many tokens up to it are the same as those up to the last one.
        self._lengths = np.zeros_like(self._tokens)
        self._lengths[: self._n] = repeat_lengths(recent)
        self._limits = _LastBreaker()
        self._penalties: Penalties | None = None

    def __copy__(self) -> Dry:
        """One that is told other tokens from now on."""
        made: Dry = object.__new__(Dry)
        made.__dict__.update(self.__dict__)
        made._tokens, made._lengths = self._tokens.copy(), self._lengths.copy()
        made._limits = copy(self._limits)
        return made

    @classmethod
    def is_on(cls, params: generation_pb2.SamplingParams) -> bool:
        """True if it is asked for."""
        return params.dry_multiplier > 0.0 and params.dry_penalty_last_n != 0

    @property
    def is_ready(self) -> bool:
        """True if the breakers are known."""
        return self._breakers.done()

    def accept(self, token: int) -> None:
        """`token` follows."""
        if self._n == self._tokens.shape[0]:
            self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
            self._lengths = np.concatenate((self._lengths, np.zeros_like(self._lengths)))
        n, first = self._n, max(self._n - self._last_n, 0)
        is_same = self._tokens[first:n] == token
        lengths = self._lengths[first:n]
        lengths[1:] = (lengths[:-1] + 1) * is_same[1:]
        lengths[:1] = is_same[:1]
        self._tokens[n] = token
        self._n = n + 1
        self._penalties = None

    def penalties(self) -> Penalties:
        """Penalties of the tokens that would prolong a repetition now."""
        if self._penalties is None:
            self._penalties = self._find()
        return self._penalties

    def _find(self) -> Penalties:
        breakers = self._breakers.result()
        first = max(self._n - self._last_n, 0)
        tokens = self._tokens[first : self._n]
        n = tokens.shape[0]
        if n <= self._allowed:
            return _NONE
        longest = self._limits.longest_repetition(self._tokens[: self._n], first, breakers)
        if longest < self._allowed:
            return _NONE
        lengths = self._lengths[first : self._n - 1]
        at = np.flatnonzero(lengths >= self._allowed)
        lengths = np.minimum(lengths[at], np.minimum(at + 1, longest))  # no further back than the first token
        at, lengths = at[lengths >= self._allowed], lengths[lengths >= self._allowed]
        if not at.shape[0]:
            return _NONE
        ids, of = np.unique(tokens[at + 1], return_inverse=True)
        most = np.zeros(ids.shape[0], np.int64)
        np.maximum.at(most, of, lengths)
        is_penalized = np.array([() not in breakers.get(token, ()) for token in ids.tolist()])
        return Penalties(ids[is_penalized].astype(np.int64), self._amounts(most[is_penalized]))

    def _amounts(self, lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        exponents = lengths - self._allowed
        if self._most_exponent is not None:
            exponents = np.minimum(exponents, self._most_exponent)
        amounts = self._multiplier * self._base ** exponents.astype(np.float64)
        return np.minimum(amounts, _LARGEST).astype(np.float32)


def repeat_lengths(tokens: Sequence[int]) -> list[int]:
    """Return, for each token but the last, how many tokens up to it are the same as those up to the last one.

    The Z algorithm, on the reversed tokens: it takes linear time.
    """
    backwards = tokens[::-1]
    n = len(backwards)
    lengths = [0] * n
    left = right = 0
    for k in range(1, n):
        same = min(right - k, lengths[k - left]) if k < right else 0
        while k + same < n and backwards[same] == backwards[k + same]:
            same += 1
        if k + same > right:
            left, right = k, k + same
        lengths[k] = same
    return lengths[::-1]


class _LastBreaker:
    """Finds the last breaker among tokens that grow at their end, looking at each old token once."""

    def __init__(self) -> None:
        # What begins before this position is known: no later token changes it.
        self._settled = 0
        # Where the last breaker of those begins and ends; -1: there is none.
        self._begin = self._end = -1

    def longest_repetition(self, tokens: NDArray[np.int32], first: int, breakers: Breakers) -> int:
        """Number of tokens after the last breaker that begins at position `first` or later."""
        n = len(tokens)
        if not breakers:
            return n - first
        begin = max(self._settled, first)
        recent = tokens[begin:].tolist()
        n_settled = max(len(recent) - MAX_TAIL, 0)
        for i in range(n_settled):
            size = _longest_at(recent, i, breakers)
            if size:
                self._begin, self._end = begin + i, begin + i + size
        self._settled = begin + n_settled
        for i in range(len(recent) - 1, n_settled - 1, -1):
            size = _longest_at(recent, i, breakers)
            if size:
                return n - (begin + i + size)
        return n - (self._end if self._begin >= first else first)


def _longest_at(tokens: Sequence[int], i: int, breakers: Breakers) -> int:
    """Tokens of the longest breaker that begins at position i; 0: none does."""
    tails = breakers.get(tokens[i])
    if tails is None:
        return 0
    return max(
        (1 + len(tail) for tail in tails if tuple(tokens[i + 1 : i + 1 + len(tail)]) == tail), default=0
    )
