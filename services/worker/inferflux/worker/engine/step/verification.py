"""Verification of drafts: the drafted tokens that are the model's own (pure).

Each row of a step is sampled as if it was alone: with the noise of its token's index, and with the penalties
that hold once all tokens before it are emitted. So a drafted token is accepted if and only if the same token
would have come without a draft.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several

from inferflux.worker.engine.plan.planner import ScheduledTokens
from inferflux.worker.engine.sampling.sampling import Sampler
from inferflux.worker.engine.sampling.sampling_rows import BAD


def drafted_tokens(part: ScheduledTokens) -> list[int]:
    """Return the tokens drafted after a sequence's own."""
    sequence = part.sequence
    drafted: list[int] = sequence.tokens[sequence.n_tokens :][: part.n_drafted].tolist()
    return drafted


def samplers_of(part: ScheduledTokens) -> Iterator[Sampler]:
    """The sampler of each row that a part wants."""
    if not part.n_logits:
        return
    sampler = part.sequence.sampler
    yield sampler
    if part.n_drafted:
        for token in drafted_tokens(part):
            sampler = sampler.after(token)
            yield sampler


def drop_rejected(parts: Iterable[ScheduledTokens], tokens: list[int]) -> None:
    """Put `BAD` in place of each token that follows one which is not the drafted one.

    Args:
        parts: of a step.
        tokens: sampled, one for each of its rows.
    """
    first = 0
    for part in parts:
        end = first + part.n_logits
        if part.n_drafted:
            kept = first + 1 + agreed(tokens[first:end], drafted_tokens(part))
            tokens[kept:end] = [BAD] * (end - kept)
        first = end


def agreed(sampled: Several[int], draft: Several[int]) -> int:
    """Number of the drafted tokens that are accepted: the first ones, as far as the model's own are the same.

    Args:
        sampled: the model's own tokens, one more than were drafted.
    """
    for i, token in enumerate(draft):
        if sampled[i] != token:
            return i
    return len(draft)
