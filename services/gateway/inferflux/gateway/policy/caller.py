"""The caller, as policy knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferflux.common.contract.errors import PermissionDenied
from inferflux.common.contract.models.model_names import allows
from inferflux.common.contract.requests.adapters import joined
from inferflux.v1 import policy_pb2


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of an admitted API key.

    Attributes:
        max_priority: the most urgent priority of the caller's requests; None where policy sets no ceiling.
        cache_scope: the name of the scope of cached prefixes that they share with other tenants; "" for none.
        skips_answer_cache: whether their answers are neither taken from the answer cache nor kept there.
        models: patterns of the models that the caller may use; empty: every model.
        limits: what was left of the caller's limits when the call was admitted.
        skips_reserve: whether policy has nothing to decide about the caller's requests before they run.
        wants_text: whether policy wants to see the prompts.
        guards_stream: whether answers may be held to guardrails.
        worker_pools: pools of the workers that its requests may run on; empty: every worker.
        is_deterministic: whether the caller's requests are that leave it open.
        facts: what policy wants to be told again when it reserves; None where it does not.
    """

    tenant: str
    key_id: str
    max_priority: int | None = None
    cache_scope: str = ""
    skips_answer_cache: bool = False
    models: Sequence[str] = ()
    limits: Sequence[policy_pb2.RateLimitState] = ()
    skips_reserve: bool = False
    wants_text: bool = False
    guards_stream: bool = False
    worker_pools: Sequence[str] = ()
    is_deterministic: bool = False
    facts: policy_pb2.DecisionFacts | None = None

    def check_model(self, model: str, adapter: str = "") -> None:
        """A caller that may use a model may use its adapters; one may be allowed an adapter alone.

        Raises:
            PermissionDenied: the caller may not use it.
        """
        if not self.may_use(model, adapter):
            message = f"key {self.key_id} may not use the model {joined(model, adapter)}"
            raise PermissionDenied(message, reason="MODEL_NOT_ALLOWED")

    def may_use(self, model: str, adapter: str = "") -> bool:
        """Return whether the caller may use a model, or an adapter of it."""
        return allows(self.models, model) or allows(self.models, joined(model, adapter))

    def capped(self, priority: int) -> int:
        """The priority a request gets that asks for this one."""
        return priority if self.max_priority is None else min(priority, self.max_priority)
