"""Count of a request's cells in a unified KV cache, a cell a token: alike in scheduler and worker."""

from __future__ import annotations

# Tokens a request is expected to generate soon: room for them is looked for before it runs. What it comes to
# need beyond is found when it does, at the cost of a less urgent request's cells.
DECODE_HEADROOM = 128


def cells_of(prompt_tokens: int, max_tokens: int) -> int:
    """Cells of the prompt and of all it may generate but the last token, which is never decoded."""
    return max(prompt_tokens, prompt_tokens + max_tokens - 1)


def reserved_cells(prompt_tokens: int, generated_tokens: int, max_tokens: int = 0) -> int:
    """Cells to keep for a request that runs: of what it has, and of what it is expected to generate soon.

    Args:
        max_tokens: most new tokens, those generated included; 0 for no bound.
    """
    soon = generated_tokens + DECODE_HEADROOM
    return cells_of(prompt_tokens, min(soon, max_tokens) if max_tokens else soon)
