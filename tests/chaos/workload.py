"""What the clients ask (pure): the same seed, the same requests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

# Start and end of countdowns that the demo model knows by heart: 20 to 110 tokens.
PROMPTS = ((30, 1), (28, 2), (24, 1), (20, 5), (17, 1), (12, 1), (9, 3))
# (turns before, start, end) of those that it knows after others: prompts of 400 to 1,350 tokens.
LONG_PROMPTS = (
    (4, 20, 5),
    (4, 12, 1),
    (4, 9, 3),
    (6, 28, 2),
    (6, 20, 5),
    (6, 12, 1),
    (8, 28, 2),
    (8, 24, 1),
    (8, 20, 5),
    (8, 9, 3),
    (10, 24, 1),
    (10, 17, 1),
    (10, 9, 3),
    (12, 24, 1),
    (12, 12, 1),
)
_SHARE_LONG = 0.75


class Whim(Enum):
    """What a client does beside listening."""

    NONE = "none"
    # Cancel by the RPC.
    CANCEL = "cancel"
    # Close the stream and never come back.
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Order:
    """One request.

    Attributes:
        turns: countdowns that were asked for and answered before.
        tenant: index of the API key.
        whim_after: tokens that must have come before the whim; -1 for at once.
    """

    request_id: str
    start: int
    end: int
    priority: int
    tenant: int
    whim: Whim = Whim.NONE
    whim_after: int = -1
    turns: int = 0

    @property
    def text(self) -> str:
        """What the demo model answers."""
        return countdown_text(self.start, self.end)


def question(start: int, end: int) -> str:
    return f"Count down from {start} to {end}."


def countdown_text(start: int, end: int) -> str:
    return ", ".join(str(number) for number in range(start, end - 1, -1)) + "."


def turns_before(n: int, start: int) -> list[tuple[int, int]]:
    """Start and end of the countdowns of a conversation of `n` turns that goes on with one from `start`."""
    rng = random.Random(f"{n}{start}")
    return [(rng.randrange(20, 31), rng.randrange(1, 6)) for _ in range(n)]


def orders(seed: int, stream: int, *, tenants: int, has_long: bool = False) -> Iterator[Order]:
    """What one client asks, one after the other, for ever.

    Args:
        has_long: whether three of four prompts are long ones.
    """
    rng = random.Random(f"{seed}/stream {stream}")
    number = 0
    while True:
        whim = rng.choices(list(Whim), (85, 9, 6))[0]
        turns, (start, end) = 0, rng.choice(PROMPTS)
        if has_long and rng.random() < _SHARE_LONG:
            turns, start, end = rng.choice(LONG_PROMPTS)
        yield Order(
            request_id=f"chaos-{seed}-{stream}-{number}",
            start=start,
            end=end,
            priority=rng.choice((0, 0, 0, 1, 2, 3, 4, 5, 7, 9)),
            tenant=rng.randrange(tenants),
            whim=whim,
            whim_after=-1 if whim is Whim.NONE else rng.choice((-1, 0, 1, 5, 20, 35)),
            turns=turns,
        )
        number += 1
