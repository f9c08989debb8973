"""Callers that each method of PolicyService admits: one definition for policy and for gateways."""

from __future__ import annotations

from collections.abc import Mapping

from inferflux.v1 import policy_pb2

from .scopes import Scope

_POLICY = policy_pb2.DESCRIPTOR.services_by_name["PolicyService"]

SERVICE_NAME = _POLICY.full_name

FOR_SERVICES = ("Admit", "AdmitMany", "Reserve", "Renew", "Settle", "SettleMany", "GetStreamGuards")
"""Methods that services call, with the service key."""

ADMIN_METHODS = tuple(method for method in _POLICY.methods if method.name not in FOR_SERVICES)
"""Methods that administrators call."""


def scope_of(method: str) -> Scope:
    """The scope that a method of administrators needs."""
    return Scope.POLICY_READ if method.startswith(("List", "Get", "Check")) else Scope.POLICY


MAX_DOCUMENT_BYTES = 15 << 20
"""Largest document that is exported or imported at once."""

LARGER_BODIES: Mapping[str, int] = {
    # Rules of 1 MiB, and what is beside them.
    "SetGuardrails": (1 << 20) + (16 << 10),
    # A text of 256 KiB.
    "CheckGuardrails": 272 << 10,
    "ImportPolicy": MAX_DOCUMENT_BYTES + (16 << 10),
}
"""The largest messages of methods of administrators that take more than others."""

MORE_FIELDS: Mapping[str, int] = {
    # 25,000 blocked texts, and whether each is a word.
    "SetGuardrails": 80_000,
    # 10,000 keys, or several such sets.
    "ImportPolicy": 400_000,
}
"""The most fields of messages of these methods, where they take more than others."""
