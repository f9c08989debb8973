"""The questions asked of the scheduler, each answered by simulated runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import get_args

from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.order.queue_policies import PolicyName

from .conversations import Conversation
from .figures import Waits, fit_exponent, jain_index, service_rates, waits, waits_by_class
from .scale import Cost, Pass, costs, one_pass
from .traffic import UNEQUAL, Arrival, Arrivals, Class, Tenant, Traffic, arrive, make_arrival
from .worker import WorkerModel
from .world import START_S, Setup, World

POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)

# Times `Scope.duration_s`.
_OVERLOAD_LASTS = 5

# Eight slots, memory for all of them at once and for some that are parked.
SMALL = WorkerModel(slots=8, sequences=16, kv_cells=8192)

# The highest that is not urgent is HIGH.
ORDINARY, HIGH, URGENT = 0, 4, 9


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is simulated."""

    policies: tuple[PolicyName, ...] = POLICIES
    arrivals: Arrivals = "poisson"
    seed: int = 1
    duration_s: float = 60.0
    # Workers where waiting times are looked at.
    cluster: int = 8
    # How often the same is done with other draws, where urgent requests are few.
    replicas: int = 8
    workers: int = 1000
    queued: int = 100_000
    # Queue lengths at which the cost of decisions is measured; none is longer than `queued`.
    lengths: tuple[int, ...] = (1000, 3000, 10_000, 30_000, 100_000)
    rounds: int = 25

    def random(self, study: str) -> Random:
        """Every run of a study draws the same."""
        return Random(f"{self.seed} {study}")


QUICK = Scope(
    duration_s=8.0, cluster=2, replicas=1, workers=40, queued=2000, lengths=(500, 1000, 2000), rounds=3
)


# Whether urgent requests take the place of others, which then have timeslices


@dataclass(frozen=True, slots=True)
class FairnessMode:
    name: str
    settings: FairnessSettings


MODES = (
    FairnessMode("off", FairnessSettings()),
    FairnessMode("on", FairnessSettings(enable_preemption=True)),
    FairnessMode("on, slices of 32", FairnessSettings(enable_preemption=True, max_timeslice_tokens=32)),
)


# Waiting and fairness, by policy


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """`waits` by class, to the first token; `rates` of service per second and weight, by tenant, while both
    had requests waiting."""

    policy: PolicyName
    waits: dict[str, Waits]
    requests: int
    tokens_per_s: float
    rates: dict[str, float]

    @property
    def jain_index(self) -> float:
        return jain_index(self.rates.values())

    @property
    def served_ratio(self) -> float:
        """Service of the tenant that sends more, per weight, ÷ that of the other."""
        return self.rates["heavy"] / self.rates["light"]


def compare_policy(policy: PolicyName, scope: Scope) -> PolicyResult:
    """Mixed traffic just below what the workers can do, for the waits; and far above, for the shares."""
    setup = Setup(workers=scope.cluster, model=SMALL, policy=policy)
    mixed = Traffic(_rate(setup, 0.95), scope.duration_s, scope.arrivals)
    world = World(setup, arrive(mixed, scope.random("mixed"), start_s=START_S)).run()
    return PolicyResult(
        policy=policy,
        waits=waits_by_class(world.requests.values()),
        requests=len(world.requests),
        tokens_per_s=_tokens_per_s(world),
        rates=overload(policy, UNEQUAL, scope),
    )


def overload(policy: PolicyName, tenants: tuple[Tenant, ...], scope: Scope) -> dict[str, float]:
    """How two tenants are served, one of which sends ten times as much, when each alone wants more than its
    share: service per second and weight."""
    traffic = Traffic(1.0, scope.duration_s, scope.arrivals, tenants=tenants)
    setup = Setup(workers=2, model=SMALL, policy=policy, weights=traffic.weights)
    traffic = replace(traffic, rate_per_s=_rate(setup, 8.0))
    world = World(setup, arrive(traffic, scope.random("overload"), start_s=START_S)).run()
    return service_rates(world.served, traffic.weights)


# A flood


@dataclass(frozen=True, slots=True)
class Flood:
    """A tenant sends a hundred requests at once, and another tenant one a second later.

    `other_wait_s` is until the other's first token; `tokens_per_s` counts all requests.
    """

    policy: PolicyName
    other_wait_s: float
    tokens_per_s: float


