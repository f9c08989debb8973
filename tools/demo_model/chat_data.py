"""Conversations to train on, and the held-out prompts to measure with.

Training draws conversations without end from a seed: nothing is stored. Held-out samples come from the other
side of a hash split of each sample's key, so no training conversation contains one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Final

from .kinds import WRITERS, draw
from .sample import Message, Sample, Split, Writer
from .tool_kinds import TOOL_WRITERS, draw_aside
from .tool_tasks import exchange
from .toolbox import NO_TOOLS, Toolbox, draw_toolbox
from .words import PERSONAS

KINDS: Final[dict[str, Writer]] = {**WRITERS, **TOOL_WRITERS}
"""All that the models are asked."""

MIX: Final[dict[str, float]] = {
    "greeting": 0.06,
    "arithmetic": 0.30,
    "capital": 0.09,
    "count": 0.16,
    "repeat": 0.20,
    "json": 0.14,
    "story": 0.06,
    "inferflux": 0.09,
    "recall": 0.09,
    "unknown": 0.05,
}
"""How often each kind without tools is drawn, relative to the others; long answers need fewer samples."""

ASIDE_SHARE: Final = 0.35
"""Part of the questions that need no tool, among those of a conversation that has tools for others."""

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


def _system(rng: Random) -> tuple[Message, ...]:
    return (Message("system", rng.choice(SYSTEM_MESSAGES).format(persona=rng.choice(PERSONAS))),)


def _exchange(rng: Random, tools: Toolbox) -> tuple[Message, ...]:
    """A question and its answer, with what was called between them."""
    if tools is NO_TOOLS:
        kind = rng.choice([kind for kind in MIX if kind not in ("recall", "story")])
        return draw(rng, WRITERS[kind], "train").messages
    if not (tools.calculator or tools.weather) or rng.random() < ASIDE_SHARE:
        return draw_aside(rng, tools, "train").messages
    return exchange(rng, tools, "train")


def _with_history(rng: Random, sample: Sample, turns: int, system_share: float) -> Sample:
    """The sample after ``turns`` other exchanges and, sometimes, a system message."""
    if sample.messages[0].role == "system":
        return sample
    messages = _system(rng) if rng.random() < system_share else ()
    for _ in range(turns):
        messages += _exchange(rng, sample.tools)
    return replace(sample, messages=messages + sample.messages)


def conversation_with_tools(rng: Random) -> Sample:
    """One to six exchanges about the same tools, for training."""
    tools = draw_toolbox(rng)
    messages = _system(rng) if rng.random() < 0.4 else ()
    for _ in range(rng.choice((1, 2, 3, 4, 6))):
        messages += _exchange(rng, tools)
    return Sample("tools", messages, "", tools=tools)


def conversations(seed: int, long_share: float = 0.05, tools_share: float = 0.3) -> Iterator[Sample]:
    """Training conversations, without end.

    A ``long_share`` of those without tools has five to thirty turns; a ``tools_share`` of all has tools.
    """
    rng = Random(seed)
    kinds, weights = list(MIX), list(MIX.values())
    while True:
        if rng.random() < tools_share:
            yield conversation_with_tools(rng)
            continue
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
        sample = draw(rng, KINDS[kind], split)
        if sample.messages not in found:
            found[sample.messages] = _with_history(rng, sample, rng.choice((0, 0, 1)), system_share=0.3)
    return list(found.values())
