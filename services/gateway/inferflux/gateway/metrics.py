"""Measures of requests, as the client sees them, under the names of vLLM's metrics."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry

from inferflux.common.contract.requests.adapters import joined
from inferflux.common.process.bad_messages import BadMessages
from inferflux.common.process.metrics import (
    PER_TOKEN_BUCKETS_S,
    REQUEST_BUCKETS_S,
    TIME_TO_FIRST_TOKEN_BUCKETS_S,
    Declare,
)
from inferflux.v1 import model_pb2

from .answers.metrics import AnswerMetrics


class ModelMetrics:
    """The metrics of one model, looked up once so that a token costs no look-up."""

    def __init__(self, all_models: GatewayMetrics, model: str) -> None:
        self._success = all_models.success
        self._model = model
        self.time_to_first_token = all_models.time_to_first_token.labels(model)
        self.inter_token_latency = all_models.inter_token_latency.labels(model)
        self.duration = all_models.duration.labels(model)
        self.prompt_tokens = all_models.prompt_tokens.labels(model)
        self.generation_tokens = all_models.generation_tokens.labels(model)

    def count_success(self, finished_reason: str) -> None:
        self._success.labels(self._model, finished_reason).inc()


class GatewayMetrics:
    """All of them."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._by_model: dict[str, ModelMetrics] = {}
        declare, model = Declare(registry), ("model",)
        self.time_to_first_token = declare.histogram(
            "time_to_first_token_seconds",
            "Seconds from the call to its first token at the gateway.",
            TIME_TO_FIRST_TOKEN_BUCKETS_S,
            model,
        )
        self.inter_token_latency = declare.histogram(
            "inter_token_latency_seconds",
            "Seconds between two messages with tokens, divided by the tokens of the second.",
            PER_TOKEN_BUCKETS_S,
            model,
        )
        self.duration = declare.histogram(
            "e2e_request_latency_seconds", "Seconds from the call to its end.", REQUEST_BUCKETS_S, model
        )
        self.success = declare.counter(
            "request_success",
            "Requests that ended with `stop`, `length` or `content_filter`.",
            ("model", "finished_reason"),
        )
        self.prompt_tokens = declare.counter("prompt_tokens", "Prompt tokens of requests that ended.", model)
        self.generation_tokens = declare.counter(
            "generation_tokens", "Generated tokens that were relayed to clients.", model
        )
        self.routes = declare.counter(
            "model_routes",
            "Requests for a model that is served, by how they named it: `name`, `alias`, `default` or "
            "`split`; by its adapter, if they chose one; and by the alias that is split over it.",
            ("model", "by", "adapter", "alias"),
        )
        self.moe_requests = declare.counter("moe_requests", "Those for a mixture of experts.", model)
        self.bad = BadMessages(
            declare.counter(
                "gateway_bad_messages",
                "Messages over NATS that failed their checks and were ignored: `chunk`, `heartbeat` or "
                "`host`.",
                ("kind",),
            )
        )
        self.streams = declare.gauge(
            "gateway_streams", "Token streams that are open, those whose client has left included."
        )
        self.http_requests = declare.counter(
            "http_requests",
            "HTTP calls with a key that ended, by path and status; 499: the client left.",
            ("path", "status"),
        )
        self.answers = AnswerMetrics(declare)

    def count_route(
        self, asked: str, card: model_pb2.ModelCard, adapter: str = "", *, is_split: bool = False
    ) -> str:
        """A request that named `asked` goes to a model, or to an adapter of it.

        Args:
            is_split: whether `asked` is an alias that is split over several.

        Returns:
            How it named it: `name`, `alias`, `default` or `split`.
        """
        is_name = asked in (card.name, joined(card.name, adapter))
        by = "split" if is_split else "default" if not asked else "name" if is_name else "alias"
        # Only what the configuration names: labels have to stay bounded.
        self.routes.labels(card.name, by, adapter, asked if is_split else "").inc()
        if card.is_moe:
            self.moe_requests.labels(card.name).inc()
        return by

    def of(self, model: str) -> ModelMetrics:
        """Return those of one model, whose name must be that of a served one: labels have to stay bounded."""
        metrics = self._by_model.get(model)
        if metrics is None:
            metrics = self._by_model[model] = ModelMetrics(self, model)
        return metrics
