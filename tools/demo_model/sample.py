"""What a chat sample is, and which side of the train / held-out split it falls on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

Role = Literal["system", "user", "assistant"]
Split = Literal["train", "held_out"]

HELD_OUT_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered to a prompt."""

    text: str
    tokens: int
    ended: bool
    """True when the model ended its turn itself, False when it was cut at the token limit."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A conversation that ends with the wanted answer.

    Attributes:
        kind: The skill the sample exercises.
        messages: Alternating turns, the last one from the assistant.
        key: What the split is decided on: the facts asked about and, where the facts are a closed list, the
            phrasing too.
        mentions: Words a right answer has to contain, for the kinds whose answer is free text.
    """

    kind: str
    messages: tuple[Message, ...]
    key: str
    mentions: tuple[str, ...] = ()

    @property
    def answer(self) -> str:
        return self.messages[-1].content

    @property
    def prompt(self) -> tuple[Message, ...]:
        return self.messages[:-1]

    @property
    def question(self) -> str:
        return self.messages[-2].content

    @property
    def split(self) -> Split:
        """The side this sample belongs to; the same key always gives the same side."""
        digest = hashlib.sha256(f"{self.kind}/{self.key}".encode()).digest()
        return "held_out" if int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32 else "train"


Writer = Callable[[Random], Sample]


def ask(kind: str, question: str, answer: str, key: str, mentions: tuple[str, ...] = ()) -> Sample:
    """A single question and its answer."""
    return Sample(kind, (Message("user", question), Message("assistant", answer)), key, mentions)


def vary(rng: Random, question: str) -> str:
    """The same question as people type it: polite, hurried, or in lower case at the start."""
    is_word = question[1:2].islower()
    if is_word and not question.endswith("?") and rng.random() < 0.2:
        question = f"Please {question[0].lower()}{question[1:]}"
    if is_word and rng.random() < 0.2:
        question = question[0].lower() + question[1:]
    if rng.random() < 0.2:
        question = question.rstrip(".?!")
    return question
