"""Rules of a server's methods: the scope that callers need, and the largest message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from inferflux.common.contract.callers.scopes import Scope

from .wire import MAX_FIELDS

SMALL_BODY_BYTES = 64 << 10
_OPEN_BODY_BYTES = 4 << 10


@dataclass(frozen=True, slots=True)
class MethodRule:
    """Rule of one method: its callers' scope, and the bounds of its messages.

    Attributes:
        scope: the scope that the caller's key needs, or `SERVICE`; "" admits every caller.
        max_body_bytes: the largest message it decodes.
        max_fields: of a message, those of messages in it too. Counting more of them than usual is left to a
            thread.
        is_counted: it counts against request limits.
        is_open: strangers call it by design. Its calls and their messages have bounds of their own.
    """

    scope: str = ""
    max_body_bytes: int = SMALL_BODY_BYTES
    max_fields: int = MAX_FIELDS
    is_counted: bool = False
    is_open: bool = False


def rules_of(service: ServiceDescriptor, rule: MethodRule) -> Iterator[tuple[str, MethodRule]]:
    """The same rule for every method of a service, under the methods' full names."""
    for method in service.methods:
        yield f"/{service.full_name}/{method.name}", rule


_OPEN = MethodRule(max_body_bytes=_OPEN_BODY_BYTES, is_open=True)

OPEN_RULES: Mapping[str, MethodRule] = dict(rules_of(health_pb2.DESCRIPTOR.services_by_name["Health"], _OPEN))
"""Health answers strangers too, so its messages are small."""

REFLECTION_RULES: Mapping[str, MethodRule] = dict(
    rules_of(
        reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
        MethodRule(Scope.MODELS, max_body_bytes=_OPEN_BODY_BYTES),
    )
)
"""Rules of reflection: callers who may see what a server serves may see its methods."""
