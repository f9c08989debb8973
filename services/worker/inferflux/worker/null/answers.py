"""The answer of the null engine: a function of the seed and of each token's index (pure).

A token's text is its id in digits, with a space before it. So a token that is lost, doubled or of another
stream shows in the text of an answer.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


def token_at(seed: int, index: int, vocabulary_size: int) -> int:
    """The token at `index` of the answer to a request with this seed, in [0, vocabulary_size).

    The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), over both numbers.
    """
    mixed = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1B54A32D192ED03) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) % vocabulary_size


def text_of(token: int) -> str:
    """Text that a token adds."""
    return f" {token}"


def answer_text(seed: int, n_tokens: int, vocabulary_size: int) -> str:
    """The text of a whole answer without stop strings."""
    return "".join(text_of(token_at(seed, index, vocabulary_size)) for index in range(n_tokens))
