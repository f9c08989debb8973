"""Arrivals: when, from whom, how urgent and how long. The same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

Arrivals = Literal["poisson", "bursty"]

# Bursty: on for a fifth of each period, at four times the mean rate.
_BURST_PERIOD_S = 10.0
_BURST_SHARE = 0.2
_BURST_FACTOR = 4.0
_QUIET_FACTOR = (1 - _BURST_SHARE * _BURST_FACTOR) / (1 - _BURST_SHARE)

# Spread of the logarithm of lengths.
_SIGMA = 0.6


@dataclass(frozen=True, slots=True)
class Class:
    """Requests of one priority (higher is more urgent) and their mean lengths in tokens."""

    priority: int
    share: float
    prompt_tokens: int = 128
    output_tokens: int = 64


@dataclass(frozen=True, slots=True)
class Tenant:
    """`share` of the requests come from it; `weight` is what it is to be served, against others."""

    name: str
    share: float
    weight: float = 1.0


MIXED = (Class(0, 0.6), Class(5, 0.3), Class(9, 0.1, prompt_tokens=64, output_tokens=32))
# One tenant sends ten times what another does.
UNEQUAL = (Tenant("heavy", 10.0), Tenant("light", 1.0))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests that come for `duration_s` simulated seconds, `rate_per_s` of them on average."""

    rate_per_s: float
    duration_s: float
    arrivals: Arrivals = "poisson"
    classes: tuple[Class, ...] = MIXED
    tenants: tuple[Tenant, ...] = UNEQUAL
    longest_tokens: int = 2048

    @property
    def weights(self) -> Mapping[str, float]:
        return {tenant.name: tenant.weight for tenant in self.tenants}


@dataclass(slots=True)
class Arrival:
    """A request as its client sends it, and what becomes of it. Times in seconds of simulated time.

    `output_tokens` is what the model will have to say, which only the worker finds out; `max_tokens` is
    the bound that the client sets.
    """

    name: str
    tenant: str
    priority: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    placed_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    outcome: str = ""
    generated: int = 0
    epoch: int = 0
    # What the prompt and, behind it, the answer consist of; None where it does not matter.
    tokens: Sequence[int] | None = None
    # Prompt tokens that its worker had cached, and which worker that was.
    cached: int = 0
    worker_id: str = ""
    # Of its gateway.
    zone: str = ""
    # Empty: the one that there is.
    model: str = ""

    @property
    def wait_s(self) -> float | None:
        """Until a worker had it for the first time."""
        return None if self.placed_s is None else self.placed_s - self.at_s

    @property
    def first_token_wait_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.at_s


def arrive(traffic: Traffic, random: Random, *, start_s: float = 0.0) -> Iterator[Arrival]:
    """The requests, in order of time."""
    shares = [tenant.share for tenant in traffic.tenants]
    class_shares = [one.share for one in traffic.classes]
    for number, at_s in enumerate(_times(traffic, random)):
        tenant = random.choices(traffic.tenants, shares)[0]
        kind = random.choices(traffic.classes, class_shares)[0]
        yield make_arrival(
            f"r{number}",
            kind,
            random,
            tenant=tenant.name,
            at_s=start_s + at_s,
            longest=traffic.longest_tokens,
        )


def make_arrival(
    name: str, kind: Class, random: Random, *, tenant: str, at_s: float, longest: int = 2048
) -> Arrival:
    """One request with lengths drawn around the means of its class."""
    output = length(kind.output_tokens, random, longest)
    return Arrival(
        name=name,
        tenant=tenant,
        priority=kind.priority,
        at_s=at_s,
        prompt_tokens=length(kind.prompt_tokens, random, longest),
        output_tokens=output,
        max_tokens=math.ceil(output * random.uniform(1.0, 2.0)),
    )


def length(mean: int, random: Random, longest: int) -> int:
    """Log-normal with this mean: a few are several times as long."""
    drawn = random.lognormvariate(math.log(mean) - _SIGMA**2 / 2, _SIGMA)
    return min(max(1, round(drawn)), longest)


def _times(traffic: Traffic, random: Random) -> Iterator[float]:
    """A Poisson process, of a constant rate or one that goes up and down (by thinning: Lewis and Shedler,
    1979)."""
    factor: Callable[[float], float]
    factor, highest = (_burst, _BURST_FACTOR) if traffic.arrivals == "bursty" else (_steady, 1.0)
    now = 0.0
    while True:
        now += random.expovariate(traffic.rate_per_s * highest)
        if now >= traffic.duration_s:
            return
        if highest == 1.0 or random.random() * highest < factor(now):
            yield now


def _steady(_at_s: float) -> float:
    return 1.0


def _burst(at_s: float) -> float:
    is_on = at_s % _BURST_PERIOD_S < _BURST_PERIOD_S * _BURST_SHARE
    return _BURST_FACTOR if is_on else _QUIET_FACTOR
