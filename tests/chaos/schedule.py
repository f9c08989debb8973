"""Which faults happen when (pure): the same seed, the same faults."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum


class Action(Enum):
    """What is done to a process."""

    # SIGKILL; started again later.
    KILL = "kill"
    # SIGTERM, so that it may drain; started again later.
    STOP = "stop"
    # SIGSTOP, and SIGCONT later: connections stay open, and no answer comes.
    PAUSE = "pause"
    # The engine is killed while it writes a file; lasts as long as one is waited for.
    TEAR = "tear"
    # Files are damaged, and foreign ones added.
    SPOIL = "spoil"
    # Nothing can be written for a time.
    FILL = "fill"
    # Random requests are moved to random workers for a time.
    MOVE = "move"
    # A worker is drained, what runs there goes on elsewhere at once; it takes requests again later.
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing done to one process.

    Attributes:
        at_s: seconds after the load began.
        target: a process by name, a child of one (`engine of worker-0`), the disk tier of one (`disk of
            worker-0`), a role among the schedulers: `leader`, `standby`; a worker while state is on its way
            (`transfer of worker-0`), its requests (`requests of worker-0`), those of all, or all `pieces`.
        lasts_s: how long it is down or paused.
    """

    at_s: float
    target: str
    action: Action
    lasts_s: float

    @property
    def kind(self) -> str:
        """`worker`, `engine`, `leader`, `nats`; what is counted together."""
        return self.target.partition(OF)[0].partition("-")[0]

    def __str__(self) -> str:
        return f"{self.action.value} {self.target} for {self.lasts_s:.1f} s"


OF = " of "
# Children, which their parents stop and start.
ENGINE, TOKENIZER = "engine", "tokenizer"
DISK = "disk"
TRANSFER, REQUESTS, PIECES = "transfer", "requests", "pieces"

_FIRST_S = 2.0
# At the end everything has to be back.
_CALM_END_S = 6.0
_MEAN_GAP_S = 1.8
_LONGEST_GAP_S = 8.0
# What a process is given between the end of one fault and the next.
_RECOVERY_S = 5.0
_LONGEST_DOWN_S = 3.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
_WEIGHTS = {Action.KILL: 2, Action.STOP: 1, Action.PAUSE: 1}
# A tokenizer process that takes too long is killed over the text, whose fault it then is.
_CHILD_WEIGHTS = {
    ENGINE: {Action.KILL: 2, Action.PAUSE: 1},
    TOKENIZER: {Action.KILL: 1},
    DISK: {Action.TEAR: 2, Action.SPOIL: 1, Action.FILL: 1},
    TRANSFER: {Action.TEAR: 3, Action.KILL: 3, Action.STOP: 2, Action.PAUSE: 3, Action.FILL: 1},
    REQUESTS: {Action.DRAIN: 1},
}
_WEIGHTS_OF_ALL = {
    REQUESTS: {Action.MOVE: 1},
    PIECES: {Action.SPOIL: 3, Action.FILL: 1},
}
_DISK_S = 3.0
_LASTING = (Action.FILL, Action.MOVE, Action.DRAIN)


def plan(seed: int, seconds: float, targets: Sequence[str]) -> list[Fault]:
    """Faults for a load of `seconds`, by time. Each process is hit about equally often."""
    rng = random.Random(f"{seed}/faults")
    bag = _in_turns(rng, targets)
    faults: list[Fault] = []
    free_at: dict[str, float] = {}
    at_s = _FIRST_S
    while at_s < seconds - _CALM_END_S:
        target = next(bag)
        if free_at.get(_process(target), 0.0) <= at_s:
            fault = Fault(round(at_s, 2), target, *_what(rng, target))
            faults.append(fault)
            free_at[_process(target)] = at_s + fault.lasts_s + _RECOVERY_S
        at_s += min(rng.expovariate(1 / _MEAN_GAP_S), _LONGEST_GAP_S)
    return faults


def _process(target: str) -> str:
    """A child goes with its parent."""
    return target.rpartition(OF)[2]


def _in_turns(rng: random.Random, targets: Sequence[str]) -> Iterator[str]:
    """All of them in random order, again and again."""
    while True:
        yield from rng.sample(targets, len(targets))


def _what(rng: random.Random, target: str) -> tuple[Action, float]:
    child = target.rpartition(OF)[0]
    weights = _CHILD_WEIGHTS.get(child) or _WEIGHTS_OF_ALL.get(target, _WEIGHTS)
    action = rng.choices(list(weights), list(weights.values()))[0]
    if action is Action.PAUSE:
        return action, round(rng.uniform(_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S), 2)
    if action is Action.TEAR or action in _LASTING or target == PIECES:
        return action, _DISK_S
    stays = child in (ENGINE, TOKENIZER, DISK)
    return action, 0.0 if stays else round(rng.uniform(0.0, _LONGEST_DOWN_S), 2)
