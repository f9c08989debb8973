"""What each of the gateway's methods asks of its callers, and how large their messages may be."""

from __future__ import annotations

from collections.abc import Mapping

from inferflux.common.calls.grpc_rules import REFLECTION_RULES, MethodRule, rules_of
from inferflux.common.contract.callers import policy_methods
from inferflux.common.contract.callers.scopes import Scope
from inferflux.v1 import admin_pb2, cluster_pb2, embedding_pb2, inference_pb2, model_pb2

from . import policy_servicer

_INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
_EMBEDDING = embedding_pb2.DESCRIPTOR.services_by_name["EmbeddingService"]
_MODELS = model_pb2.DESCRIPTOR.services_by_name["ModelService"]
_CLUSTER = cluster_pb2.DESCRIPTOR.services_by_name["ClusterService"]
_ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]

INFERENCE = _INFERENCE.full_name
SERVICE_NAMES = tuple(service.full_name for service in (_INFERENCE, _EMBEDDING, _MODELS, _CLUSTER, _ADMIN))

_WITH_PROMPTS = ("Chat", "Generate", "Tokenize", "Detokenize")
# Beside its texts: roles, parameters, and one text more than is taken, so that validation can say so.
_BESIDE_TEXT_BYTES = 2 << 20

MODEL_CHANGES = tuple(
    _MODELS.methods_by_name[name]
    for name in (
        "LoadModel",
        "UnloadModel",
        "AddAdapter",
        "RemoveAdapter",
        "Pull",
        "RemoveModel",
        "VerifyModel",
    )
)
"""What changes which models are loaded, which there are, and their adapters."""

ADMIN_METHODS = (*_CLUSTER.methods, *_ADMIN.methods, *MODEL_CHANGES, *policy_methods.ADMIN_METHODS)
"""What administrators call. No two have the same name."""

ADMIN_RULES: Mapping[str, MethodRule] = {
    **dict(rules_of(_CLUSTER, MethodRule(Scope.STATUS))),
    **dict(rules_of(_ADMIN, MethodRule(Scope.CLUSTER))),
    f"/{_ADMIN.full_name}/GetFairness": MethodRule(Scope.STATUS),
    **{f"/{_MODELS.full_name}/{m.name}": MethodRule(Scope.MODELS_LOAD) for m in MODEL_CHANGES},
    **policy_servicer.rules(),
}
"""The rules of these methods, by full name."""


def body_limit(max_text_bytes: int) -> int:
    """The largest message with a prompt, in bytes, where texts may have `max_text_bytes`."""
    return max_text_bytes + _BESIDE_TEXT_BYTES


def rules(max_text_bytes: int) -> Mapping[str, MethodRule]:
    """A rule for every method, by full name."""
    inference = dict(rules_of(_INFERENCE, MethodRule(Scope.INFERENCE)))
    with_prompt = MethodRule(Scope.INFERENCE, max_body_bytes=body_limit(max_text_bytes), is_counted=True)
    return {
        **inference,
        **{f"/{_INFERENCE.full_name}/{name}": with_prompt for name in _WITH_PROMPTS},
        **dict(rules_of(_EMBEDDING, with_prompt)),
        **dict(rules_of(_MODELS, MethodRule(Scope.MODELS))),
        **ADMIN_RULES,
        **REFLECTION_RULES,
    }
