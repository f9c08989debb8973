"""One run of a fleet through joins, leaves, kills, a lost zone and a rush, and what it adds up to."""

from __future__ import annotations

import resource
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.sim.figures import Waits, jain_index, waits, waits_by_class
from inferflux.scheduler.core.lease.ownership import owner_of

from . import demand
from .checks import breaches
from .history import Ask, History, Lead, Moved
from .meter import Meter
from .setup import Fleet, Timeline
from .world import FleetWorld

# After the rush begins, until counters of tenants that were idle before are alike.
_SETTLES_S = 6.0
# Random fleets in which schedulers join and leave.
_DRAWS = 200


@dataclass(frozen=True, slots=True)
class Cost:
    """Calls of cores: microseconds of processor time; `total_s` of all of them."""

    name: str
    calls: int
    p50_us: float
    p99_us: float
    max_us: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Takeover:
    """How long partitions were without a leader, by what ended the last one's lead, in seconds.

    `dispatch` is until the next leader's first batch, `known` until it has all jobs that were there.
    """

    end: str
    leaderless: Waits
    dispatch: Waits
    known: Waits


@dataclass(frozen=True, slots=True)
class Movement:
    """Parts of the models that another scheduler leads when one joins or leaves, over random names."""

    what: str
    schedulers: int
    expected: float
    mean: float
    most: float


@dataclass(frozen=True, slots=True)
class Found:
    """Times are in seconds of simulated time, but for `wall_s` and costs.

    Attributes:
        waits: to the first token, by phase and priority.
        shares: service per second and weight in the rush, by tenant, ÷ the mean.
        zone_pause: of streams that had tokens when their zone was lost, until the next token.
        zone_recomputed: tokens of prompts and answers that were computed again for them.
        busy: by scheduler, processor time of its cores ÷ simulated time that it led something.
        peak_bytes: memory of the whole simulation.
    """

    fleet: Fleet
    requests: int
    batches: int
    simulated_s: float
    breaches: Sequence[str]
    waits: dict[str, dict[str, Waits]]
    shares: dict[str, float]
    takeovers: Sequence[Takeover]
    moves: Sequence[Moved]
    movements: Sequence[Movement]
    costs: Sequence[Cost]
    schedulers: Sequence[Cost]
    busy: dict[str, float]
    zone_pause: Waits
    zone_recomputed: int
    counts: dict[str, int]
    waiting: Sequence[tuple[float, int]] = field(repr=False)
    peak_bytes: int = 0

    @property
    def jain_index(self) -> float | None:
        """Jain's index of the shares; None if nothing was served."""
        return jain_index(self.shares.values()) if self.shares else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"jain_index": self.jain_index}


def run(fleet: Fleet, on_second: Callable[[float], None] = lambda _s: None) -> Found:
    """Let it all happen, and judge it afterwards."""
    times = Timeline.of(fleet)
    world = FleetWorld(fleet, demand.arrive(fleet, times), on_second=on_second)
    _schedule(world, times)
    world.run()
    return _found(world, times)


def _schedule(world: FleetWorld, times: Timeline) -> None:
    """Schedule what happens to schedulers and zones."""
    fleet, at = world.fleet, world.events.at
    names = fleet.scheduler_names
    new = f"scheduler-{len(names)}"
    # None of these is in the zone that is lost, which is the last.
    leaving, killed, rushed = (names[n] for n in (0, 1, 3))
    lost: list[str] = []

    def changes(what: str, do: Callable[..., Any], *arguments: Any) -> None:
        before = set(world.schedulers)
        result = do(*arguments)
        world.history.moves += _moved(fleet, what, before, set(world.schedulers))
        if isinstance(result, list):
            lost[:] = result

    def back() -> None:
        world.bring_back(fleet.zones[-1])
        for name in lost:
            changes(f"{name} is back", world.start_scheduler, name)

    at(times.join_s, changes, f"{new} joins", world.start_scheduler, new)
    at(times.leave_s, changes, f"{leaving} leaves", world.end_scheduler, leaving)
    at(times.kill_s, changes, f"{killed} is killed", world.kill_scheduler, killed)
    at(times.back_s, changes, f"{killed} is back", world.start_scheduler, killed)
    at(times.zone_lost_s, changes, "a zone is lost", world.lose_zone, fleet.zones[-1])
    at(times.zone_back_s, back)
    at(times.rush_kill_s, changes, f"{rushed} is killed", world.kill_scheduler, rushed)
    at(times.rush_back_s, changes, f"{rushed} is back", world.start_scheduler, rushed)


def _moved(fleet: Fleet, what: str, before: set[str], after: set[str]) -> list[Moved]:
    part = moved_part(fleet, tuple(sorted(before)), tuple(sorted(after)))
    return [Moved(what, len(after), part)]


def moved_part(fleet: Fleet, before: tuple[str, ...], after: tuple[str, ...]) -> float:
    """The part of the models whose partition is to be led by another scheduler."""
    moved = sum(
        len(models)
        for partition, models in fleet.models_in.items()
        if owner_of(partition.name, before) != owner_of(partition.name, after)
    )
    return moved / fleet.models


