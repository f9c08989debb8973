"""How many cells of the KV cache a request may come to hold: scheduler and worker count alike."""

from __future__ import annotations


def cells_of(prompt_tokens: int, max_tokens: int) -> int:
    """Cells of the prompt and of all it may generate but the last token, which is never decoded."""
    return max(prompt_tokens, prompt_tokens + max_tokens - 1)