def flood(policy: PolicyName, scope: Scope) -> Flood:
    model = WorkerModel(slots=16, sequences=32, kv_cells=16384)
    random = scope.random("flood")
    many = [
        make_arrival(f"f{n}", Class(ORDINARY, 1.0, output_tokens=128), random, tenant="heavy", at_s=START_S)
        for n in range(100)
    ]
    other = make_arrival(
        "other", Class(ORDINARY, 1.0, output_tokens=16), random, tenant="light", at_s=START_S + 1.0
    )
    world = World(Setup(model=model, policy=policy), [*many, other]).run()
    return Flood(policy, other.first_token_wait_s or 0.0, _tokens_per_s(world))


# Starvation


@dataclass(frozen=True, slots=True)
class Starvation:
    """A request of priority 0 in a stream of priority 4 that the workers cannot keep up with.

    `overtaken_s` is how much later the latest of those came that got a place before it, and must not be more
    than `bound_s`.
    """

    mode: FairnessMode
    waited_s: float
    took_s: float
    overtaken_s: float
    bound_s: float

    @property
    def is_kept(self) -> bool:
        return self.overtaken_s <= self.bound_s


def starvation(mode: FairnessMode, scope: Scope) -> Starvation:
    setup = Setup(workers=1, model=SMALL, policy="priority", fairness=mode.settings)
    random = scope.random("starvation")
    stream = (Class(HIGH, 1.0),)
    patience_s = (HIGH - ORDINARY) * setup.aging_s
    one_tenant = (Tenant("light", 1.0),)  # others would go before it, or it before them
    rate = _rate(setup, 2.0, stream)
    traffic = Traffic(rate, 8 * patience_s, scope.arrivals, classes=stream, tenants=one_tenant)
    low = make_arrival("low", Class(ORDINARY, 1.0), random, tenant="light", at_s=START_S + 2 * patience_s)
    world = World(setup, _merge(arrive(traffic, random, start_s=START_S), [low])).run()
    overtaking = world.order[: world.order.index(low)]
    return Starvation(
        mode=mode,
        waited_s=low.wait_s or 0.0,
        took_s=(low.ended_s or 0.0) - low.at_s,
        overtaken_s=max([0.0, *(arrival.at_s - low.at_s for arrival in overtaking)]),
        bound_s=patience_s,
    )


# Preemption and timeslices


@dataclass(frozen=True, slots=True)
class ModeResult:
    """One in ten requests is urgent, and all are more than the worker can do.

    `waits` are to the first token, `whole` to the end. `ordinary_per_s` is what ordinary requests were
    served, in prompt tokens per second; `cluster_per_s` the same of several workers behind one queue, where
    `moved` requests went on with another worker. `first_token_ratio` is the time to the first token of an
    urgent request behind 8 running and 32 queued ones ÷ the same alone.
    """

    mode: FairnessMode
    waits: dict[str, Waits]
    whole: dict[str, Waits]
    ordinary_per_s: float
    cluster_per_s: float
    moved: int
    preempted: int
    sliced: int
    swapped: int
    first_token_ratio: float


def compare_mode(mode: FairnessMode, scope: Scope) -> ModeResult:
    """One worker, several times, so that there are enough urgent requests to speak of."""
    worlds = [_urgent_tenth(mode, 1, scope, replica) for replica in range(scope.replicas)]
    cluster = _urgent_tenth(mode, scope.cluster, scope, 0)
    done = [arrival for world in worlds for arrival in world.requests.values()]
    counts = sum((Counter(world.counts) for world in worlds), Counter[str]())
    return ModeResult(
        mode=mode,
        waits=waits_by_class(done),
        whole={
            str(priority): waits(a.ended_s - a.at_s for a in done if a.priority == priority and a.ended_s)
            for priority in (URGENT, ORDINARY)
        },
        ordinary_per_s=sum(_ordinary_per_s(world, scope) for world in worlds) / len(worlds),
        cluster_per_s=_ordinary_per_s(cluster, scope),
        moved=cluster.counts["retry_moved"],
        preempted=counts["yield_preempted"],
        sliced=counts["yield_timeslice"],
        swapped=sum(worker.swaps for world in worlds for worker in world.workers.values()),
        first_token_ratio=first_token_ratio(mode.settings, scope),
    )


