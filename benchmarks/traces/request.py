"""A request of a trace (pure)."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

BLOCK_TOKENS = 512
# Requests of one copy of a trace have blocks below this.
_BLOCKS_A_COPY = 1 << 32
# A prime: numbers that follow each other give tokens that do not.
_SPREAD = 2_654_435_761


class TraceError(Exception):
    """A trace cannot be read: the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request.

    Attributes:
        at_s: since the trace begins.
        blocks: name 512-token blocks of the prompt, the last one maybe shorter. Equal names stand for equal
            tokens up to the end of the block. Empty where a trace does not tell.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()

    def of_copy(self, copy: int, at_s: float) -> TraceRequest:
        """The same in another copy of the trace: it shares no block with those of other copies."""
        return replace(self, at_s=at_s, blocks=tuple(copy * _BLOCKS_A_COPY + block for block in self.blocks))

    def token_ids(self, vocabulary: int) -> array[int]:
        """Tokens of the prompt, all below `vocabulary`: equal blocks have equal ones.

        Raises:
            ValueError: its blocks are not known.
        """
        if not self.blocks:
            raise ValueError("the trace does not tell which blocks the prompt consists of")
        tokens = array("I")
        for block in self.blocks:
            tokens.extend(_tokens(block, vocabulary))
        return tokens[: self.prompt_tokens]


def _tokens(block: int, vocabulary: int) -> Iterable[int]:
    first = block * BLOCK_TOKENS
    return ((first + at) * _SPREAD // 65_536 % vocabulary for at in range(BLOCK_TOKENS))


@dataclass(frozen=True, slots=True)
class Ideal:
    """Parts of all prompts that one cache would have, of their blocks and of their tokens: 0 without any."""

    blocks: float = 0.0
    tokens: float = 0.0


def ideal(requests: Iterable[TraceRequest], *, most_tokens: int | None = None) -> Ideal:
    """The ideal hit rates of requests in their order.

    Args:
        most_tokens: that the cache holds, the longest unused ones go first; None: any number.
    """
    cached: OrderedDict[int, None] = OrderedDict()
    hit_blocks = hit_tokens = n_blocks = n_tokens = 0
    for request in requests:
        found = next((at for at, b in enumerate(request.blocks) if b not in cached), len(request.blocks))
        for block in reversed(request.blocks):
            cached[block] = None
            cached.move_to_end(block)
        while most_tokens is not None and BLOCK_TOKENS * len(cached) > most_tokens:
            cached.popitem(last=False)
        hit_blocks += found
        hit_tokens += min(found * BLOCK_TOKENS, request.prompt_tokens)
        n_blocks += len(request.blocks)
        n_tokens += request.prompt_tokens
    return Ideal(hit_blocks / max(1, n_blocks), hit_tokens / max(1, n_tokens))
