"""What a chat sample is, and which side of the train / held-out split it falls on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from .toolbox import NO_TOOLS, Toolbox

Role = Literal["system", "user", "assistant", "tool"]
Split = Literal["train", "held_out"]

HELD_OUT_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Attributes:
        calls: The tool calls of an assistant's message, each as the JSON that stands in its tags.
    """

    role: Role
    content: str
    calls: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What the message says, calls included, as the model reads and writes it."""
        called = [f"<tool_call>\n{call}\n</tool_call>" for call in self.calls]
        return "\n".join((*((self.content,) if self.content or not called else ()), *called))


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
        tools: The tools that the system message defines.
        topic: The kind whose split decides, where the question is another kind's too.
    """

    kind: str
    messages: tuple[Message, ...]
    key: str
    mentions: tuple[str, ...] = ()
    tools: Toolbox = NO_TOOLS
    topic: str = ""

    @property
    def answer(self) -> str:
        return self.messages[-1].text

    @property
    def prompt(self) -> tuple[Message, ...]:
        return self.messages[:-1]

    @property
    def question(self) -> str:
        """What the user asked last."""
        return next(message.content for message in reversed(self.messages) if message.role == "user")

    @property
    def split(self) -> Split:
        """The side this sample belongs to; the same key always gives the same side."""
        return split_of(self.topic or self.kind, self.key)


def split_of(topic: str, key: str) -> Split:
    """The side that a question of this kind with this key is on."""
    digest = hashlib.sha256(f"{topic}/{key}".encode()).digest()
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
        question = question.rstrip(".?! ")
    return question
