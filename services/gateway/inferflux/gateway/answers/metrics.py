"""What the answer cache gives, and what it takes."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from inferflux.common.metrics import PREFIX


class AnswerMetrics:
    """All of them. Those of a gateway without an answer cache stay 0."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        name, model = f"{PREFIX}_answer_cache", ["model"]
        self.queries = Counter(
            f"{name}_queries", "Requests that were looked up in the answer cache.", model, registry=registry
        )
        self.hits = Counter(
            f"{name}_hits", "Requests that were answered from the answer cache.", model, registry=registry
        )
        self.tokens = Counter(
            f"{name}_tokens", "Generated tokens that came from the answer cache.", model, registry=registry
        )
        self.failures = Counter(
            f"{name}_failures",
            "Look-ups and writes that failed: Redis was `away` or too slow, or an answer was `corrupt`.",
            ["reason"],
            registry=registry,
        )
        self.evictions = Counter(
            f"{name}_evictions",
            "Answers that this gateway evicted from the answer cache for others.",
            registry=registry,
        )
        self.bytes = Gauge(
            f"{name}_bytes",
            "Bytes of all answers in the answer cache when this gateway last wrote one.",
            registry=registry,
        )
        self.up = Gauge(
            f"{name}_up", "1 while Redis answers this gateway in time, else 0.", registry=registry
        )
