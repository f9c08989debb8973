"""The gateway's side of policy: may this caller, may this request, and what did it use in the end."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence

import grpc
import grpc.aio

from inferflux.common.calls import grpc_metadata
from inferflux.common.calls.calls import CallContext, note_holder
from inferflux.common.contract.callers.credentials import could_be_credential
from inferflux.common.contract.errors import InferFluxError, Unauthenticated, Unavailable, from_rpc
from inferflux.common.contract.requests import priority as priorities
from inferflux.v1 import guardrails_pb2, policy_pb2, policy_pb2_grpc

from .caller import Caller
from .gate import Gate
from .known_keys import KnownKeys
from .policy_questions import PolicyQuestions, admitted_of, settled_of

# Questions under way at a time: about calls, about requests that ended, and each about one request.
_ADMITS, _SETTLES, _RESERVES = 4, 2, 16


class Admission:
    """Asks the policy service. While that does not answer, calls are refused that no earlier answer covers.

    Policy is asked about a bounded number of calls at a time, in few questions. The others wait in order, and
    the time limit of a question counts from when it is sent, so a burst is answered late instead of refused.
    Calls with a key that was admitted before are asked for first: a flood of invented keys cannot keep them
    out. Of these the most urgent go first, as far as they announce their priority and their key may have it.

    An answer is used again, without a question, for as long as policy says that it would give the same, and
    for calls that came before its question was sent.

    Args:
        service_key: proves to policy that this is a gateway.
        timeout_s: for one answer of policy, in seconds.
        at_once: calls that policy is asked about at a time.
        known, others: calls that may wait to be asked for, with a key that was admitted before and with
            another; one more is refused.
        clock: in seconds, from any start.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        service_key: str,
        timeout_s: float,
        at_once: int = 64,
        known: int = 6144,
        others: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service_key = service_key
        self._stub = policy_pb2_grpc.PolicyServiceStub(channel)
        self._timeout_s = timeout_s
        self._gate = Gate(at_once=at_once, preferred=known, others=others)
        self._calls = PolicyQuestions(self._ask_about, at_once=_ADMITS)
        self._ended = PolicyQuestions(self._settle_together, at_once=_SETTLES)
        self._reserves = asyncio.Semaphore(_RESERVES)
        self._clock = clock
        self._known = KnownKeys()
        # Questions under way whose answers may hold for other calls too: whether they did, by key and scope.
        self._asking: dict[tuple[bytes, str], asyncio.Future[bool]] = {}

    async def admit(self, scope: str, context: CallContext) -> Caller:
        """Let a call pass, by its context alone.

        Raises:
            Unauthenticated: no credential, or an unknown one.
            PermissionDenied: policy says no.
            ResourceExhausted: too many calls wait for policy, or a limit of the caller is used up.
            Unavailable: policy, or its store, does not answer.
        """
        credential = context.require_credential()
        if not could_be_credential(credential):
            raise Unauthenticated("this API key is unknown or was revoked", reason="UNKNOWN_API_KEY")
        key = hashlib.sha256(credential.encode()).digest()
        came_s = self._clock()
        known = self._known.holder(key, scope, came_s=came_s, now_s=came_s) if context.is_counted else None
        if known is not None:
            return known
        ask = policy_pb2.AdmitRequest(
            credential=credential,
            scope=scope,
            request_id=context.request_id,
            is_counted=context.is_counted,
            method=context.method,
            traceparent=context.traceparent,
        )
        ceiling = self._known.ceiling(key)
        priority = min(context.announced_priority, ceiling or 0)
        async with self._gate.place(is_preferred=ceiling is not None, priority=priority):
            if not context.is_counted:
                return await self._ask_alone(key, ask, context)
            known = await self._asked_meanwhile(key, scope, came_s)
            return known or await self._ask_for_others(key, ask, context)

    async def _asked_meanwhile(self, key: bytes, scope: str, came_s: float) -> Caller | None:
        """The holder of a key, where a question about another call tells it; None: policy has to be asked."""
        while (known := self._known.holder(key, scope, came_s=came_s, now_s=self._clock())) is None:
            asking = self._asking.get((key, scope))
            if asking is None or not await asyncio.shield(asking):
                return None
        return known

    async def _ask_for_others(self, key: bytes, ask: policy_pb2.AdmitRequest, context: CallContext) -> Caller:
        """Ask policy. Further calls of the key wait for the answer, if the last one did hold for others."""
        about = key, ask.scope
        if about in self._asking or not self._known.is_shared(*about):
            return await self._ask_alone(key, ask, context)
        asking = self._asking[about] = asyncio.get_running_loop().create_future()
        is_told = False
        try:
            caller = await self._ask_alone(key, ask, context)
            is_told = self._known.is_shared(*about)
        finally:
            del self._asking[about]
            asking.set_result(is_told)
        return caller

    async def _ask_alone(self, key: bytes, ask: policy_pb2.AdmitRequest, context: CallContext) -> Caller:
        asked_s = self._clock()
        try:
            answer = await self._calls.answer(ask)
        except InferFluxError as refusal:
            note_holder(context.record, refusal)
            if isinstance(refusal, Unauthenticated):
                self._known.forget(key)
            raise
        if answer.subject:
            context.record.about |= {"issuer": answer.issuer, "subject": answer.subject}
        caller = _caller_of(answer)
        self._known.admitted(
            key,
            ask.scope,
            caller,
            max_priority=priorities.HIGHEST if caller.max_priority is None else caller.max_priority,
            asked_s=asked_s,
            valid_s=answer.valid_ms / 1000 if context.is_counted else None,
        )
        return caller

    def policy_changed(self) -> None:
        """An administrator may have changed something here: policy is asked about each key again."""
        self._known.changed(self._clock())

    async def _ask_about(
        self, calls: Sequence[policy_pb2.AdmitRequest]
    ) -> Sequence[policy_pb2.AdmitResponse | InferFluxError]:
        """Ask policy about each of these calls."""
        try:
            if len(calls) > 1:
                many = policy_pb2.AdmitManyRequest(requests=calls)
                answer = await self._stub.AdmitMany(many, timeout=self._timeout_s, metadata=self._metadata())
                return admitted_of(answer)
            metadata = self._metadata(calls[0].request_id, calls[0].traceparent)
            return [await self._stub.Admit(calls[0], timeout=self._timeout_s, metadata=metadata)]
        except grpc.aio.AioRpcError as error:
            return [to_error(error) for _ in calls]

    async def reserve(self, request: policy_pb2.ReserveRequest) -> policy_pb2.ReserveResponse:
        """Let a request be queued.

        Raises:
            ResourceExhausted: it would be over a limit.
            InferFluxError: policy says no, or does not answer.
        """
        async with self._reserves:
            try:
                return await self._stub.Reserve(
                    request, timeout=self._timeout_s, metadata=self._metadata(request.request_id)
                )
            except grpc.aio.AioRpcError as error:
                raise to_error(error) from None

    async def stream_guards(
        self, request: guardrails_pb2.GetStreamGuardsRequest
    ) -> guardrails_pb2.GetStreamGuardsResponse:
        """The rules that answers are held to.

        Raises:
            InferFluxError: policy does not answer.
        """
        try:
            return await self._stub.GetStreamGuards(
                request, timeout=self._timeout_s, metadata=self._metadata()
            )
        except grpc.aio.AioRpcError as error:
            raise to_error(error) from None

    async def renew(self, requests: Sequence[policy_pb2.ReservedRequest]) -> policy_pb2.RenewResponse:
        """Say that requests still run.

        Raises:
            InferFluxError: policy does not answer, or does not take it.
        """
        try:
            return await self._stub.Renew(
                policy_pb2.RenewRequest(requests=requests),
                timeout=self._timeout_s,
                metadata=self._metadata(),
            )
        except grpc.aio.AioRpcError as error:
            raise to_error(error) from None

    async def settle(self, request: policy_pb2.SettleRequest) -> None:
        """Say what a request used. Saying it twice counts once.

        Raises:
            InferFluxError: policy does not answer, or does not take it.
        """
        await self._ended.answer(request)

    async def _settle_together(
        self, ended: Sequence[policy_pb2.SettleRequest]
    ) -> Sequence[policy_pb2.SettleResponse | InferFluxError]:
        """Settle each of these requests with policy; return its answers."""
        try:
            if len(ended) > 1:
                many = policy_pb2.SettleManyRequest(requests=ended)
                return settled_of(
                    await self._stub.SettleMany(many, timeout=self._timeout_s, metadata=self._metadata())
                )
            metadata = self._metadata(ended[0].request_id)
            return [await self._stub.Settle(ended[0], timeout=self._timeout_s, metadata=metadata)]
        except grpc.aio.AioRpcError as error:
            return [to_error(error) for _ in ended]

    def _metadata(self, request_id: str = "", traceparent: str = "") -> tuple[tuple[str, str], ...]:
        return grpc_metadata.outgoing(
            request_id=request_id, traceparent=traceparent, service_key=self._service_key
        )


