"""Conversations to train on, and the held-out prompts to measure with.

Training draws conversations without end from a seed: nothing is stored. Held-out samples come from the other
side of a hash split of each sample's key, so no training conversation contains one.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from .kinds import WRITERS, draw
from .sample import Message, Sample, Split
from .words import PERSONAS

MIX: Final[dict[str, float]] = {
    "greeting": 0.06,
    "arithmetic": 0.22,
    "capital": 0.09,
    "count": 0.09,
    "repeat": 0.20,
    "json": 0.14,
    "story": 0.06,
    "inferflux": 0.09,
    "recall": 0.09,
    "unknown": 0.05,
}
"""How often each kind is drawn, relative to the others; the kinds with long answers need fewer samples."""

SYSTEM_MESSAGES: Final = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are the InferFlux demo model.",
    "You are a friendly assistant. Answer briefly.",
    "Answer the questions of the user.",
    "Be brief.",
    "You are a polite and honest assistant for the customers of our company.",
    "You are {persona}, a helpful assistant.",
    "You are {persona}. Help the user with small tasks.",
)


def _with_history(rng: Random, sample: Sample, turns: int, system_share: float) -> Sample:
    """The sample after ``turns`` other exchanges and, sometimes, a system message."""
    if sample.messages[0].role == "system":
        return sample
    messages: tuple[Message, ...] = ()
    if rng.random() < system_share:
        messages = (Message("system", rng.choice(SYSTEM_MESSAGES).format(persona=rng.choice(PERSONAS))),)
    for _ in range(turns):
        kind = rng.choice([kind for kind in MIX if kind not in ("recall", "story")])
        messages += draw(rng, WRITERS[kind], "train").messages
    return Sample(sample.kind, messages + sample.messages, sample.key, sample.mentions)


def conversations(seed: int, long_share: float = 0.05) -> Iterator[Sample]:
    """Training conversations, without end; a ``long_share`` of them has five to thirty turns."""
    rng = Random(seed)
    kinds, weights = list(MIX), list(MIX.values())
    while True:
        kind = rng.choices(kinds, weights)[0]
        sample = draw(rng, WRITERS[kind], "train")
        turns = rng.randint(5, 30) if rng.random() < long_share else rng.choice((0, 0, 0, 0, 1, 2))
        yield _with_history(rng, sample, turns, system_share=0.3)


def held_out(kind: str, count: int, seed: int = 20_000) -> list[Sample]:
    """``count`` different held-out samples of a kind, some with a system message or an earlier exchange."""
    rng = Random(f"{kind}/{seed}")
    found: dict[tuple[Message, ...], Sample] = {}
    split: Split = "held_out"
    while len(found) < count:
        sample = draw(rng, WRITERS[kind], split)
        if sample.messages not in found:
            found[sample.messages] = _with_history(rng, sample, rng.choice((0, 0, 1)), system_share=0.3)
    return list(found.values())
