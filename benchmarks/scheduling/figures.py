"""Figures read off streams (pure). Times are of time.perf_counter, in seconds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.load.stats import gaps, median

from .streams import Stream


@dataclass(frozen=True, slots=True)
class Window:
    """A period of time."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    def has(self, at_s: float) -> bool:
        return self.begin_s <= at_s < self.end_s


def tokens_in(streams: Iterable[Stream], window: Window) -> int:
    """Tokens that arrived within the window."""
    return sum(
        count
        for stream in streams
        for at, count in zip(stream.arrivals_s, stream.counts, strict=True)
        if window.has(at)
    )


def rate_in(streams: Iterable[Stream], window: Window) -> float:
    """Tokens a second within the window."""
    return tokens_in(streams, window) / window.length_s


def first_tokens_s(streams: Iterable[Stream], window: Window) -> list[float]:
    """Times to the first token of what was sent within the window."""
    return [s.ttft_s for s in streams if s.arrivals_s and window.has(s.sent_s)]


def evenness(first: float, second: float) -> float:
    """The smaller share divided by the larger: 1 when they are alike, 0 when one got nothing."""
    larger = max(first, second)
    return min(first, second) / larger if larger > 0 else float("nan")


def median_gap_s(streams: Iterable[Stream], window: Window) -> float:
    """The median time between the tokens of a stream within the window."""
    seen = (gaps([at for at in s.arrivals_s if window.has(at)]) for s in streams)
    return median(itertools.chain.from_iterable(seen))


def longest_gap_s(streams: Iterable[Stream], window: Window) -> float:
    """The longest time a stream was silent that touches the window; 0 of no streams.

    Silence counts between two tokens, and from the last one to the stream's end.
    """
    longest = 0.0
    for stream in streams:
        moments = [*stream.arrivals_s, stream.ended_s] if stream.ended_s else stream.arrivals_s
        for earlier, later in itertools.pairwise(moments):
            if earlier < window.end_s and later >= window.begin_s:
                longest = max(longest, later - earlier)
    return longest


def changed(streams: Sequence[Stream], expected: Sequence[Stream]) -> int:
    """How many streams say something else than the undisturbed ones of the same requests."""
    pairs = zip(streams, expected, strict=True)
    return sum((a.token_ids, a.text) != (b.token_ids, b.text) for a, b in pairs)


def lost_or_doubled(streams: Iterable[Stream]) -> int:
    """Tokens that a client missed or got twice."""
    return sum(stream.lost + stream.doubled for stream in streams)


def first_admission_s(streams: Iterable[Stream], since_s: float) -> float:
    """From `since_s` until one of the requests sent from then on has its first token; nan if none has."""
    firsts = [s.arrivals_s[0] for s in streams if s.sent_s >= since_s and s.arrivals_s]
    return min(firsts) - since_s if firsts else float("nan")
