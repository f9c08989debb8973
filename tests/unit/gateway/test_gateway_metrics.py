"""Requests are counted by how they named their model, and those for a mixture of experts on their own."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from inferflux.gateway.metrics import GatewayMetrics
from inferflux.v1 import model_pb2


@pytest.mark.parametrize(
    ("asked", "adapter", "is_split", "by", "alias"),
    [
        ("demo", "", False, "name", ""),
        ("demo:formal", "formal", False, "name", ""),
        ("chat", "", False, "alias", ""),
        ("chat:formal", "formal", False, "alias", ""),
        ("", "", False, "default", ""),
        ("chat", "formal", True, "split", "chat"),
    ],
)
def test_a_route_is_counted_by_how_the_model_was_named(
    asked: str, adapter: str, is_split: bool, by: str, alias: str
) -> None:
    registry = CollectorRegistry()
    card = model_pb2.ModelCard(name="demo")
    assert GatewayMetrics(registry).count_route(asked, card, adapter, is_split=is_split) == by
    labels = {"model": "demo", "by": by, "adapter": adapter, "alias": alias}
    assert registry.get_sample_value("inferflux_model_routes_total", labels) == 1


@pytest.mark.parametrize(("is_moe", "counted"), [(True, 2), (False, None)])
def test_requests_for_a_mixture_of_experts_are_counted(is_moe: bool, counted: float | None) -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    for _ in range(2):
        metrics.count_route("mix", model_pb2.ModelCard(name="mix", is_moe=is_moe))
    assert registry.get_sample_value("inferflux_moe_requests_total", {"model": "mix"}) == counted
