"""Choice of the adapter that the next step runs with, where sequences of several run (pure).

llama.cpp applies an adapter to a whole batch, and makes its graphs anew for another one. So a step holds
sequences of one adapter. Adapters alternate, and each has as many steps in a row as any other: each sequence
gets as many as any other, however many its adapter has. They are as many as make the switch cheap, and as few
as keep the gaps of the others short.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from .budget import StepBudget
from .planner import Planner, StepPlan, plan_deterministic, split
from .sequence import DETERMINISTIC_GROUP, Sequence

# Switching may take this part of the time, where the steps in between are short enough.
_SWITCH_PART = 0.1
# Steps in a row of one adapter take about this long together at most, unless a single one takes longer.
_LONGEST_STAY_S = 0.03
# Before it is known what a switch costs.
_FIRST_STAY = 2
_SMOOTHING = 0.2

Groups = Mapping[str, list[Sequence]]


def by_adapter(sequences: Iterable[Sequence]) -> dict[str, list[Sequence]]:
    """The sequences of each adapter, by its digest; those of deterministic requests by themselves."""
    groups: dict[str, list[Sequence]] = {}
    for sequence in sequences:
        groups.setdefault(sequence.step_group, []).append(sequence)
    return groups


class AdapterSteps:
    """Chooses the adapter of each step, and plans the step.

    An adapter that comes is next. Then it is the one whose last step is longest ago; of several without any,
    the one with the most urgent sequence. A prompt that is more urgent than all sequences of other adapters
    does not wait for each of them: it gets every second step.

    Args:
        budget, shortest_suffix: as for `Planner`: there is one for each adapter.
    """

    def __init__(self, budget: StepBudget, shortest_suffix: int = 0) -> None:
        self._budget = budget
        self._shortest_suffix = shortest_suffix
        self._planners: dict[str, Planner] = {"": Planner(budget, shortest_suffix)}
        # When each adapter had its last step, in steps.
        self._stepped: dict[str, int] = {}
        self._n_steps = 0
        self._last = ""
        self._in_a_row = 0
        # Seconds of a step that decodes alone, after one of the same adapter and after one of another.
        self._same_s = 0.0
        self._switched_s = 0.0

    @property
    def stay(self) -> int:
        """Steps in a row that an adapter has."""
        if not self._same_s or not self._switched_s:
            return _FIRST_STAY
        cheap = (self._switched_s - self._same_s) / (_SWITCH_PART * self._same_s)
        short = _LONGEST_STAY_S / self._same_s
        return max(math.ceil(min(cheap, short)), 1)

    def decoded(self, seconds: float, *, is_switched: bool) -> None:
        """Learn what a step took that decodes alone."""
        known = self._switched_s if is_switched else self._same_s
        seconds = known + _SMOOTHING * (min(seconds, 3 * known) - known) if known else seconds
        if is_switched:
            self._switched_s = seconds
        else:
            self._same_s = seconds

    def choose(self, groups: Groups) -> str:
        """The adapter of the next step; each has sequences that a step may hold."""
        if len(groups) == 1:
            return next(iter(groups))
        most_urgent = {adapter: min(group, key=lambda s: s.order) for adapter, group in groups.items()}
        first = min(groups, key=lambda adapter: most_urgent[adapter].order)
        if most_urgent[first].is_prefilling:
            if self._last != first:
                return first
        elif self._last in groups and self._in_a_row < self.stay and groups.keys() <= self._stepped.keys():
            return self._last
        return min(groups, key=lambda adapter: (self._stepped.get(adapter, 0), most_urgent[adapter].order))

    def plan(self, adapter: str, groups: Groups, prefill_room: int) -> StepPlan:
        """The next step of an adapter, whose group is among these."""
        self._n_steps += 1
        self._stepped[adapter] = self._n_steps
        self._in_a_row = self._in_a_row + 1 if adapter == self._last else 1
        self._last = adapter
        self._forget(groups)
        planner = self._planners.get(adapter)
        if planner is None:
            planner = self._planners[adapter] = Planner(self._budget, self._shortest_suffix)
        decoding, prefilling = split(groups[adapter])
        waiting = [
            s for other, group in groups.items() if other != adapter for s in group if not s.is_prefilling
        ]
        if adapter.endswith(DETERMINISTIC_GROUP):
            tokens = self._budget.mixed(len(decoding) + len(waiting), len(prefilling))
            plan = plan_deterministic(decoding, prefilling, tokens)
        else:
            plan = planner.next(decoding, prefilling, prefill_room, waiting)
        return replace(plan, adapter=adapter.removesuffix(DETERMINISTIC_GROUP)) if adapter else plan

    def interrupted(self) -> None:
        """A long step was given up: see `Planner`."""
        for planner in self._planners.values():
            planner.interrupted()

    def _forget(self, groups: Groups) -> None:
        """Adapters that have nothing to do begin anew when they have."""
        for adapter in [adapter for adapter in self._stepped if adapter not in groups]:
            del self._stepped[adapter]
            if adapter:
                self._planners.pop(adapter, None)
