"""Rules of policy's methods: the scope of a caller, and the largest message."""

from __future__ import annotations

from collections.abc import Mapping

from inferflux.common.calls.grpc_rules import REFLECTION_RULES, MethodRule
from inferflux.common.calls.service_key import SERVICE
from inferflux.common.calls.wire import MAX_FIELDS
from inferflux.common.contract.callers.policy_methods import (
    ADMIN_METHODS,
    FOR_SERVICES,
    LARGER_BODIES,
    MORE_FIELDS,
    SERVICE_NAME,
    scope_of,
)

MAX_BODY_BYTES = 16 << 10
_LARGER_BODIES = {
    # What a gateway asks about together, of 64 KiB at the most but for one that is larger.
    "AdmitMany": 128 << 10,
    "SettleMany": 128 << 10,
    # 512 requests, each with three names of at most 64 characters.
    "Renew": 128 << 10,
    # With the text of a prompt: gateways take texts of at most 15 MiB.
    "Reserve": (15 << 20) + MAX_BODY_BYTES,
    # Each set that a gateway has.
    "GetStreamGuards": 1 << 20,
    **LARGER_BODIES,
}
# gRPC refuses a larger message before it has arrived.
MAX_MESSAGE_BYTES = 16 << 20

RULES: Mapping[str, MethodRule] = {
    **{
        f"/{SERVICE_NAME}/{name}": MethodRule(
            SERVICE, max_body_bytes=_LARGER_BODIES.get(name, MAX_BODY_BYTES)
        )
        for name in FOR_SERVICES
    },
    **{
        f"/{SERVICE_NAME}/{method.name}": MethodRule(
            scope_of(method.name),
            max_body_bytes=_LARGER_BODIES.get(method.name, MAX_BODY_BYTES),
            max_fields=MORE_FIELDS.get(method.name, MAX_FIELDS),
        )
        for method in ADMIN_METHODS
    },
    **REFLECTION_RULES,
}
