"""Plans of steps: what runs is brought into the KV cache, the next step chosen, and fitted to the cells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

from inferflux.v1 import scheduler_pb2
from inferflux.worker.engine.memory.memory import Memory
from inferflux.worker.engine.memory.pressure import Fit, can_load, fit_step, make_room
from inferflux.worker.engine.plan.adapter_steps import by_adapter
from inferflux.worker.engine.plan.planner import StepPlan, plan_of, split
from inferflux.worker.engine.plan.sequence import Sequence

from .commands import Arrived, is_more_urgent
from .report import Report
from .step_times import StepTimes

# A running sequence that finds no KV cells for this long is descheduled: it may find some elsewhere.
_LONGEST_WAIT_FOR_ROOM_S = 1.0
# Within this many steps for each of several adapters, every sequence was in one: see `AdapterSteps`.
_STEPS_OF_ADAPTER = 4

_MEMORY = scheduler_pb2.YIELD_REASON_MEMORY
Deschedule = Callable[[Sequence, scheduler_pb2.YieldReason.ValueType], None]


class Admits(Protocol):
    """Interface of a backend that deterministic sequences need cells of."""

    def admits(self, sequence: Sequence) -> bool: ...


class Planning:
    """Plans the steps of an engine.

    Args:
        backend: has the cells of deterministic sequences.
        times: of its steps.
        residents: all sequences. running: those that have a slot.
        arrived: gives the commands that came since it was asked last.
        deschedule: takes a sequence's slot.
    """

    def __init__(
        self,
        backend: Admits,
        memory: Memory,
        times: StepTimes,
        report: Report,
        *,
        residents: Mapping[str, Sequence],
        running: Mapping[int, Sequence],
        arrived: Arrived,
        deschedule: Deschedule,
    ) -> None:
        self._backend = backend
        self._memory = memory
        self._steps = times.steps
        self._report = report
        self._most_tokens = times.budget.most_tokens
        self._arrived = arrived
        self._residents = residents
        self._running = running
        self._deschedule = deschedule

    def next(self, now_s: float, held: Collection[Collection[Sequence]]) -> StepPlan:
        """The next step: it fits the KV cache; empty if none of what runs can go on.

        Args:
            held: sequences that no step may hold.
        """
        loaded = [s for s in self._running.values() if s.is_loaded]
        if len(loaded) < len(self._running):
            self._load_some(now_s)
            loaded = [s for s in self._running.values() if s.is_loaded]
        plan, n_adapters = self._choose(loaded, held)
        loaded = [s for s in loaded if s.is_loaded]
        if plan.n_tokens <= self._memory.free:
            return plan
        fit = self._fit(plan, loaded)
        # No sequence of this step makes another give room; one of the next may.
        for _ in range(1 if n_adapters == 1 else _STEPS_OF_ADAPTER * n_adapters):
            if fit.grants:
                break
            plan, _ = self._choose(loaded, held)
            loaded = [s for s in loaded if s.is_loaded]
            fit = self._fit(plan, loaded)
        for victim in fit.victims:
            self.evict(victim)
        return plan_of(
            fit.grants,
            in_prefill_context=plan.in_prefill_context,
            is_long=plan.is_long,
            adapter=plan.adapter,
            is_deterministic=plan.is_deterministic,
        )

    def make_room(self, plan: StepPlan) -> None:
        """Have the cache hold what the step computes."""
        self._memory.prefixes.make_room(cells=plan.n_tokens)
        if plan.in_prefill_context:
            for part in plan.parts:
                if not part.sequence.in_prefill_context:
                    self._memory.begin_prefill_context(part.sequence)

    def is_interrupted(self, plan: StepPlan) -> bool:
        """True if something has arrived that does not wait for a long step."""
        last = max(part.sequence.urgency_key for part in plan.parts)
        return any(is_more_urgent(command, last) for command in self._arrived())

    def parked(self) -> Iterator[Sequence]:
        """Sequences that wait to resume."""
        return (s for s in self._residents.values() if s.slot is None)

    def release(self) -> Callable[[Sequence], int]:
        """Cells that would be free if one more sequence were evicted, after those asked for before."""
        trial = self._memory.trial()
        return lambda sequence: trial.release(sequence.seq_id)

    def evict(self, sequence: Sequence) -> None:
        """Take a sequence's cells, and its slot; it goes on from host memory, or is computed again."""
        for other in self._memory.unload(sequence):
            self._report.computed(other)
        self._deschedule(sequence, _MEMORY)

    def _choose(self, loaded: list[Sequence], held: Collection[Collection[Sequence]]) -> tuple[StepPlan, int]:
        """(the step of the adapter that is next, of how many adapters there are steps), whether it fits the
        KV cache or not."""
        if held:
            loaded = [s for s in loaded if not any(s in waiting for waiting in held)]
        groups = by_adapter(s for s in loaded if not s.is_deterministic or self._has_room_apart(s))
        if not groups:
            return StepPlan([], []), 0
        adapter = self._steps.choose(groups)
        self._match(split(groups[adapter])[1])
        groups[adapter] = [s for s in groups[adapter] if s.is_loaded]
        return self._steps.plan(adapter, groups, self._memory.prefill_room), len(groups)

    def _has_room_apart(self, sequence: Sequence) -> bool:
        """Return whether a deterministic sequence has its cells. Parked ones give way."""
        if self._backend.admits(sequence):
            return True
        for parked in list(self.parked()):
            if parked.is_deterministic and parked.is_loaded:
                self.evict(parked)
        return self._backend.admits(sequence)

    def _match(self, prefilling: list[Sequence]) -> None:
        """Look up the prompts that the next step may begin, whatever its kind: later ones may find what these
        compute."""
        left = self._most_tokens
        for sequence in prefilling:
            if left <= 0:
                return
            self._memory.match(sequence)
            left -= sequence.n_computable

    def _fit(self, plan: StepPlan, loaded: list[Sequence]) -> Fit[Sequence]:
        return fit_step(plan.wanted, loaded, self.parked(), self._memory.free, self.release())

    def _load_some(self, now_s: float) -> None:
        """Load those that run and are not in the KV cache, most urgent first; one that waits for long is
        descheduled."""
        memory = self._memory
        waiting = [s for s in self._running.values() if not s.is_loaded]
        for sequence in sorted(waiting, key=lambda s: s.order):
            if not memory.must_wait(sequence) or sequence.restore.fetch is not None:
                memory.look_up(sequence)
            if memory.must_wait(sequence):
                sequence.times.scheduled_at_s = now_s  # it does not wait for room yet
                continue
            self._load(sequence)
            if not sequence.is_loaded and now_s - sequence.times.scheduled_at_s > _LONGEST_WAIT_FOR_ROOM_S:
                self._deschedule(sequence, _MEMORY)

    def _load(self, sequence: Sequence) -> None:
        """Bring a sequence that runs into the KV cache, if it is its time."""
        running = self._running.values()
        loaded = [s for s in running if s.is_loaded]
        memory = self._memory
        waiting = [s for s in running if not s.is_loaded and not memory.must_wait(s)]
        if not can_load(sequence, loaded, waiting, self.parked(), memory.free, memory.cells, self.release()):
            return
        victims = make_room(
            sequence.position,
            sequence.order,
            loaded,
            self.parked(),
            free=memory.free,
            free_seq_ids=memory.free_seq_ids,
            release=self.release(),
        )
        for victim in victims:
            self.evict(victim)
        is_found = sequence.restore.restored_from is not None
        if not memory.load(sequence) or is_found:
            self._report.computed(sequence)
