"""What a run tries: a load, faults, and what may come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .asks import Wants
from .faults import PRIMARY, Fault, Verb, parse, plan, plan_of_state
from .layout import NATS
from .wire import Quality

CHAOS = "chaos"
CLOCKS = "clocks"
CALM = "calm"
ROLES = "roles"
# The network that chaos runs over.
POOR = Quality(delay_s=0.02, jitter_s=0.01, loss=0.01, reorder=0.01)
# What begins and ends a case: its hosts start again, its streams end, all is settled.
_AROUND_S = 420.0
# Minutes apart, and each side of the truth.
_CLOCKS = {
    "gateway-1": 300.0,
    "scheduler-0": -240.0,
    "scheduler-1": 180.0,
    "worker-1": -420.0,
    "worker-2": 600.0,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One load with its faults.

    Attributes:
        seconds: how long requests begin at least; with faults, until 3 s after the last one.
        streams: requests under way at any time.
        may_refuse: whether requests may end UNAVAILABLE before anything of them has come.
        comes_back: whether clients resume streams that have failed.
        retries: how often a client sends a refused request again.
        clocks: by host, seconds that its clock is ahead.
    """

    name: str
    faults: tuple[Fault, ...] = ()
    seconds: float = 0.0
    streams: int = 12
    wants: Wants = field(default_factory=Wants)
    quality: Quality = field(default_factory=Quality)
    may_refuse: bool = False
    comes_back: bool = False
    retries: int = 2
    clocks: Mapping[str, float] = field(default_factory=dict)

    @property
    def limit_s(self) -> float:
        """Longest that it may take, with all that it waits for afterwards."""
        last_s = max((fault.at_s + fault.lasts_s for fault in self.faults), default=0.0)
        return max(self.seconds, last_s) + _AROUND_S


def case_of(text: str, *, seed: int, seconds: float, lasts_s: float, streams: int) -> Case:
    """The case that a word of the command line asks for: `calm`, `clocks`, `chaos`, `roles`, or a fault.

    Raises:
        ValueError: it asks for none.
    """
    if text == CALM:
        return Case(text, seconds=seconds, streams=streams)
    if text == CLOCKS:
        wants = Wants(timeout_s=30.0, short_timeout_s=3.0, fewest=20, most=120)
        return Case(text, seconds=seconds, streams=streams, wants=wants, clocks=_CLOCKS)
    if text == CHAOS:
        return Case(
            text,
            faults=tuple(plan(seed, seconds)),
            seconds=seconds,
            streams=streams,
            wants=Wants(has_whims=True),
            quality=POOR,
            retries=40,
        )
    if text == ROLES:
        return Case(
            text,
            faults=tuple(plan_of_state(seed, seconds)),
            seconds=seconds,
            streams=streams,
            wants=Wants(has_whims=True, is_countdown=True),
            quality=POOR,
            retries=40,
        )
    fault = parse(text, lasts_s)
    # Without a majority of NATS, nothing new is accepted.
    is_majority = sum(target in NATS for target in fault.targets) > 1
    # Until another primary is elected, nothing is admitted.
    is_store = PRIMARY in fault.targets
    return Case(
        text,
        faults=(fault,),
        streams=streams,
        may_refuse=is_majority or is_store,
        comes_back=is_majority,
    )


__all__ = ["CALM", "CHAOS", "CLOCKS", "POOR", "ROLES", "Case", "Verb", "case_of"]