def _caller_of(answer: policy_pb2.AdmitResponse) -> Caller:
    return Caller(
        tenant=answer.tenant,
        key_id=answer.key_id,
        max_priority=answer.max_priority if answer.HasField("max_priority") else None,
        cache_scope=answer.cache_scope,
        skips_answer_cache=answer.skip_answer_cache,
        models=tuple(answer.models),
        limits=tuple(answer.limits),
        skips_reserve=answer.skips_reserve and not answer.HasField("facts"),
        wants_text=answer.wants_text,
        guards_stream=answer.guards_stream,
        worker_pools=tuple(answer.worker_pools),
        is_deterministic=answer.deterministic,
        facts=answer.facts if answer.HasField("facts") else None,
    )


# Of errors about this gateway, which its callers cannot help.
_OWN_REASONS = frozenset({"NO_SERVICE_KEY", "WRONG_SERVICE_KEY"})
_TRANSPORT_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


def to_error(error: grpc.aio.AioRpcError) -> InferFluxError:
    """Policy's own error as it is; one of the connection or of this gateway as what it means to callers."""
    was_policy = any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ())
    if error.code() in _TRANSPORT_CODES and not was_policy:
        return Unavailable("the policy service does not answer", reason="POLICY_UNAVAILABLE")
    own = from_rpc(error)
    if own.reason in _OWN_REASONS:
        message = "policy does not take this gateway's service key (INFERFLUX_SERVICE_KEY)"
        return Unavailable(message, reason="POLICY_REFUSES_GATEWAY")
    return own