def _urgent_tenth(mode: FairnessMode, workers: int, scope: Scope, replica: int) -> World:
    setup = Setup(workers=workers, model=SMALL, fairness=mode.settings)
    classes = (Class(ORDINARY, 0.9), Class(URGENT, 0.1))
    traffic = Traffic(_rate(setup, 1.15, classes), scope.duration_s, scope.arrivals, classes=classes)
    arrivals = arrive(traffic, scope.random(f"preemption {replica}"), start_s=START_S)
    return World(setup, arrivals, group=lambda arrival: str(arrival.priority)).run()


def first_token_ratio(fairness: FairnessSettings, scope: Scope) -> float:
    """Time to the first token of an urgent request behind 8 running and 32 queued ones ÷ the same alone: the
    median of nine draws."""
    draws = [f"urgent {draw}" for draw in range(9)]
    return statistics.median(
        _urgent_first_token_s(fairness, 40, scope.random(draw))
        / _urgent_first_token_s(fairness, 0, scope.random(draw))
        for draw in draws
    )


def _urgent_first_token_s(fairness: FairnessSettings, others: int, random: Random) -> float:
    urgent = make_arrival("urgent", Class(URGENT, 1.0), random, tenant="light", at_s=START_S + 3.0)
    ordinary = [
        make_arrival(
            f"r{n}", Class(ORDINARY, 1.0, output_tokens=256), random, tenant="heavy", at_s=START_S + 1.0
        )
        for n in range(others)
    ]
    World(Setup(model=SMALL, fairness=fairness), [*ordinary, urgent]).run()
    return urgent.first_token_wait_s or 0.0


# What decisions cost


@dataclass(frozen=True, slots=True)
class Scale:
    policy: PolicyName
    whole_pass: Pass
    costs: tuple[Cost, ...]

    @property
    def exponent(self) -> float:
        """k of cost per placement ~ n**k, n requests waiting."""
        return fit_exponent([(one.queued, one.placement_s) for one in self.costs])


def scale(policy: PolicyName, scope: Scope) -> Scale:
    """One pass over a queue of `scope.queued`, and what decisions cost at every one of `scope.lengths`."""
    setup = Setup(workers=scope.workers, policy=policy)
    return Scale(
        policy,
        one_pass(setup, scope.queued, scope.random("pass")),
        tuple(costs(setup, scope.lengths, scope.random("cost"), rounds=scope.rounds)),
    )


# Lasting overload


@dataclass(frozen=True, slots=True)
class Overload:
    """For minutes, requests are twice what a worker can do; `urgent` of them are urgent.

    Waits are to the first token, of those that came in the second half of that time. `urgent_ratio` is the
    median of the urgent ones ÷ that of an urgent request alone. `ordinary_part` is what part of the service
    the others were given, in the second half; `ordinary_ratio` is their service ÷ that without preemption,
    None if that is 0.
    """

    urgent: float
    share: float
    waits: dict[str, Waits]
    urgent_ratio: float
    ordinary_part: float
    ordinary_ratio: float | None
    tokens_per_s: float


SHARES = (0.0, 0.25, 0.5)
URGENT_PARTS = (0.1, 0.9)


def lasting_overload(urgent: float, share: float, scope: Scope) -> Overload:
    world, served = _overloaded(urgent, share, scope, is_preempting=True)
    _, without = _overloaded(urgent, share, scope, is_preempting=False)
    half_s = START_S + _OVERLOAD_LASTS * scope.duration_s / 2
    found = waits_by_class([a for a in world.requests.values() if a.at_s >= half_s])
    settings = FairnessSettings(enable_preemption=True)
    alone_s = statistics.median(
        _urgent_first_token_s(settings, 0, scope.random(f"urgent {draw}")) for draw in range(9)
    )
    return Overload(
        urgent=urgent,
        share=share,
        waits=found,
        urgent_ratio=found[str(URGENT)]["p50"] / alone_s,
        ordinary_part=served[str(ORDINARY)] / sum(served.values()),
        ordinary_ratio=served[str(ORDINARY)] / rest if (rest := without[str(ORDINARY)]) else None,
        tokens_per_s=_tokens_per_s(world),
    )


