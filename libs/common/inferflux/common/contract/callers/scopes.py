"""Scopes of an API key: the one list. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum


class Scope(StrEnum):
    """`SCOPES` says what each is for, `expanded` which others it includes."""

    INFERENCE = "inference"
    MODELS = "models"
    MODELS_LOAD = "models:load"
    ADMIN = "admin"
    STATUS = "status"
    CLUSTER = "cluster"
    POLICY = "policy"
    POLICY_READ = "policy:read"


SCOPES: Mapping[Scope, str] = {
    Scope.INFERENCE: "have answers computed, resume and cancel them; tokenize",
    Scope.MODELS: "see which models are served",
    Scope.MODELS_LOAD: "have models loaded, unloaded and forgotten",
    Scope.ADMIN: "everything an operator does",
    Scope.STATUS: "see services, workers, the queue and fairness",
    Scope.CLUSTER: "change fairness, drain workers, move requests, clear caches",
    Scope.POLICY: "manage keys, roles, limits and guardrails; export and import them",
    Scope.POLICY_READ: "see keys, roles, limits and guardrails, but no secret",
}
"""Purpose of each scope."""

_INCLUDED: Mapping[Scope, frozenset[Scope]] = {
    Scope.ADMIN: frozenset({Scope.MODELS_LOAD, Scope.STATUS, Scope.CLUSTER, Scope.POLICY, Scope.POLICY_READ}),
    Scope.CLUSTER: frozenset({Scope.STATUS}),
    Scope.POLICY: frozenset({Scope.POLICY_READ}),
}


def expanded(scopes: Iterable[str]) -> frozenset[Scope]:
    """These scopes and those that they include. One of another version grants nothing."""
    known = {Scope(name) for name in scopes if name in _KNOWN}
    return frozenset(known.union(*(_INCLUDED.get(scope, frozenset()) for scope in known)))


_KNOWN = frozenset(Scope)
