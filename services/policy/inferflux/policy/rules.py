"""What each of policy's methods asks of its callers, and how large its messages may be."""

from __future__ import annotations

from collections.abc import Mapping

from inferflux.common.grpc_rules import MethodRule, rules_of
from inferflux.v1 import policy_pb2

_POLICY = policy_pb2.DESCRIPTOR.services_by_name["PolicyService"]

SERVICE_NAME = _POLICY.full_name
# Every message of policy is small: gRPC refuses a larger one before it has arrived.
MAX_BODY_BYTES = 16 << 10

# Gateways call these, without a key of their own.
_FOR_SERVICES = ("Admit", "Settle")

RULES: Mapping[str, MethodRule] = {
    **dict(rules_of(_POLICY, MethodRule("admin", max_body_bytes=MAX_BODY_BYTES))),
    **{f"/{SERVICE_NAME}/{name}": MethodRule(max_body_bytes=MAX_BODY_BYTES) for name in _FOR_SERVICES},
}
