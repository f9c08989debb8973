"""PolicyService, as far as administrators call it: passed on to policy, with the caller's own key.

Policy admits the key again and decides by itself. So an administrator needs the gateway's address alone, and
whatever policy serves for administrators, the gateway does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from inferflux.common.calls import grpc_metadata
from inferflux.common.calls.audit.policy_changes import asked, became
from inferflux.common.calls.grpc_interceptor import current_call, note_change
from inferflux.common.calls.grpc_rules import SMALL_BODY_BYTES, MethodRule
from inferflux.common.calls.wire import MAX_FIELDS
from inferflux.common.contract.callers.policy_methods import (
    ADMIN_METHODS,
    LARGER_BODIES,
    MORE_FIELDS,
    SERVICE_NAME,
    scope_of,
)
from inferflux.gateway.operator.admin_methods import AdminMethod
from inferflux.gateway.policy.admission import to_error

# Checks, a few round trips to Redis, and a list of many keys.
_TIMEOUT_S = 10.0
# Several round trips for each thing that is changed.
_LONGER_TIMEOUTS_S = {"ImportPolicy": 60.0}


def rules() -> dict[str, MethodRule]:
    """A rule for each method that is passed on, by full name."""
    return {
        f"/{SERVICE_NAME}/{m.name}": MethodRule(
            scope_of(m.name),
            max_body_bytes=LARGER_BODIES.get(m.name, SMALL_BODY_BYTES),
            max_fields=MORE_FIELDS.get(m.name, MAX_FIELDS),
        )
        for m in ADMIN_METHODS
    }


def methods(policy: grpc.aio.Channel, on_end: Callable[[], None]) -> list[AdminMethod]:
    """The methods that are passed on.

    Args:
        on_end: called after each, which may have changed something, also where it failed.
    """
    return [AdminMethod.of(method, _call(policy, method, on_end)) for method in ADMIN_METHODS]


def add_to(server: grpc.aio.Server, passed_on: Sequence[AdminMethod]) -> None:
    """Have a server serve them."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method.name: grpc.unary_unary_rpc_method_handler(
            method.call,
            request_deserializer=method.request.FromString,
            response_serializer=method.answer.SerializeToString,
        )
        for method in passed_on
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
    server.add_registered_method_handlers(SERVICE_NAME, handlers)


def _call(
    policy: grpc.aio.Channel, method: MethodDescriptor, on_end: Callable[[], None]
) -> Callable[[Any, object], Awaitable[Message]]:
    call: Any = policy.unary_unary(
        f"/{SERVICE_NAME}/{method.name}",
        request_serializer=GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )

    timeout_s = _LONGER_TIMEOUTS_S.get(method.name, _TIMEOUT_S)

    async def handle(request: Message, _context: object) -> Message:
        context = current_call().context
        if (change := asked(request)) is not None:
            note_change(**change)
        metadata = grpc_metadata.outgoing(
            api_key=context.credential, request_id=context.request_id, traceparent=context.traceparent
        )
        try:
            passed: Message = await call(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise to_error(error) from None
        finally:
            on_end()
        if change is not None:
            note_change(**became(passed))
        return passed

    return handle
