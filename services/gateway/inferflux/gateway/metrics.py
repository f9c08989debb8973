"""What the gateway measures of requests, as the client sees them, under the names of vLLM's metrics."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from inferflux.common.bad_messages import BadMessages
from inferflux.common.metrics import (
    PER_TOKEN_BUCKETS_S,
    PREFIX,
    REQUEST_BUCKETS_S,
    TIME_TO_FIRST_TOKEN_BUCKETS_S,
)

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
        model = ["model"]
        self.time_to_first_token = Histogram(
            f"{PREFIX}_time_to_first_token_seconds",
            "Seconds from the call to its first token at the gateway.",
            model,
            buckets=TIME_TO_FIRST_TOKEN_BUCKETS_S,
            registry=registry,
        )
        self.inter_token_latency = Histogram(
            f"{PREFIX}_inter_token_latency_seconds",
            "Seconds between two messages with tokens, divided by the tokens of the second.",
            model,
            buckets=PER_TOKEN_BUCKETS_S,
            registry=registry,
        )
        self.duration = Histogram(
            f"{PREFIX}_e2e_request_latency_seconds",
            "Seconds from the call to its end.",
            model,
            buckets=REQUEST_BUCKETS_S,
            registry=registry,
        )
        self.success = Counter(
            f"{PREFIX}_request_success",
            "Requests that ended with `stop` or `length`.",
            ["model", "finished_reason"],
            registry=registry,
        )
        self.prompt_tokens = Counter(
            f"{PREFIX}_prompt_tokens", "Prompt tokens of requests that ended.", model, registry=registry
        )
        self.generation_tokens = Counter(
            f"{PREFIX}_generation_tokens",
            "Generated tokens that were relayed to clients.",
            model,
            registry=registry,
        )
        self.bad = BadMessages(
            Counter(
                f"{PREFIX}_gateway_bad_messages",
                "Messages over NATS that failed their checks and were ignored: `chunk` or `heartbeat`.",
                ["kind"],
                registry=registry,
            )
        )
        self.streams = Gauge(
            f"{PREFIX}_gateway_streams",
            "Token streams that are open, those whose client has left included.",
            registry=registry,
        )
        self.http_requests = Counter(
            f"{PREFIX}_http_requests",
            "HTTP calls with a key that ended, by path and status; 499: the client left.",
            ["path", "status"],
            registry=registry,
        )
        self.answers = AnswerMetrics(registry)

    def of(self, model: str) -> ModelMetrics:
        """Of one model, whose name must be that of a served one: labels have to stay bounded."""
        metrics = self._by_model.get(model)
        if metrics is None:
            metrics = self._by_model[model] = ModelMetrics(self, model)
        return metrics
