"""What is done to hosts, and which of it happens when: a function of the seed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .layout import CLIENT, GATEWAYS, NATS, REDIS, SCHEDULERS, SERVERS, WORKERS
from .machines import Fleet
from .watching import Watch


class Verb(Enum):
    """What is done to a host, or to a part of the network."""

    # Its power is gone; started again later.
    KILLED = "killed"
    # All its processes stand still, and go on later. Its kernel answers.
    STOPPED = "stopped"
    # Nothing reaches it, and nothing of it reaches others.
    CUT = "cut"
    # What it sends arrives; nothing reaches it.
    DEAF = "deaf"
    # What is sent to it arrives; nothing of it does.
    MUTE = "mute"
    # Between it and the hosts of its kind nothing arrives; all else does.
    APART = "apart"
    # It and one host of NATS are cut off from all others: it sees NATS, in a minority.
    MINORITY = "minority"


# Roles beside the names of hosts: what has them is asked when the fault begins.
LEADER, STANDBY, PRIMARY = "leader", "standby", "primary"
ROLES = (LEADER, STANDBY, PRIMARY)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing done to a host, or to several at once.

    Attributes:
        at_s: seconds after the load began.
        targets: hosts or roles.
        lasts_s: how long it is so.
    """

    verb: Verb
    targets: tuple[str, ...]
    lasts_s: float
    at_s: float = 0.0

    def __str__(self) -> str:
        return f"{'+'.join(self.targets)} {self.verb.value} for {self.lasts_s:g} s"


def parse(text: str, lasts_s: float) -> Fault:
    """A fault as it is written: `killed:nats-0`, `cut:nats-0+nats-1`, `minority:leader`.

    Raises:
        ValueError: there is no such verb or host.
    """
    verb, _, names = text.partition(":")
    targets = tuple(names.split("+"))
    if unknown := [name for name in targets if name not in (*SERVERS, *ROLES)]:
        raise ValueError(f"no host is called {', '.join(unknown)!r}: {', '.join((*SERVERS, *ROLES))}")
    return Fault(Verb(verb), targets, lasts_s)


async def resolve(target: str, watch: Watch) -> str:
    """The host that has a role at this moment."""
    if target == PRIMARY:
        return await watch.primary()
    if target not in (LEADER, STANDBY):
        return target
    leads = await watch.leader()
    leads = leads if leads in SCHEDULERS else SCHEDULERS[0]
    return leads if target == LEADER else next(name for name in SCHEDULERS if name != leads)


async def inflict(fault: Fault, fleet: Fleet, watch: Watch) -> None:
    """Do it, wait, and undo it. A host that was killed is ready again then."""
    hosts = [await resolve(target, watch) for target in fault.targets]
    name = f"{fault.verb.value} {'+'.join(hosts)}"
    if fault.verb in (Verb.KILLED, Verb.CUT, Verb.MUTE, Verb.STOPPED) and _may_lose_settlements(hosts):
        watch.history.losses_s.append(time.monotonic())
    if any(host in REDIS for host in hosts):
        now_s = time.monotonic()
        until_s = now_s + fault.lasts_s + _RECOVERY_S + _SETTLES_AGAIN_S
        watch.history.away_s.append((now_s, until_s))
    match fault.verb:
        case Verb.KILLED:
            for host in hosts:
                await fleet.kill(host)
            await asyncio.sleep(fault.lasts_s)
            await asyncio.gather(*(fleet.start(host) for host in hosts))
            return
        case Verb.STOPPED:
            for host in hosts:
                fleet.stop(host)
            try:
                await asyncio.sleep(fault.lasts_s)
            finally:
                for host in hosts:
                    fleet.go_on(host)
            return
    _part(name, fault.verb, hosts, fleet)
    try:
        await asyncio.sleep(fault.lasts_s)
    finally:
        fleet.network.mend(name)


