"""What clients ask, and what the answer is (pure): the same seed, the same requests.

Null engines answer with what follows from a number, the demo model with countdowns that it knows by heart.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from chaos.workload import Whim, countdown_text, orders, question, turns_before
from harness.sure import answer_tokens, chat_tokens

from inferflux.v1 import generation_pb2
from inferflux.worker.null.answers import answer_text, token_at

_WHIMS = (85, 9, 6)
_PRIORITIES = (0, 0, 0, 1, 2, 3, 5, 9)
_PROMPT = list(range(10, 26))


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        number: of its seed; the answer follows from it.
        n_tokens: of the answer.
        timeout_s: its deadline; None for none.
        is_due: whether it must end before its deadline. One that cannot must end by it.
        whim_after: tokens that must have come before the whim; -1 for at once.
    """

    request_id: str
    number: int
    n_tokens: int
    vocabulary_size: int
    priority: int = 0
    timeout_s: float | None = None
    is_due: bool = True
    whim: Whim = Whim.NONE
    whim_after: int = -1

    @property
    def prompt(self) -> list[int]:
        return _PROMPT

    @property
    def params(self) -> dict[str, Any]:
        """Beside the prompt, as the client takes them."""
        return {"max_tokens": self.n_tokens, "seed": self.number, "ignore_eos": True, "temperature": 1.0}

    @property
    def good_end(self) -> generation_pb2.FinishReason.ValueType:
        """How a whole answer ends."""
        return generation_pb2.FINISH_REASON_LENGTH

    @property
    def text(self) -> str:
        return answer_text(self.number, self.n_tokens, self.vocabulary_size)

    @property
    def token_ids(self) -> list[int]:
        return [token_at(self.number, index, self.vocabulary_size) for index in range(self.n_tokens)]


@dataclass(frozen=True, slots=True)
class Countdown:
    """One request to the demo model; its attributes are as those of `Ask`."""

    request_id: str
    prompt: list[int]
    text: str
    token_ids: list[int]
    priority: int
    whim: Whim
    whim_after: int
    timeout_s: float | None = None
    is_due: bool = True

    @property
    def n_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def params(self) -> dict[str, Any]:
        return {"max_tokens": 300, "temperature": 0.0}

    @property
    def good_end(self) -> generation_pb2.FinishReason.ValueType:
        return generation_pb2.FINISH_REASON_STOP


Asked = Ask | Countdown


@dataclass(frozen=True, slots=True)
class Wants:
    """What requests of a load are like.

    Attributes:
        fewest, most: tokens of an answer.
        has_whims: whether some clients cancel or leave.
        is_countdown: whether they are for the demo model, with long prompts.
        timeout_s: deadline that all have time for; None for none.
        short_timeout_s: deadline that every fourth request gets instead, and cannot keep; None: none does.
    """

    fewest: int = 40
    most: int = 160
    has_whims: bool = False
    is_countdown: bool = False
    timeout_s: float | None = None
    short_timeout_s: float | None = None


def asks(name: str, seed: int, stream: int, wants: Wants, vocabulary_size: int) -> Iterator[Ask]:
    """What one client asks, one after the other, for ever."""
    rng = random.Random(f"{seed}/{name}/stream {stream}")
    number = 0
    while True:
        whim = rng.choices(list(Whim), _WHIMS)[0] if wants.has_whims else Whim.NONE
        is_short = wants.short_timeout_s is not None and number % 4 == 3
        yield Ask(
            request_id=f"{name}-{seed}-{stream}-{number}",
            number=rng.randrange(1, 1 << 31),
            n_tokens=wants.most if is_short else rng.randint(wants.fewest, wants.most),
            vocabulary_size=vocabulary_size,
            priority=rng.choice(_PRIORITIES),
            timeout_s=wants.short_timeout_s if is_short else wants.timeout_s,
            is_due=not is_short,
            whim=whim,
            whim_after=-1 if whim is Whim.NONE else rng.choice((-1, 0, 1, 5, 20, 35)),
        )
        number += 1


def countdowns(name: str, seed: int, stream: int) -> Iterator[Countdown]:
    """What one client asks of the demo model, one after the other, for ever."""
    for order in orders(seed, stream, tenants=1, has_long=True):
        turns = turns_before(order.turns, order.start)
        said = [text for start, end in turns for text in (question(start, end), countdown_text(start, end))]
        yield Countdown(
            request_id=f"{name}-{order.request_id}",
            prompt=chat_tokens(*said, question(order.start, order.end)),
            text=order.text,
            token_ids=answer_tokens(order.text),
            priority=order.priority,
            whim=order.whim,
            whim_after=order.whim_after,
        )
