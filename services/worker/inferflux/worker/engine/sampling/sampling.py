"""Sampling of a token id from a row of logits: what a request asks for, and the reference for
`sampling_rows`.

The order of the steps is llama.cpp's: logit bias, penalties, DRY, top-n-sigma, top-k, typical-p, top-p,
min-p, XTC, temperature, draw.
The draw of token i uses noise that is a function of (seed, i, token id) alone (`noise`). So a request's
tokens do not depend on what ran beside it, and a retry continues them.
"""

from __future__ import annotations

import copy
import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from inferflux.v1 import generation_pb2

from . import noise
from .bans import Bans
from .breakers import Breakers
from .dry import Dry
from .filters import Filters, dynamic_temperature, sigma_bound, typical, without_top_choices

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]

# Logits in one.
_GROUP = 64
# Candidates whose noise is computed at a time: they stay in the processor's cache.
_BLOCK = 8192


class BadLogits(Exception):
    """The model gave NaN or only minus infinity."""


def top_ids(logits: Logits, k: int) -> Ids:
    """Ids of the k largest logits, largest first, ties by id.

    A vocabulary is large and k small, so first only the maxima of groups are compared: the k-th
    largest of them bounds the k-th largest logit from below, and few logits reach it. A group takes its
    logits from all over the row: numpy then compares whole rows of groups at once, twenty times as fast as
    neighbours.
    """
    n = logits.shape[0]
    if k >= n:
        candidates = np.arange(n)
    elif logits.min() == -np.inf:
        candidates = _top_of_masked(logits, k)
    else:
        whole = logits[: n - n % _GROUP]
        compared = whole.reshape(_GROUP, -1).max(axis=0) if n >= _GROUP * k else logits
        bound = np.partition(compared, compared.shape[0] - k)[compared.shape[0] - k]
        candidates = np.flatnonzero(logits >= bound)
    order = np.argsort(-logits[candidates], kind="stable")
    return candidates[order[:k]]


def _top_of_masked(logits: Logits, k: int) -> Ids:
    """Ids among which are those of `top_ids`. np.partition takes ten times as long where many are equal."""
    is_masked = logits == -np.inf
    allowed = np.flatnonzero(~is_masked)
    n = allowed.shape[0]
    if n <= k:
        return np.concatenate((allowed, np.flatnonzero(is_masked)[: k - n]))
    values = logits[allowed]
    candidates: Ids = allowed[values >= np.partition(values, n - k)[n - k]]
    return candidates


