"""Every Prometheus metric of each service, as Markdown lists."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from types import ModuleType

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

import inferflux.common
from inferflux.gateway.metrics import GatewayMetrics
from inferflux.policy.metrics import DecisionMetrics, PolicyMetrics
from inferflux.scheduler.metrics import SchedulerMetrics
from inferflux.worker.metrics import WorkerMetrics

from .markdown import entries


class _Recorder(CollectorRegistry):
    """A registry that remembers what was registered, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[MetricWrapperBase] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        if isinstance(collector, MetricWrapperBase):
            self.metrics.append(collector)


def blocks() -> dict[str, str]:
    """The lists by the name of their place in the page."""
    return {f"metrics of {owner}": entries(map(_row, found)) for owner, found in metrics().items()}


def metrics() -> dict[str, list[MetricWrapperBase]]:
    """The metrics of every service, and those of each."""
    return {
        "every service": _made_on_import(_common_modules()),
        "the gateway": _registered(GatewayMetrics),
        "the policy": [*_registered(PolicyMetrics), *_registered(DecisionMetrics)],
        "the scheduler": _registered(SchedulerMetrics),
        "the worker": _registered(WorkerMetrics),
    }


def exposed_name(metric: MetricWrapperBase) -> str:
    """The name that a dashboard uses: a counter's ends in `_total`."""
    (family,) = metric.describe()
    return f"{family.name}_total" if family.type == "counter" else family.name


def _registered(build: Callable[[CollectorRegistry], object]) -> list[MetricWrapperBase]:
    recorder = _Recorder()
    build(recorder)
    return recorder.metrics


def _common_modules() -> Iterable[ModuleType]:
    for found in pkgutil.walk_packages(inferflux.common.__path__, "inferflux.common."):
        yield importlib.import_module(found.name)


def _made_on_import(modules: Iterable[ModuleType]) -> list[MetricWrapperBase]:
    """The metrics among the modules' names, each once."""
    values = (value for module in modules for value in vars(module).values())
    return list(dict.fromkeys(value for value in values if isinstance(value, MetricWrapperBase)))


def _row(metric: MetricWrapperBase) -> tuple[str, ...]:
    (family,) = metric.describe()
    labels = ", ".join(f"`{label}`" for label in metric._labelnames)  # noqa: SLF001
    if not family.documentation:
        raise ValueError(f"{family.name} has no documentation")
    return (f"`{exposed_name(metric)}`", family.type, labels, family.documentation.rstrip("."))