def _part(name: str, verb: Verb, hosts: Sequence[str], fleet: Fleet) -> None:
    """Cut the network as the verb says."""
    others = [host for host in (CLIENT, *SERVERS) if host not in hosts]
    match verb:
        case Verb.CUT:
            fleet.network.isolate(name, hosts)
        case Verb.DEAF:
            fleet.network.cut(name, others, hosts)
        case Verb.MUTE:
            fleet.network.cut(name, hosts, others)
        case Verb.APART:
            kind = hosts[0].partition("-")[0]
            fleet.network.part(name, hosts, [host for host in others if host.startswith(kind)])
        case Verb.MINORITY:
            fleet.network.isolate(name, [*hosts, NATS[-1]])


def _may_lose_settlements(hosts: Sequence[str]) -> bool:
    return any(host in (*GATEWAYS, *REDIS) for host in hosts)


_FIRST_S = 3.0
# At the end everything has to be back.
_CALM_END_S = 10.0
_MEAN_GAP_S, _LONGEST_GAP_S = 4.0, 10.0
_SHORTEST_S, _LONGEST_S = 1.0, 8.0
# Between the end of one fault and the next of the same kind of host: what elects, elects again.
_RECOVERY_S = 8.0
# The longest pause of a gateway between two tries to settle a request.
_SETTLES_AGAIN_S = 30.0
_WEIGHTS = {
    Verb.KILLED: 3,
    Verb.STOPPED: 2,
    Verb.CUT: 2,
    Verb.DEAF: 1,
    Verb.MUTE: 1,
}
_WEIGHTS_OF_STATE = {Verb.APART: 4, Verb.KILLED: 1, Verb.STOPPED: 2, Verb.CUT: 1, Verb.DEAF: 1, Verb.MUTE: 1}
# What may be hit beside others of its kind, and still leaves one that works.
_KINDS = (NATS, REDIS, GATEWAYS, (LEADER, STANDBY), WORKERS)


def plan(seed: int, seconds: float) -> list[Fault]:
    """Faults for a load of `seconds`, by time. Of each kind of host one at a time is hit."""
    rng = random.Random(f"{seed}/faults")
    faults: list[Fault] = []
    free_at = [0.0] * len(_KINDS)
    at_s = _FIRST_S
    while at_s < seconds - _CALM_END_S:
        free = [index for index, free_s in enumerate(free_at) if free_s <= at_s]
        if free:
            index = rng.choice(free)
            fault = _draw(rng, _KINDS[index], at_s, is_nats_whole=free_at[0] <= at_s)
            faults.append(fault)
            free_at[index] = at_s + fault.lasts_s + _RECOVERY_S
            if fault.verb is Verb.MINORITY:
                free_at[0] = max(free_at[0], free_at[index])
        at_s += min(rng.expovariate(1 / _MEAN_GAP_S), _LONGEST_GAP_S)
    return faults


def plan_of_state(seed: int, seconds: float) -> list[Fault]:
    """Faults of workers that fetch state from each other, one at a time, and more often."""
    rng = random.Random(f"{seed}/faults of state")
    faults: list[Fault] = []
    at_s = _FIRST_S
    while at_s < seconds - _CALM_END_S:
        verb = rng.choices(list(_WEIGHTS_OF_STATE), list(_WEIGHTS_OF_STATE.values()))[0]
        lasts_s = round(rng.uniform(_SHORTEST_S, _LONGEST_S), 1)
        faults.append(Fault(verb, (rng.choice(WORKERS),), lasts_s, round(at_s, 1)))
        at_s += lasts_s + rng.uniform(0.5, _MEAN_GAP_S)
    return faults


def _draw(rng: random.Random, names: Sequence[str], at_s: float, *, is_nats_whole: bool) -> Fault:
    weights = dict(_WEIGHTS)
    # One of three hosts of NATS goes with it.
    if is_nats_whole and names[0] in (LEADER, WORKERS[0]):
        weights[Verb.MINORITY] = 1
    verb = rng.choices(list(weights), list(weights.values()))[0]
    lasts_s = round(rng.uniform(_SHORTEST_S, _LONGEST_S), 1)
    return Fault(verb, (rng.choice(names),), lasts_s, round(at_s, 1))
