"""Runs that end early, and the tokens of each priority, are counted as the core reports them."""

from __future__ import annotations

from typing import Any, cast

from prometheus_client import CollectorRegistry

from inferflux.common import tracing
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.scheduler.edge.perform import Performer
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.scheduler.spans import SchedulerSpans

KEY = RequestKey("acme", "one")


def counted(*todo: actions.Action) -> CollectorRegistry:
    registry = CollectorRegistry()
    unused = cast("Any", None)
    performer = Performer(
        unused,
        unused,
        SchedulerMetrics(registry),
        SchedulerSpans(tracing.OFF),
        look_up=unused,
        has_all=unused,
    )
    performer.perform(todo)
    assert performer.is_idle
    return registry


async def test_yields_are_counted_by_reason_and_resumes_by_residence() -> None:
    registry = counted(
        actions.Yielded(KEY, None, "w1", "timeslice"),
        actions.Yielded(KEY, None, "w1", "timeslice"),
        actions.Yielded(KEY, None, "w1", "memory"),
        actions.Preempted(KEY, None, "w1", by=RequestKey("acme", "two")),
        actions.Resumed(KEY, None, "w1", 0.5, "parked"),
    )
    value = registry.get_sample_value
    assert value("inferflux_fairness_yields_total", {"reason": "timeslice"}) == 2
    assert value("inferflux_fairness_yields_total", {"reason": "memory"}) == 1
    assert value("inferflux_fairness_preemptions_total") == 1
    assert value("inferflux_fairness_resumes_total", {"residence": "parked"}) == 1
    assert value("inferflux_fairness_resume_wait_seconds_sum") == 0.5


async def test_tokens_and_first_tokens_are_counted_by_priority() -> None:
    registry = counted(
        actions.CountTokens(5, 32), actions.CountTokens(0, 8), actions.CountFirstToken("demo", 5, 0.25)
    )
    value = registry.get_sample_value
    assert value("inferflux_fairness_tokens_total", {"priority": "5"}) == 32
    assert value("inferflux_fairness_tokens_total", {"priority": "0"}) == 8
    first = {"model": "demo", "priority": "5"}
    assert value("inferflux_fairness_time_to_first_token_seconds_sum", first) == 0.25
