"""Metrics of the policy service."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import REGISTRY, CollectorRegistry

from inferflux.common.contract.errors import InferFluxError
from inferflux.common.process.metrics import Declare

MOST_MODELS = 256
_OTHER = "other"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class PolicyMetrics:
    """Admissions by outcome and time, settled tokens, and whether the store answers."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        declare = Declare(registry)
        self._models = ModelLabels()
        self._admissions = declare.counter(
            "policy_admissions",
            "Admit calls: `admitted`, `aborted`, or the reason of the refusal in lower case.",
            ("outcome",),
        )
        self._seconds = declare.histogram(
            "policy_admit_seconds", "Seconds that one Admit call took.", _SECONDS
        )
        self._settled = declare.counter(
            "policy_settled_requests", "Requests that were added to usage counters, each once.", ("model",)
        )
        self._tokens = declare.counter(
            "policy_settled_tokens",
            "Tokens that were added to usage counters: `prompt` or `completion`.",
            ("model", "kind"),
        )
        self._reservations = declare.counter(
            "policy_reservations",
            "Reserve calls: `reserved`, `aborted`, or the reason of the refusal in lower case.",
            ("model", "outcome"),
        )
        self.expired = declare.counter(
            "policy_expired_reservations",
            "Reservations that were given back because their gateway did not renew them.",
        )
        self._refused_tokens = declare.counter(
            "policy_refused_tokens",
            "Tokens of issuers that were refused, by what was wrong; their callers are told nothing of it.",
            ("why",),
        )
        self.store_up = declare.gauge("policy_store_up", "1 while Redis and the storage answer, else 0.")

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Count and time one Admit; the outcome is `admitted` or the error's reason, lower case."""
        started = time.perf_counter()
        outcome = "aborted"
        try:
            yield
            outcome = "admitted"
        except InferFluxError as error:
            outcome = error.reason.lower()
            raise
        finally:
            self._admissions.labels(outcome).inc()
            self._seconds.observe(time.perf_counter() - started)

    @contextmanager
    def reservation(self, model: str) -> Iterator[None]:
        """Count one Reserve of a model; the outcome is `reserved` or the error's reason, lower case."""
        outcome = "aborted"
        try:
            yield
            outcome = "reserved"
        except InferFluxError as error:
            outcome = error.reason.lower()
            raise
        finally:
            self._reservations.labels(self._models.of(model), outcome).inc()

    def count_refused_token(self, why: str) -> None:
        self._refused_tokens.labels(why).inc()

    def count_settled(self, model: str, added: Mapping[str, int]) -> None:
        """Follow what was added to a tenant's counters for a request of a model."""
        label = self._models.of(model)
        self._settled.labels(label).inc(added["requests"])
        self._tokens.labels(label, "prompt").inc(added["prompt_tokens"])
        self._tokens.labels(label, "completion").inc(added["completion_tokens"])


class ModelLabels:
    """Names of models as labels. Services name them, and a label lasts as long as the process.

    So there are at most `MOST_MODELS`; what comes then is `other`.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()

    def of(self, model: str) -> str:
        if model in self._known:
            return model
        if len(self._known) >= MOST_MODELS:
            return _OTHER
        self._known.add(model)
        return model


class DecisionMetrics:
    """Decisions of backends, and loads of their files."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        declare = Declare(registry)
        self._decisions = declare.counter(
            "policy_decisions",
            "Decisions of decision backends. `outcome`: `permitted`, `refused`, or what a call "
            "got without one: `failed` (refused) or `failed_open` (let pass). `source`: `asked` or `cached`.",
            ("backend", "outcome", "source"),
        )
        self.reloads = declare.counter(
            "policy_decision_reloads",
            "Changed files of decision backends: `used`, or `refused` because they cannot be used.",
            ("backend", "outcome"),
        )

    def count(self, backend: str, is_permitted: bool, *, is_cached: bool) -> None:
        """Count a decision."""
        outcome = "permitted" if is_permitted else "refused"
        self._decisions.labels(backend, outcome, "cached" if is_cached else "asked").inc()

    def failed(self, backend: str, *, is_permitted: bool) -> None:
        """Count a call without a decision."""
        self._decisions.labels(backend, "failed_open" if is_permitted else "failed", "asked").inc()
