"""A sorted collection with cheap insertion, removal, position and smallest element (pure)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound="tuple[object, ...]")

_CHUNK = 512


class Ranking(Generic[T]):
    """Distinct tuples in ascending order, kept in chunks of at most `2 * _CHUNK` so that no operation moves
    more than one chunk. The first elements of tuples must differ: later ones need not compare."""

    def __init__(self) -> None:
        self._chunks: list[list[T]] = []
        self._highest: list[T] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from chunk

    def first(self) -> T:
        """The smallest. Raises IndexError when empty."""
        return self._chunks[0][0]

    def add(self, item: T) -> None:
        self._size += 1
        if not self._chunks:
            self._chunks.append([item])
            self._highest.append(item)
            return
        at = min(bisect_left(self._highest, item), len(self._chunks) - 1)
        chunk = self._chunks[at]
        insort(chunk, item)
        self._highest[at] = chunk[-1]
        if len(chunk) > 2 * _CHUNK:
            self._split(at)

    def remove(self, item: T) -> None:
        """Raises KeyError when `item` is not in it."""
        at, index = self._find(item)
        chunk = self._chunks[at]
        del chunk[index]
        self._size -= 1
        if chunk:
            self._highest[at] = chunk[-1]
        else:
            del self._chunks[at], self._highest[at]

    def position(self, item: T) -> int:
        """Number of items that are smaller than `item`, which need not be in it."""
        at = bisect_left(self._highest, item)
        index = bisect_left(self._chunks[at], item) if at < len(self._chunks) else 0
        return sum(map(len, self._chunks[:at])) + index

    def _find(self, item: T) -> tuple[int, int]:
        at = bisect_left(self._highest, item)
        if at < len(self._chunks):
            chunk = self._chunks[at]
            index = bisect_left(chunk, item)
            if index < len(chunk) and chunk[index] == item:
                return at, index
        raise KeyError(item)

    def _split(self, at: int) -> None:
        chunk = self._chunks[at]
        tail = chunk[_CHUNK:]
        del chunk[_CHUNK:]
        self._chunks.insert(at + 1, tail)
        self._highest[at] = chunk[-1]
        self._highest.insert(at + 1, tail[-1])
