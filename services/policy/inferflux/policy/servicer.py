"""PolicyService as gRPC sees it: check the fields, ask the store, decide, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from inferflux.common.calls.grpc_interceptor import unexpected
from inferflux.common.contract.callers.policy_methods import ADMIN_METHODS
from inferflux.common.contract.callers.scopes import Scope
from inferflux.common.contract.checks import MAX_TOKENS, check_count, check_model_name, check_range
from inferflux.common.contract.errors import InferFluxError, to_status
from inferflux.common.contract.models.model_names import EVERY
from inferflux.common.contract.requests.priority import HIGHEST, LOWEST
from inferflux.common.process import logs
from inferflux.common.tracing import trace_id_of
from inferflux.v1 import guardrails_pb2, policy_pb2

from .callers import naming
from .decide import keys
from .decide.admission import Holder
from .decide.decisions.facts import facts_of_call, parse_method, to_message
from .decide.limits.rules import key_subject, model_subject, tenant_subject
from .decide.usage import SettledRequest, parse_attempt_id, parse_request_id
from .storage.limiter import NOT_COUNTED, Counted, Job

if TYPE_CHECKING:
    import grpc

    from .admin_servicer import Method
    from .callers import Callers
    from .decide.decisions.chain import Decisions
    from .decide.guardrails.prompts import PromptGuard
    from .metrics import PolicyMetrics
    from .storage.limiter import Limiter
    from .storage.usage_store import UsageStore

    Context = grpc.aio.ServicerContext[Any, Any]

_Answer = TypeVar("_Answer", bound=Message)

MAX_ADMITTED = MAX_SETTLED = 64
MAX_RENEWED = 512

log = logs.get()


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts that answer calls."""

    callers: Callers
    usage: UsageStore
    limiter: Limiter
    prompts: PromptGuard
    admin: Mapping[str, Method]
    metrics: PolicyMetrics
    decisions: Decisions | None = None


