"""Requests to a fleet: by whom, of which model, from which zone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from benchmarks.sim.traffic import Class, make_arrival

from .history import Ask
from .setup import Fleet, Timeline

URGENT = 9
CLASSES = (
    Class(0, 0.7, prompt_tokens=256, output_tokens=256),
    Class(5, 0.2, prompt_tokens=256, output_tokens=256),
    Class(URGENT, 0.1, prompt_tokens=128, output_tokens=128),
)
_LONGEST_TOKENS = 1024

WIDE = {"wide-1": 1.0, "wide-2": 2.0}
"""Tenants that ask for models of all partitions, and their weights."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests of some time: each part of the load is one of what all workers can do.

    Attributes:
        local: of the tenants that ask for models of one partition each, together.
        wide: of each tenant that asks for all models.
        small: of many tenants that ask for little.
    """

    from_s: float
    until_s: float
    local: float
    wide: Mapping[str, float]
    small: float

    @property
    def load(self) -> float:
        return self.local + sum(self.wide.values()) + self.small


def phases(times: Timeline) -> Sequence[Phase]:
    """Enough for all but the loss of a zone; in the rush those who want more than their share all wait."""
    calm = (0.25, {"wide-1": 0.1, "wide-2": 0.15}, 0.2)
    rush = (1.0, {"wide-1": 0.2, "wide-2": 0.3}, 0.1)
    return (
        Phase(times.start_s, times.rush_s, *calm),
        Phase(times.rush_s, times.rush_end_s, *rush),
        Phase(times.rush_end_s, times.end_s, *calm),
    )


def weights(fleet: Fleet) -> dict[str, float]:
    """Weights of the tenants that want more than their share in the rush."""
    return {local_of(partition.index): 1.0 for partition in fleet.models_in} | WIDE


def local_of(partition: int) -> str:
    """The tenant that asks for models of this partition alone."""
    return f"local-{partition}"


def capacity_per_s(fleet: Fleet) -> float:
    """Requests that all workers can serve in a second."""
    service_s = sum(c.share * fleet.worker.service_s(c.prompt_tokens, c.output_tokens) for c in CLASSES)
    return fleet.workers / service_s


def arrive(fleet: Fleet, times: Timeline) -> Iterator[Ask]:
    """All requests, in order of time. Models are asked for as they have workers."""
    random = fleet.random("demand")
    models = list(fleet.workers_of)
    bounds = list(accumulate(fleet.workers_of.values()))
    shares = [kind.share for kind in CLASSES]
    number = 0
    for phase in phases(times):
        now = phase.from_s
        while (now := now + random.expovariate(phase.load * capacity_per_s(fleet))) < phase.until_s:
            model = random.choices(models, cum_weights=bounds)[0]
            kind = random.choices(CLASSES, shares)[0]
            tenant = _tenant(fleet, phase, model, random)
            drawn = make_arrival(f"r{number}", kind, random, tenant=tenant, at_s=now, longest=_LONGEST_TOKENS)
            number += 1
            yield Ask(
                name=drawn.name,
                tenant=tenant,
                priority=drawn.priority,
                at_s=now,
                prompt_tokens=drawn.prompt_tokens,
                output_tokens=drawn.output_tokens,
                max_tokens=drawn.max_tokens,
                zone=random.choice(fleet.zones),
                model=model,
                partition=fleet.partition_of(model),
            )


def _tenant(fleet: Fleet, phase: Phase, model: str, random: Random) -> str:
    drawn = random.random() * phase.load
    if (drawn := drawn - phase.local) < 0:
        return local_of(fleet.partition_of(model).index)
    for name, part in phase.wide.items():
        if (drawn := drawn - part) < 0:
            return name
    return f"small-{random.randrange(fleet.small_tenants)}"
