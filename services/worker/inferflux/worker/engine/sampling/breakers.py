"""Texts that break repetitions, as token ids: found in a vocabulary as llama.cpp's DRY sampler finds them.

A breaker is in a text if one token has it in its own text, or if a token ends with its beginning and the
tokens of the rest follow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inferflux.v1 import generation_pb2

MAX_TAIL = 20
"""Tokens that a breaker has at most after its first one."""

_MOST_CACHED = 64

Tail = tuple[int, ...]
Breakers = Mapping[int, Sequence[Tail]]
"""By its first token, what follows that token in a breaker; an empty tail where the token is enough."""


class SpellingVocab(Protocol):
    """Interface of a vocabulary that the search for breakers needs."""

    @property
    def size(self) -> int: ...

    def spelling(self, token: int) -> bytes: ...

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]: ...


class Spellings:
    """The texts of all tokens, searchable.

    Args:
        spellings: of each token id, as it stands at the beginning of a text; control tokens too.
    """

    def __init__(self, spellings: Iterable[bytes]) -> None:
        texts = list(spellings)
        self._bytes = np.frombuffer(b"".join(texts), np.uint8)
        self._sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        self._ends = np.cumsum(self._sizes)

    def with_text(self, text: bytes) -> NDArray[np.int64]:
        """The tokens that have this text within their own."""
        at = np.flatnonzero(self._bytes == text[0])
        for i, byte in enumerate(text[1:], 1):
            at = at[at + i < self._bytes.shape[0]]
            at = at[self._bytes[at + i] == byte]
        tokens = np.searchsorted(self._ends, at, side="right")
        return np.unique(tokens[at + len(text) <= self._ends[tokens]])

    def ending_with(self, text: bytes) -> NDArray[np.int64]:
        """The tokens whose own text ends with this one."""
        tokens = np.flatnonzero(self._sizes >= len(text))
        for i, byte in enumerate(reversed(text), 1):
            tokens = tokens[self._bytes[self._ends[tokens] - i] == byte]
        return tokens


def find_breakers(texts: Iterable[str], spellings: Spellings, vocab: SpellingVocab) -> Breakers:
    """The breakers with these texts, none of which is empty.

    What is left of a text after a part of a character is not looked for: it is no text that could be
    tokenized.
    """
    found: dict[int, set[Tail]] = {}
    for text in texts:
        whole = text.encode()
        singles = spellings.with_text(whole)
        for token in singles.tolist():
            found.setdefault(token, set()).add(())
        for n in range(1, len(whole)):
            heads = np.setdiff1d(spellings.ending_with(whole[:n]), singles, assume_unique=True)
            if not heads.shape[0] or not _is_text(whole[n:]):
                continue
            tail = tuple(vocab.tokenize(whole[n:], add_special=False, parse_special=False)[:MAX_TAIL])
            for token in heads.tolist():
                found.setdefault(token, set()).add(tail)
    return {token: sorted(tails) for token, tails in found.items()}


class BreakerFinder:
    """Finds breakers of one vocabulary in a thread of its own, and keeps what it has found."""

    def __init__(self, vocab: SpellingVocab) -> None:
        self._vocab = vocab
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="breakers")
        # Used by the pool's one thread alone, and read at the first use: a large vocabulary takes a while.
        self._spellings: Spellings | None = None
        self._found: OrderedDict[tuple[str, ...], Future[Breakers]] = OrderedDict()

    def of(self, params: generation_pb2.SamplingParams) -> Future[Breakers] | None:
        """Start to find the breakers that a request needs; None where it needs none."""
        if not params.dry_multiplier:
            return None
        key = tuple(params.dry_sequence_breakers.texts)
        future = self._found.get(key)
        if future is None:
            future = self._found[key] = self._pool.submit(self._find, key)
            if len(self._found) > _MOST_CACHED:
                self._found.popitem(last=False)
        self._found.move_to_end(key)
        return future

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _find(self, texts: tuple[str, ...]) -> Breakers:
        if self._spellings is None:
            self._spellings = Spellings(map(self._vocab.spelling, range(self._vocab.size)))
        return find_breakers(texts, self._spellings, self._vocab)


def _is_text(part: bytes) -> bool:
    try:
        part.decode()
    except UnicodeDecodeError:
        return False
    return True