def _overloaded(
    urgent: float, share: float, scope: Scope, *, is_preempting: bool
) -> tuple[World, dict[str, float]]:
    """Returns the world, and what each priority was served in the second half."""
    settings = FairnessSettings(enable_preemption=is_preempting)
    setup = Setup(model=SMALL, fairness=settings, ordinary_share=share)
    classes = (Class(ORDINARY, 1 - urgent), Class(URGENT, urgent))
    duration_s = _OVERLOAD_LASTS * scope.duration_s
    traffic = Traffic(_rate(setup, 2.0, classes), duration_s, scope.arrivals, classes=classes)
    arrivals = arrive(traffic, scope.random(f"overload {urgent}"), start_s=START_S)
    world = World(setup, arrivals, group=lambda arrival: str(arrival.priority)).run()
    half_s, end_s = START_S + duration_s / 2, START_S + duration_s
    spans = [span.tokens for span in world.served if half_s <= span.at_s <= end_s]
    served = {str(kind.priority): sum(s.get(str(kind.priority), 0.0) for s in spans) for kind in classes}
    return world, served


# Conversations

CONVERSATIONS, TURNS = 40, 6


@dataclass(frozen=True, slots=True)
class ConversationSetup:
    """Two workers, whether the scheduler learns what they have cached, and how long requests wait for it."""

    slots: int
    has_hints: bool
    prefix_wait_s: float = 0.0


CONVERSATION_SETUPS = (
    ConversationSetup(slots=16, has_hints=False),
    *(
        ConversationSetup(slots=slots, has_hints=True, prefix_wait_s=wait_s)
        for slots in (16, 8, 4)
        for wait_s in (0.0, 5.0)
    ),
)


@dataclass(frozen=True, slots=True)
class Conversations:
    """40 conversations of 6 turns on two workers with memory for all of them.

    Attributes:
        setup: slots of each worker, and the rest of it.
        computed_ratio: prompt tokens that were computed ÷ tokens that the turns added.
        load_ratio: what the worker with more to do has computed and generated ÷ the other.
        first_token_s: mean from arrival to the first token, of turns after the first.
    """

    setup: ConversationSetup
    computed_ratio: float
    load_ratio: float
    first_token_s: float


def conversations(setup: ConversationSetup, scope: Scope) -> Conversations:
    """Clients send a turn some seconds after the answer to the one before, with all that was said before."""
    random = scope.random("conversations")
    model = WorkerModel(slots=setup.slots, sequences=64, kv_cells=65_536, caches_prompts=True)
    made_of = Setup(workers=2, model=model, has_hints=setup.has_hints, prefix_wait_s=setup.prefix_wait_s)
    starts = sorted(random.uniform(0.0, scope.duration_s / 2) for _ in range(CONVERSATIONS))
    made = [Conversation(number, TURNS, random) for number in range(CONVERSATIONS)]
    first = [one.first(START_S + at_s) for one, at_s in zip(made, starts, strict=True)]
    world = World(made_of, first, next_of=lambda ended: made[int(ended.name.split("-")[0])].next(ended)).run()
    turns = list(world.requests.values())
    computed = sum(turn.prompt_tokens - turn.cached for turn in turns)
    loads = Counter(dict.fromkeys(world.workers, 0))
    for turn in turns:
        loads[turn.worker_id] += turn.prompt_tokens - turn.cached + turn.generated
    waits_s = [turn.first_token_wait_s or 0.0 for turn in turns if not turn.name.endswith("-0")]
    return Conversations(
        setup=setup,
        computed_ratio=computed / sum(one.added for one in made),
        load_ratio=max(loads.values()) / max(1, min(loads.values())),
        first_token_s=statistics.mean(waits_s),
    )


# Helpers


def _rate(setup: Setup, load: float, classes: Sequence[Class] | None = None) -> float:
    """Requests per second that are `load` times what the workers can serve."""
    kinds = Traffic(1.0, 1.0).classes if classes is None else classes
    total = sum(kind.share for kind in kinds)
    service_s = sum(
        kind.share / total * setup.model.service_s(kind.prompt_tokens, kind.output_tokens) for kind in kinds
    )
    return load * setup.workers / service_s


def _merge(stream: Iterator[Arrival], others: Sequence[Arrival]) -> list[Arrival]:
    return sorted([*stream, *others], key=lambda arrival: arrival.at_s)


def _tokens_per_s(world: World) -> float:
    """Tokens generated, from the first arrival to the last end."""
    return sum(a.generated for a in world.requests.values()) / (world.now - START_S)


def _ordinary_per_s(world: World, scope: Scope) -> float:
    """Service while requests kept coming, but for the first tenth, in which queues build up."""
    spans = [span for span in world.served if span.at_s <= START_S + scope.duration_s]
    counted = spans[len(spans) // 10 :]
    return sum(span.tokens.get(str(ORDINARY), 0.0) for span in counted) / sum(span.span_s for span in counted)