class Sampler:
    """Sampler of the tokens of one request.

    Args:
        params: every optional field set.
        history: prompt and already generated token ids, for the penalties.
        breakers: over which DRY counts no repetition.
        bans: what may not come next.

    Attributes:
        filters: those that few requests ask for.
        group: rows of one group are sampled together.
    """

    def __init__(
        self,
        params: generation_pb2.SamplingParams,
        history: Sequence[int],
        breakers: Future[Breakers] | None = None,
        bans: Bans | None = None,
    ) -> None:
        self.temperature = params.temperature
        self.top_k = params.top_k
        self.top_p = params.top_p
        self.log_min_p = np.float32(math.log(params.min_p) if params.min_p > 0.0 else -math.inf)
        self.seed = params.seed
        self.seed_state = noise.seed_state(params.seed)
        self._penalties = _Penalties.of(params, history)
        self._dry = Dry(params, history, breakers or no_breakers()) if Dry.is_on(params) else None
        self._bans = bans
        self._bias_ids = np.fromiter(params.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), np.float32)
        self.n_logprobs: int | None = params.logprobs if params.HasField("logprobs") else None
        self.filters = Filters.of(params)
        self.group = (self.top_k, self.filters is not None)
        # Always the largest logit: other filters may drop that.
        self.is_greedy = self.temperature <= 0.0 and self.filters is None
        # Whether it changes logits before a token is chosen.
        self.adjusts_logits = bool(self._penalties or self._dry or self._bias_ids.size or bans)

    @property
    def is_ready(self) -> bool:
        """True if a token can be chosen."""
        return self._dry is None or self._dry.is_ready

    def adjust(self, logits: Logits) -> None:
        """Apply logit bias, penalties, DRY and bans to a row of shape (vocabulary,), in place."""
        logits[self._bias_ids] += self._bias
        if self._penalties:
            self._penalties.apply(logits)
        if self._dry:
            ids, amounts = self._dry.penalties()
            logits[ids] -= amounts
        if self._bans:
            logits[self._bans.ids] = -np.inf

    def adjusted_ids(self) -> Ids:
        """The ids whose logits `adjust` changes; some maybe twice."""
        ids = self._bias_ids
        if self._penalties:
            ids = np.concatenate((ids, self._penalties.ids))
        if self._dry:
            ids = np.concatenate((ids, self._dry.penalties().ids))
        if self._bans:
            ids = np.concatenate((ids, self._bans.ids))
        return ids

    def choose(self, logits: Logits, index: int) -> int:
        """The token id for generated position `index`; `logits` has shape (vocabulary,), left unchanged.

        Raises:
            BadLogits: no finite choice.
        """
        if self.adjusts_logits:
            logits = logits.copy()
            self.adjust(logits)
        return self.choose_adjusted(logits, index)

    def choose_adjusted(self, logits: Logits, index: int) -> int:
        """Choose as `choose` does, from logits that are adjusted already."""
        best = int(logits.argmax())
        if not math.isfinite(logits[best]):
            raise BadLogits("the model gave no finite logits")
        if self.is_greedy:
            return best
        state = noise.draw_states([self.seed_state], [index])
        if self.filters is None:
            ids, temperature = self._candidates(logits), self.temperature
        else:
            ids, temperature = self._filtered(logits, self.filters, state)
        return _draw(ids, logits[ids], temperature, state)

    def accept(self, token: int) -> None:
        """Tell the penalties that `token` was emitted."""
        if self._penalties:
            self._penalties.accept(token)
        if self._dry:
            self._dry.accept(token)
        if self._bans:
            self._bans.accept(token)

    def after(self, token: int) -> Sampler:
        """One that chooses what follows once `token` was emitted; this one does not change."""
        if self._penalties is None and self._dry is None and self._bans is None:
            return self
        later = copy.copy(self)
        later.part_histories()
        later.accept(token)
        return later

    def part_histories(self) -> None:
        """After a copy: what it is told changes none but itself."""
        self._penalties = copy.copy(self._penalties)
        self._dry = copy.copy(self._dry)
        self._bans = copy.copy(self._bans)

    def _candidates(self, logits: Logits) -> Ids:
        """Ids that survive top-k, top-p and min-p, largest logit first (in id order when all survive)."""
        n = logits.shape[0]
        if 0 < self.top_k < n:
            ids = top_ids(logits, self.top_k)
            if self.top_p < 1.0:
                ids = ids[: _nucleus(_softmax(logits[ids]), self.top_p)]
        elif self.top_p < 1.0:
            ids = _nucleus_of_all(logits, self.top_p)
        else:
            ids = np.arange(n)
        if self.log_min_p > -math.inf:
            ids = ids[logits[ids] >= logits[ids].max() + self.log_min_p]
        return ids

    def _filtered(self, logits: Logits, filters: Filters, state: noise.States) -> tuple[Ids, float]:
        """(ids that survive every filter, their temperature)."""
        n = logits.shape[0]
        ids = top_ids(logits, self.top_k) if 0 < self.top_k < n else np.arange(n)
        ids = ids[logits[ids] > -np.inf]
        if filters.n_sigma:
            ids = ids[logits[ids] >= sigma_bound(logits, filters.n_sigma)]
        if filters.typical_p < 1.0:
            ids = ids[typical(logits[ids], filters.typical_p)]
        if self.top_p < 1.0:
            ids = ids[_nucleus_of_all(logits[ids], self.top_p)]
        if self.log_min_p > -math.inf:
            ids = ids[logits[ids] >= logits[ids].max() + self.log_min_p]
        if filters.xtc_probability and noise.uniform(state)[0] <= filters.xtc_probability:
            ids = ids[without_top_choices(logits[ids], filters.xtc_threshold)]
        return ids, dynamic_temperature(logits[ids], filters)


