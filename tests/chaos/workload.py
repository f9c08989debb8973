"""What the clients ask (pure): the same seed, the same requests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

# Start and end of countdowns that the demo model knows by heart: 20 to 110 tokens.
PROMPTS = ((30, 1), (28, 2), (24, 1), (20, 5), (17, 1), (12, 1), (9, 3))


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

    @property
    def text(self) -> str:
        """What the demo model answers."""
        return countdown_text(self.start, self.end)


def countdown_text(start: int, end: int) -> str:
    return ", ".join(str(number) for number in range(start, end - 1, -1)) + "."


def orders(seed: int, stream: int, *, tenants: int) -> Iterator[Order]:
    """What one client asks, one after the other, for ever."""
    rng = random.Random(f"{seed}/stream {stream}")
    number = 0
    while True:
        whim = rng.choices(list(Whim), (85, 9, 6))[0]
        start, end = rng.choice(PROMPTS)
        yield Order(
            request_id=f"chaos-{seed}-{stream}-{number}",
            start=start,
            end=end,
            priority=rng.choice((0, 0, 0, 1, 2, 3, 4, 5, 7, 9)),
            tenant=rng.randrange(tenants),
            whim=whim,
            whim_after=-1 if whim is Whim.NONE else rng.choice((-1, 0, 1, 5, 20, 35)),
        )
        number += 1