def movements(fleet: Fleet, draws: int = _DRAWS) -> list[Movement]:
    """Over random names, since ten partitions are few to be divided evenly."""
    random = fleet.random("names")
    n = fleet.schedulers
    joins, leaves = [], []
    for _ in range(draws):
        names = tuple(sorted(f"s-{random.getrandbits(40):x}" for _ in range(n + 1)))
        joins.append(moved_part(fleet, names[1:], names))
        leaves.append(moved_part(fleet, names[:n], names[1:n]))
    return [
        Movement("joins", n, 1 / (n + 1), statistics.mean(joins), max(joins)),
        Movement("leaves", n, 1 / n, statistics.mean(leaves), max(leaves)),
    ]


def _found(world: FleetWorld, times: Timeline) -> Found:
    history, fleet = world.history, world.fleet
    cut = [ask for ask in history.asks if ask.pause_s is not None]
    led_s = _led_s(history.leads, world.now)
    meter = world.meter
    return Found(
        fleet=fleet,
        requests=len(history.asks),
        batches=len(history.dispatches),
        simulated_s=world.now - times.start_s,
        breaches=breaches(history),
        waits={name: waits_by_class(asks) for name, asks in _by_phase(history.asks, times)},
        shares=_shares(history, fleet, times),
        takeovers=_takeovers(history.leads),
        moves=history.moves,
        movements=movements(fleet),
        costs=[*(_cost(what, meter, what=what) for what in meter.kinds), _cost("all", meter)],
        schedulers=[_cost(name, meter, scheduler=name) for name in meter.schedulers],
        busy={
            name: meter.of(scheduler=name).total_s / led_s[name] if led_s.get(name) else 0.0
            for name in meter.schedulers
        },
        zone_pause=waits(ask.pause_s for ask in cut if ask.pause_s is not None),
        zone_recomputed=sum(ask.recomputed for ask in cut),
        counts=dict(sorted(history.counts.items())),
        waiting=history.waiting,
        peak_bytes=_peak_bytes(),
    )


def _by_phase(asks: Sequence[Ask], times: Timeline) -> Iterable[tuple[str, list[Ask]]]:
    """By when they came."""
    phases = (
        ("schedulers come and go", times.start_s, times.zone_lost_s),
        ("a zone is lost", times.zone_lost_s, times.zone_back_s),
        ("it is back", times.zone_back_s, times.rush_s),
        ("a rush", times.rush_s, times.rush_end_s),
    )
    for name, from_s, until_s in phases:
        yield name, [ask for ask in asks if from_s <= ask.at_s < until_s]


def _shares(history: History, fleet: Fleet, times: Timeline) -> dict[str, float]:
    """Shares of the tenants that ask for more than their share in the rush, once their counters are alike."""
    totals: Counter[str] = Counter()
    for span in history.served:
        if times.rush_s + _SETTLES_S <= span.at_s <= times.rush_end_s:
            totals.update(span.tokens)
    rates = {tenant: totals[tenant] / weight for tenant, weight in demand.weights(fleet).items()}
    mean = statistics.mean(rates.values())
    return {tenant: rate / mean for tenant, rate in rates.items()} if mean else {}


def _takeovers(leads: Sequence[Lead]) -> list[Takeover]:
    by_partition: dict[str, list[Lead]] = {}
    for lead in sorted(leads, key=lambda one: one.from_s):
        by_partition.setdefault(lead.partition.name, []).append(lead)
    by_end: dict[str, list[tuple[Lead, Lead]]] = {}
    for in_order in by_partition.values():
        for before, after in pairwise(in_order):
            by_end.setdefault(before.end, []).append((before, after))
    return [
        Takeover(
            end,
            leaderless=waits(after.from_s - (before.to_s or 0.0) for before, after in pairs),
            dispatch=waits(after.sent_s - (before.to_s or 0.0) for before, after in pairs if after.sent_s),
            known=waits(after.known_s - (before.to_s or 0.0) for before, after in pairs if after.known_s),
        )
        for end, pairs in sorted(by_end.items())
    ]


def _led_s(leads: Sequence[Lead], now: float) -> dict[str, float]:
    """How long each scheduler led at least one partition."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for lead in leads:
        spans.setdefault(lead.scheduler, []).append((lead.from_s, now if lead.to_s is None else lead.to_s))
    return {name: _covered_s(of_one) for name, of_one in spans.items()}


def _covered_s(spans: list[tuple[float, float]]) -> float:
    covered, until_s = 0.0, 0.0
    for from_s, to_s in sorted(spans):
        covered += max(0.0, to_s - max(from_s, until_s))
        until_s = max(until_s, to_s)
    return covered


def _cost(name: str, meter: Meter, *, scheduler: str = "", what: str = "") -> Cost:
    costs = meter.of(scheduler=scheduler, what=what)
    p50, p99, most = (costs.quantile_us(quantile) for quantile in (0.5, 0.99, 1.0))
    return Cost(name, len(costs), p50, p99, most, costs.total_s)


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
