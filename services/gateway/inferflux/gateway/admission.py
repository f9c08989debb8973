"""The gateway's side of policy: may this caller, and what did the request use in the end."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import grpc.aio

from inferflux.common import grpc_metadata
from inferflux.common.errors import InferFluxError, Unavailable, from_rpc
from inferflux.v1 import policy_pb2, policy_pb2_grpc


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as policy knows them.

    Attributes:
        max_priority: the most urgent priority of the caller's requests; None where policy sets no ceiling.
    """

    tenant: str
    key_id: str
    max_priority: int | None = None

    def capped(self, priority: int) -> int:
        """The priority a request gets that asks for this one."""
        return priority if self.max_priority is None else min(priority, self.max_priority)


class Admission:
    """Asks the policy service. Closed when that does not answer: nobody is let in unasked."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout_s: float) -> None:
        self._stub = policy_pb2_grpc.PolicyServiceStub(channel)
        self._timeout_s = timeout_s

    async def admit(
        self,
        metadata: grpc_metadata.Metadata | None,
        *,
        scope: str,
        request_id: str,
        model: str = "",
        priority: int = 0,
        traceparent: str = "",
    ) -> Caller:
        """Let a call pass.

        Args:
            traceparent: of the span that policy's answer is part of; empty for the caller's own.

        Raises:
            Unauthenticated: no credential, or an unknown one.
            PermissionDenied, ResourceExhausted: policy says no.
            Unavailable: policy, or its store, does not answer.
        """
        ask = policy_pb2.AdmitRequest(
            credential=grpc_metadata.credential(metadata),
            scope=scope,
            request_id=request_id,
            model=model,
            priority=priority,
        )
        try:
            answer = await self._stub.Admit(
                ask,
                timeout=self._timeout_s,
                metadata=grpc_metadata.outgoing(
                    request_id=request_id,
                    traceparent=traceparent or grpc_metadata.get(metadata, grpc_metadata.TRACEPARENT),
                ),
            )
        except grpc.aio.AioRpcError as error:
            raise _to_error(error) from None
        return Caller(
            tenant=answer.tenant,
            key_id=answer.key_id,
            max_priority=answer.max_priority if answer.HasField("max_priority") else None,
        )

    async def settle(self, request: policy_pb2.SettleRequest) -> None:
        """Say what a request used. Saying it twice counts once.

        Raises:
            InferFluxError: policy does not answer, or does not take it.
        """
        try:
            await self._stub.Settle(
                request,
                timeout=self._timeout_s,
                metadata=grpc_metadata.outgoing(request_id=request.request_id),
            )
        except grpc.aio.AioRpcError as error:
            raise _to_error(error) from None


_TRANSPORT_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


def _to_error(error: grpc.aio.AioRpcError) -> InferFluxError:
    """Policy's own error as it is; a connection's as what it means to the caller."""
    was_policy = any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ())
    if error.code() in _TRANSPORT_CODES and not was_policy:
        return Unavailable("the policy service does not answer", reason="POLICY_UNAVAILABLE")
    return from_rpc(error)
