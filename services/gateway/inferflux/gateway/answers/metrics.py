"""Metrics of the answer cache: what it gives and takes."""

from __future__ import annotations

from inferflux.common.process.metrics import Declare


class AnswerMetrics:
    """All of them. Those of a gateway without an answer cache stay 0."""

    def __init__(self, declare: Declare) -> None:
        model = ("model",)
        self.queries = declare.counter(
            "answer_cache_queries", "Requests that were looked up in the answer cache.", model
        )
        self.hits = declare.counter(
            "answer_cache_hits", "Requests that were answered from the answer cache.", model
        )
        self.tokens = declare.counter(
            "answer_cache_tokens", "Generated tokens that came from the answer cache.", model
        )
        self.failures = declare.counter(
            "answer_cache_failures",
            "Look-ups and writes that failed: Redis was `away` or too slow, or an answer was `corrupt`.",
            ("reason",),
        )
        self.evictions = declare.counter(
            "answer_cache_evictions", "Answers that this gateway evicted from the answer cache for others."
        )
        self.bytes = declare.gauge(
            "answer_cache_bytes", "Bytes of all answers in the answer cache when this gateway last wrote one."
        )
        self.up = declare.gauge("answer_cache_up", "1 while Redis answers this gateway in time, else 0.")
