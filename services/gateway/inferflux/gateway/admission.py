"""The gateway's side of policy: may this caller, and what did the request use in the end."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict

import grpc
import grpc.aio

from inferflux.common import grpc_metadata
from inferflux.common.api_key import is_well_formed
from inferflux.common.calls import CallContext
from inferflux.common.errors import InferFluxError, Unauthenticated, Unavailable, from_rpc
from inferflux.v1 import policy_pb2, policy_pb2_grpc

from .caller import Caller
from .gate import Gate

# Keys that are remembered as admitted.
_KEYS_REMEMBERED = 4096


class Admission:
    """Asks the policy service. While that does not answer, every call is refused.

    Policy is asked a bounded number of questions at a time. The others wait in order, and the time limit of a
    question counts from when it is sent, so a burst is answered late instead of refused. Calls with a key
    that was admitted before are asked for first: a flood of invented keys cannot keep them out.

    Args:
        timeout_s: for one answer of policy, in seconds.
        at_once: admissions that policy is asked for at a time.
        waiting: calls that may wait to be asked for, with a key that was admitted before and with another;
            one more is refused.
    """

    def __init__(
        self, channel: grpc.aio.Channel, *, timeout_s: float, at_once: int = 16, waiting: int = 1024
    ) -> None:
        self._stub = policy_pb2_grpc.PolicyServiceStub(channel)
        self._timeout_s = timeout_s
        self._admits = Gate(at_once=at_once, waiting=waiting)
        self._settles = asyncio.Semaphore(at_once)
        # Digests of keys that were admitted, the latest last.
        self._admitted: OrderedDict[bytes, None] = OrderedDict()

    async def admit(self, scope: str, context: CallContext) -> Caller:
        """Let a call pass, by its context alone.

        Raises:
            Unauthenticated: no credential, or an unknown one.
            PermissionDenied: policy says no.
            ResourceExhausted: too many calls wait for policy.
            Unavailable: policy, or its store, does not answer.
        """
        credential = context.require_credential()
        if not is_well_formed(credential):
            raise Unauthenticated("this API key is unknown or was revoked", reason="UNKNOWN_API_KEY")
        ask = policy_pb2.AdmitRequest(credential=credential, scope=scope, request_id=context.request_id)
        key = hashlib.sha256(credential.encode()).digest()
        async with self._admits.place(is_preferred=key in self._admitted):
            try:
                answer = await self._stub.Admit(
                    ask,
                    timeout=self._timeout_s,
                    metadata=grpc_metadata.outgoing(
                        request_id=context.request_id, traceparent=context.traceparent
                    ),
                )
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                    self._admitted.pop(key, None)
                raise _to_error(error) from None
        self._remember(key)
        return Caller(
            tenant=answer.tenant,
            key_id=answer.key_id,
            max_priority=answer.max_priority if answer.HasField("max_priority") else None,
            cache_scope=answer.cache_scope,
            skips_answer_cache=answer.skip_answer_cache,
        )

    async def settle(self, request: policy_pb2.SettleRequest) -> None:
        """Say what a request used. Saying it twice counts once.

        Raises:
            InferFluxError: policy does not answer, or does not take it.
        """
        async with self._settles:
            try:
                await self._stub.Settle(
                    request,
                    timeout=self._timeout_s,
                    metadata=grpc_metadata.outgoing(request_id=request.request_id),
                )
            except grpc.aio.AioRpcError as error:
                raise _to_error(error) from None

    def _remember(self, key: bytes) -> None:
        self._admitted[key] = None
        self._admitted.move_to_end(key)
        if len(self._admitted) > _KEYS_REMEMBERED:
            self._admitted.popitem(last=False)


_TRANSPORT_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


def _to_error(error: grpc.aio.AioRpcError) -> InferFluxError:
    """Policy's own error as it is; a connection's as what it means to the caller."""
    was_policy = any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ())
    if error.code() in _TRANSPORT_CODES and not was_policy:
        return Unavailable("the policy service does not answer", reason="POLICY_UNAVAILABLE")
    return from_rpc(error)