class PolicyServicer:
    """Every method of PolicyService: those that services call, and `admin_methods`. Errors leave as
    InferFluxErrors; the server's interceptor gives them their status.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        settled_memory_s: int,
        default_max_priority: int,
        default_cache_scope: str,
    ) -> None:
        self._parts = parts
        self._settled_memory_s = settled_memory_s
        self._default_max_priority = default_max_priority
        self._default_cache_scope = default_cache_scope
        for method in ADMIN_METHODS:
            setattr(self, method.name, parts.admin[method.name])

    async def Admit(self, request: policy_pb2.AdmitRequest, context: Context) -> policy_pb2.AdmitResponse:
        with self._parts.metrics.admission():
            scope = keys.parse_scope(request.scope)
            parse_request_id(request.request_id)
            method = parse_method(request.method)
            holder = await self._parts.callers.admit(request.credential, scope, method)
            guardrails = await self._parts.prompts.index()
            key, decisions = holder.key, self._parts.decisions
            with naming(key):
                counted = await self._count(holder) if request.is_counted else NOT_COUNTED
        log.debug("admits a request", tenant=key.tenant, key_id=key.key_id, scope=request.scope)
        access = holder.access
        skips_reserve = decisions is None and not (counted.has_to_reserve or guardrails.holds_any(key.tenant))
        return policy_pb2.AdmitResponse(
            tenant=key.tenant,
            key_id=key.key_id,
            scopes=[scope for scope in Scope if scope in access.scopes],
            max_priority=key.priority_ceiling(
                self._default_max_priority, is_admin=Scope.ADMIN in access.scopes
            ),
            cache_scope=key.shared_scope(self._default_cache_scope),
            skip_answer_cache=key.skips_answer_cache,
            models=() if EVERY in (access.models or key.models) else access.models or key.models,
            limits=counted.states,
            skips_reserve=skips_reserve,
            wants_text=not guardrails.with_texts.isdisjoint(("", key.tenant))
            or (decisions is not None and decisions.wants_text),
            guards_stream=not guardrails.with_streams.isdisjoint(("", key.tenant)),
            worker_pools=key.worker_pools,
            deterministic=key.is_deterministic,
            facts=None if decisions is None else to_message(facts_of_call(holder, scope, method)),
            issuer=holder.identity.get("issuer", ""),
            subject=holder.identity.get("subject", ""),
            # A limit, also one that has room, counts each call.
            valid_ms=holder.same_for_ms if skips_reserve and not counted.states else 0,
        )

    async def AdmitMany(
        self, request: policy_pb2.AdmitManyRequest, context: Context
    ) -> policy_pb2.AdmitManyResponse:
        check_count(request.requests, MAX_ADMITTED, "requests")
        answers = await asyncio.gather(*(self._admit_one(each, context) for each in request.requests))
        return policy_pb2.AdmitManyResponse(answers=answers)

    async def _admit_one(self, request: policy_pb2.AdmitRequest, context: Context) -> policy_pb2.AdmitAnswer:
        logs.bind_request(**logs.of_request(request.request_id, trace_id=trace_id_of(request.traceparent)))
        admitted = await _one_of_many(self.Admit(request, context), "AdmitMany")
        if isinstance(admitted, bytes):
            return policy_pb2.AdmitAnswer(refused=admitted)
        return policy_pb2.AdmitAnswer(admitted=admitted)

    async def Reserve(
        self, request: policy_pb2.ReserveRequest, context: Context
    ) -> policy_pb2.ReserveResponse:
        job = Job(
            keys.parse_tenant(request.tenant),
            parse_request_id(request.request_id),
            parse_attempt_id(request.attempt_id),
        )
        keys.parse_holder_id(request.key_id)
        check_model_name(request.model)
        check_range(request.prompt_tokens, 0, MAX_TOKENS, "prompt_tokens")
        check_range(request.max_tokens, 0, MAX_TOKENS, "max_tokens")
        check_range(request.priority, LOWEST, HIGHEST, "priority")
        model = model_subject(request.model)
        with self._parts.metrics.reservation(request.model):
            guards = await self._parts.prompts.check(request)
            if self._parts.decisions is not None:
                await self._parts.decisions.reserve(request)
            reserved = await self._parts.limiter.reserve(
                job,
                [key_subject(request.key_id), tenant_subject(request.tenant), model],
                model=model,
                tokens=request.prompt_tokens + request.max_tokens,
            )
        return policy_pb2.ReserveResponse(
            limits=reserved.states, lease_ms=reserved.lease_ms, stream_guards=guards
        )

    async def Renew(self, request: policy_pb2.RenewRequest, context: Context) -> policy_pb2.RenewResponse:
        check_count(request.requests, MAX_RENEWED, "requests")
        jobs = [
            Job(
                keys.parse_tenant(each.tenant, field=f"requests[{i}].tenant"),
                parse_request_id(each.request_id, field=f"requests[{i}].request_id"),
                parse_attempt_id(each.attempt_id, field=f"requests[{i}].attempt_id"),
            )
            for i, each in enumerate(request.requests)
        ]
        return policy_pb2.RenewResponse(lease_ms=await self._parts.limiter.renew(jobs))

    async def Settle(self, request: policy_pb2.SettleRequest, context: Context) -> policy_pb2.SettleResponse:
        settled = SettledRequest.parse(request)
        if not request.is_void:
            added = await self._parts.usage.settle(settled, remember_s=self._settled_memory_s)
            self._parts.metrics.count_settled(settled.model, added)
            log.debug("settles a request", tenant=settled.tenant, tokens=added["completion_tokens"])
        subjects = [key_subject(settled.key_id), tenant_subject(settled.tenant)]
        await self._parts.limiter.settle(
            Job(settled.tenant, settled.request_id, settled.attempt_id),
            [*subjects, model_subject(settled.model)] if settled.model else subjects,
            tokens=settled.tokens,
            is_void=request.is_void,
            is_partial=request.is_partial,
        )
        return policy_pb2.SettleResponse()

    async def SettleMany(
        self, request: policy_pb2.SettleManyRequest, context: Context
    ) -> policy_pb2.SettleManyResponse:
        check_count(request.requests, MAX_SETTLED, "requests")
        answers = await asyncio.gather(*(self._settle_one(each, context) for each in request.requests))
        return policy_pb2.SettleManyResponse(answers=answers)

    async def _settle_one(
        self, request: policy_pb2.SettleRequest, context: Context
    ) -> policy_pb2.SettleAnswer:
        logs.bind_request(**logs.of_request(request.request_id))
        settled = await _one_of_many(self.Settle(request, context), "SettleMany")
        if isinstance(settled, bytes):
            return policy_pb2.SettleAnswer(refused=settled)
        return policy_pb2.SettleAnswer(settled=settled)

    async def GetStreamGuards(
        self, request: guardrails_pb2.GetStreamGuardsRequest, context: Context
    ) -> guardrails_pb2.GetStreamGuardsResponse:
        keys.parse_tenant(request.tenant)
        if request.model:
            check_model_name(request.model)
        return await self._parts.prompts.for_streams(request)

    async def _count(self, holder: Holder) -> Counted:
        """Count a request of the key and its tenant."""
        subjects = [key_subject(holder.key_id), tenant_subject(holder.tenant)]
        return await self._parts.limiter.admit(subjects)


async def _one_of_many(answer: Awaitable[_Answer], method: str) -> _Answer | bytes:
    """The answer to one of many questions; refused, an encoded google.rpc.Status."""
    try:
        return await answer
    except InferFluxError as error:
        refusal = error
    except Exception as error:  # noqa: BLE001  # it ends this one, and none of those beside it
        refusal = unexpected(error, method)
    refused: bytes = to_status(refusal).SerializeToString()
    return refused
