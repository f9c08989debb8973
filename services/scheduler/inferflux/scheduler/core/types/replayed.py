"""Tokens that a request's readers have been given, put together from its chunks (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from inferflux.api.finish_reasons import name_of
from inferflux.v1 import tokens_pb2


@dataclass(slots=True)
class ReplayedTokens:
    """The state of a reader that has read everything."""

    token_ids: list[int] = field(default_factory=list)
    # The highest seen; 0 if nothing was.
    epoch: int = 0
    # How its stream ended: a finish reason in lower case or a failure's reason; "" if it has not.
    outcome: str = ""


def assemble(chunks: Iterable[tokens_pb2.TokenChunk]) -> ReplayedTokens:
    """Read chunks as every reader of a token stream does: those of an older epoch than seen do not count,
    tokens had already are skipped, and nothing counts after the end.

    When the buffer has lost the beginning, or a part, the tokens end before the gap: a worker emits the same
    ones again from there, and readers drop what they have.
    """
    replayed = ReplayedTokens()
    for chunk in chunks:
        if chunk.epoch < replayed.epoch:
            continue
        replayed.epoch = chunk.epoch
        known = len(replayed.token_ids)
        if chunk.offset <= known:
            replayed.token_ids.extend(chunk.token_ids[known - chunk.offset :])
        replayed.outcome = outcome_of(chunk)
        if replayed.outcome:
            break
    return replayed


def outcome_of(chunk: tokens_pb2.TokenChunk) -> str:
    """stop, length, cancelled, or the reason of a failure; "" when the chunk is not terminal."""
    match chunk.WhichOneof("event"):
        case "finished":
            return name_of(chunk.finished.reason)
        case "failed":
            return chunk.failed.reason or "failed"
    return ""