def no_breakers() -> Future[Breakers]:
    """None, known at once."""
    known: Future[Breakers] = Future()
    known.set_result({})
    return known


def _draw(ids: Ids, logits: Logits, temperature: float, state: noise.States) -> int:
    """The id whose logit / temperature + noise is largest; of equal logits at temperature 0 the first."""
    best = logits.max()
    if temperature <= 0.0:
        return int(ids[logits == best].min())
    # What is further below the best cannot win.
    possible = np.flatnonzero(logits >= float(best) - temperature * noise.RANGE)
    ids, logits = ids[possible], logits[possible]
    winners = []
    for first in range(0, ids.shape[0], _BLOCK):
        block = slice(first, first + _BLOCK)
        scores = scaled(logits[block], best, temperature) + noise.gumbel(state, ids[block])
        at = int(scores.argmax())
        winners.append((float(scores[at]), int(ids[first + at])))
    return max(winners)[1]


def scaled(
    logits: Logits, best: Logits | np.float32, temperatures: NDArray[np.float64] | float
) -> NDArray[np.float64]:
    """Return the distance of `logits` from the `best` of their row, at most 0, divided by the temperature."""
    below: NDArray[np.float64] = (logits.astype(np.float64) - best) / temperatures
    return below


def _softmax(logits: Logits) -> Logits:
    weights: Logits = np.exp(logits - logits.max())
    weights /= weights.sum()
    return weights


def _nucleus(probabilities: Logits, p: float) -> int:
    """Number of the descending `probabilities` that it takes to reach p: at least one."""
    return int(np.searchsorted(np.cumsum(probabilities, dtype=np.float64), p, side="left")) + 1


def _nucleus_of_all(logits: Logits, p: float) -> Ids:
    """Top-p without top-k: widen a sorted head until it holds enough, instead of sorting everything."""
    below = logits.astype(np.float64) - logits.max()
    total = float(np.exp(below).sum())
    k = 256
    while True:
        ids = top_ids(logits, k)
        probabilities = np.exp(below[ids]) / total
        kept = _nucleus(probabilities, p)
        if kept <= ids.shape[0] or ids.shape[0] == logits.shape[0]:
            return ids[:kept]
        k *= 8


class _Penalties:
    """Repeat, frequency and presence penalties over the last n tokens, as llama.cpp applies them."""

    def __init__(
        self,
        recent: Iterable[int],
        last_n: int,
        repeat: float,
        frequency: float,
        presence: float,
        *,
        counts: Counter[int] | None = None,
    ) -> None:
        self._window = deque(recent)
        self._last_n = last_n
        self._repeat = np.float32(repeat)
        self._frequency = np.float32(frequency)
        self._presence = np.float32(presence)
        self._counts = Counter(self._window) if counts is None else counts.copy()

    @classmethod
    def of(cls, params: generation_pb2.SamplingParams, history: Sequence[int]) -> _Penalties | None:
        repeat = params.repeat_penalty or 1.0  # 0 only where it is not set
        strengths = (repeat, params.frequency_penalty, params.presence_penalty)
        if strengths == (1.0, 0.0, 0.0) or params.penalty_last_n == 0:
            return None
        last_n = params.penalty_last_n
        return cls(history[-last_n:] if last_n > 0 else history, last_n, *strengths)

    def __copy__(self) -> _Penalties:
        strengths = self._last_n, float(self._repeat), float(self._frequency), float(self._presence)
        return _Penalties(self._window, *strengths, counts=self._counts)

    def accept(self, token: int) -> None:
        self._window.append(token)
        self._counts[token] += 1
        if 0 < self._last_n < len(self._window):
            oldest = self._window.popleft()
            self._counts[oldest] -= 1
            if self._counts[oldest] == 0:
                del self._counts[oldest]

    @property
    def ids(self) -> Ids:
        """Ids of the tokens that are penalized."""
        return np.fromiter(self._counts.keys(), np.int64, len(self._counts))

    def apply(self, logits: Logits) -> None:
        if not self._counts:
            return
        ids = self.ids
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        seen = logits[ids]
        seen = np.where(seen > 0, seen / self._repeat, seen * self._repeat)
        logits[ids] = seen - counts * self._frequency - self._presence
