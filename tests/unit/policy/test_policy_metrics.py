"""What is counted by model."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from inferflux.common.contract.errors import ResourceExhausted
from inferflux.policy.metrics import MOST_MODELS, PolicyMetrics


def test_reservations_and_settled_tokens_are_counted_by_model() -> None:
    registry = CollectorRegistry()
    metrics = PolicyMetrics(registry)
    with metrics.reservation("small"):
        pass
    with pytest.raises(ResourceExhausted), metrics.reservation("large"):
        raise ResourceExhausted("no", reason="RATE_LIMITED")
    metrics.count_settled("small", {"requests": 1, "prompt_tokens": 5, "completion_tokens": 7})

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"inferflux_policy_{name}_total", labels)

    assert value("reservations", model="small", outcome="reserved") == 1
    assert value("reservations", model="large", outcome="rate_limited") == 1
    assert value("reservations", model="small", outcome="rate_limited") is None
    assert value("settled_requests", model="small") == 1
    assert value("settled_tokens", model="small", kind="completion") == 7


def test_names_of_models_beyond_a_bound_share_a_label() -> None:
    registry = CollectorRegistry()
    metrics = PolicyMetrics(registry)
    for i in range(MOST_MODELS + 10):
        with metrics.reservation(f"m{i}"):
            pass
    with metrics.reservation("m0"):
        pass

    def count(model: str) -> float | None:
        labels = {"model": model, "outcome": "reserved"}
        return registry.get_sample_value("inferflux_policy_reservations_total", labels)

    assert (count("m0"), count(f"m{MOST_MODELS}"), count("other")) == (2, None, 10)
