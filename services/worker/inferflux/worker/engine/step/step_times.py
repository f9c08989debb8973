"""Times of steps: learned from, so that later steps are planned by them, and told in reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from inferflux.v1 import engine_pb2
from inferflux.worker.engine.llama.trials import Timing
from inferflux.worker.engine.memory.memory import Memory
from inferflux.worker.engine.plan.adapter_steps import AdapterSteps
from inferflux.worker.engine.plan.budget import StepBudget
from inferflux.worker.engine.plan.planner import StepPlan
from inferflux.worker.engine.tiers.rates import Rates


class TimedBackend(Protocol):
    """Interface of a backend whose steps are timed."""

    @property
    def batch_tokens(self) -> int: ...
    @property
    def long_step_tokens(self) -> int: ...
    @property
    def long_mixed_tokens(self) -> int: ...
    @property
    def shortest_suffix(self) -> int: ...
    @property
    def speculation_error(self) -> str: ...
    @property
    def adapter_switches(self) -> int: ...
    def warm_up(self) -> Iterable[Timing]: ...
    def row_times(self) -> dict[int, float]: ...


class StepTimes:
    """Learns what the steps of an engine take: first from the backend, which warms up.

    Args:
        rates: what computing a token takes.
        max_itl_factor, step_limit_s: see `StepBudget`.

    Attributes:
        budget: how many tokens steps may have.
        steps: chooses the adapter of each.
    """

    def __init__(
        self, backend: TimedBackend, rates: Rates, *, max_itl_factor: float, step_limit_s: float
    ) -> None:
        self._backend = backend
        self._rates = rates
        self._switches_told = 0
        self.budget = budget = StepBudget(
            backend.batch_tokens,
            max_itl_factor,
            step_limit_s,
            long_step_tokens=backend.long_step_tokens,
            long_mixed_tokens=backend.long_mixed_tokens,
        )
        self.steps = AdapterSteps(budget, backend.shortest_suffix)
        for seen in backend.warm_up():
            rates.prefill.observe(seen.n_prefill, seen.seconds)
            budget.observe(
                seen.n_prefill, seen.n_decoding, seen.seconds, in_prefill_context=seen.in_prefill_context
            )
        if not backend.speculation_error:
            budget.know_rows(backend.row_times())

    def learn(self, plan: StepPlan, seconds: float, memory: Memory) -> None:
        """Note what a step of the main context, or the prefill context, took."""
        if plan.n_prefill:  # of a mixed batch, its share of the tokens
            self._rates.prefill.observe(plan.n_tokens, seconds)
        self.budget.observe(
            plan.n_prefill,
            len(plan.decoding),
            seconds,
            in_prefill_context=plan.in_prefill_context,
            n_drafted=plan.n_drafted,
        )
        memory.prefixes.pay(seconds, plan)
        memory.close_holes(plan)

    def tell(
        self, plan: StepPlan, stats: engine_pb2.StepStats, *, accepted: int, decoded_s: float, step_s: float
    ) -> None:
        """Write a step into a report.

        Args:
            accepted: drafted tokens that were accepted.
            decoded_s: seconds that the model took. step_s: those of the whole step.
        """
        stats.prefill_tokens = plan.n_prefill
        stats.decode_tokens = len(plan.decoding) + accepted
        stats.decode_us = int(decoded_s * 1e6)
        stats.step_us = int(step_s * 1e6)
        stats.adapter_digest = plan.adapter
        switches = self._backend.adapter_switches
        stats.adapter_switches = switches - self._switches_told
        if not plan.n_prefill:
            self.steps.decoded(decoded_s, is_switched=switches > self._switches_told)
        self._switches_told = switches
