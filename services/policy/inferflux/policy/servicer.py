"""PolicyService as gRPC sees it: check the fields, ask the store, decide, answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from inferflux.common.calls import grpc_metadata
from inferflux.common.calls.audit.calls import ALLOWED, CHANGE
from inferflux.common.calls.audit.policy_changes import asked, became
from inferflux.common.calls.calls import CallContext, note_holder
from inferflux.common.calls.grpc_interceptor import (
    caller_as,
    current_call,
    note_change,
    note_for_audit,
    unexpected,
)
from inferflux.common.calls.service_key import SERVICE, ServiceKeys
from inferflux.common.contract.callers.api_key import is_well_formed
from inferflux.common.contract.callers.scopes import Scope
from inferflux.common.contract.checks import MAX_TOKENS, check_count, check_model_name, check_range
from inferflux.common.contract.errors import InferFluxError, Unavailable, to_status
from inferflux.common.contract.models.model_names import EVERY
from inferflux.common.contract.requests.priority import HIGHEST, LOWEST
from inferflux.common.process import logs
from inferflux.common.tracing import trace_id_of
from inferflux.v1 import guardrails_pb2, policy_pb2, policy_pb2_grpc

from .decide import keys
from .decide.admission import Holder, authorize, identify, identify_token
from .decide.decisions.facts import facts_of_call, parse_method, to_message
from .decide.limits.rules import key_subject, model_subject, tenant_subject
from .decide.usage import SettledRequest, parse_attempt_id, parse_request_id
from .storage.limiter import NOT_COUNTED, Counted, Job

if TYPE_CHECKING:
    import grpc

    from inferflux.common.calls.audit.writer import AuditTrail

    from .decide.decisions.chain import Decisions
    from .decide.guardrails.prompts import PromptGuard
    from .decide.key_store import KeyStore
    from .decide.keys import ApiKeyRecord
    from .decide.oidc.token_admission import TokenAdmission
    from .decide.roles import Role
    from .last_used import LastUsed
    from .metrics import PolicyMetrics
    from .operator.guardrail_admin import GuardrailAdmin
    from .operator.key_admin import KeyAdmin
    from .operator.limit_admin import LimitAdmin
    from .operator.role_admin import RoleAdmin
    from .operator.transfer.admin import TransferAdmin
    from .storage.limiter import Limiter
    from .storage.usage_store import UsageStore

    Context = grpc.aio.ServicerContext[Any, Any]

_Answer = TypeVar("_Answer", bound=Message)

MAX_ADMITTED = MAX_SETTLED = 64
MAX_RENEWED = 512

log = logs.get()


@dataclass(frozen=True, slots=True)
class Service:
    """A service that proved itself. It has no tenant: calls of one connection share their places."""

    tenant: str = ""
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the servicer works with."""

    keys: KeyStore
    tokens: TokenAdmission
    usage: UsageStore
    limiter: Limiter
    last_used: LastUsed
    service_keys: ServiceKeys
    key_admin: KeyAdmin
    role_admin: RoleAdmin
    limit_admin: LimitAdmin
    prompts: PromptGuard
    guardrail_admin: GuardrailAdmin
    transfer_admin: TransferAdmin
    trail: AuditTrail
    metrics: PolicyMetrics
    decisions: Decisions | None = None


class PolicyServicer(policy_pb2_grpc.PolicyServiceServicer):
    """Who may do what, and how much. Errors leave as InferFluxErrors; the server's interceptor gives them
    their status.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        settled_memory_s: int,
        default_max_priority: int,
        default_cache_scope: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._parts = parts
        self._settled_memory_s = settled_memory_s
        self._default_max_priority = default_max_priority
        self._default_cache_scope = default_cache_scope
        self._clock = clock

    async def Admit(self, request: policy_pb2.AdmitRequest, context: Context) -> policy_pb2.AdmitResponse:
        with self._parts.metrics.admission():
            scope = keys.parse_scope(request.scope)
            parse_request_id(request.request_id)
            method = parse_method(request.method)
            holder = await self._admit(request.credential, scope, method)
            guardrails = await self._parts.prompts.index()
            key, decisions = holder.key, self._parts.decisions
            with _naming(key):
                counted = await self._count(holder) if request.is_counted else NOT_COUNTED
        log.debug("admits a request", tenant=key.tenant, key_id=key.key_id, scope=request.scope)
        access = holder.access
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
            skips_reserve=decisions is None
            and not (counted.has_to_reserve or guardrails.holds_any(key.tenant)),
            wants_text=not guardrails.with_texts.isdisjoint(("", key.tenant))
            or (decisions is not None and decisions.wants_text),
            guards_stream=not guardrails.with_streams.isdisjoint(("", key.tenant)),
            worker_pools=key.worker_pools,
            deterministic=key.is_deterministic,
            facts=None if decisions is None else to_message(facts_of_call(holder, scope, method)),
            issuer=holder.identity.get("issuer", ""),
            subject=holder.identity.get("subject", ""),
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

    async def CreateApiKey(
        self, request: policy_pb2.CreateApiKeyRequest, context: Context
    ) -> policy_pb2.CreateApiKeyResponse:
        note_change(**_asked(request))
        made = await self._parts.key_admin.create(caller_as(Holder), request)
        return _changed(made, before=0)

    async def ListApiKeys(
        self, request: policy_pb2.ListApiKeysRequest, context: Context
    ) -> policy_pb2.ListApiKeysResponse:
        await self._parts.last_used.write()
        return await self._parts.key_admin.list(request)

    async def UpdateApiKey(
        self, request: policy_pb2.UpdateApiKeyRequest, context: Context
    ) -> policy_pb2.UpdateApiKeyResponse:
        note_change(**_asked(request))
        made = await self._parts.key_admin.update(caller_as(Holder), request)
        return _changed(made, before=made.api_key.version - 1)

    async def RotateApiKey(
        self, request: policy_pb2.RotateApiKeyRequest, context: Context
    ) -> policy_pb2.RotateApiKeyResponse:
        note_change(**_asked(request))
        made = await self._parts.key_admin.rotate(caller_as(Holder), request)
        return _changed(made, before=made.api_key.version - 1)

    async def RevokeApiKey(
        self, request: policy_pb2.RevokeApiKeyRequest, context: Context
    ) -> policy_pb2.RevokeApiKeyResponse:
        note_change(**_asked(request))
        revoked = await self._parts.key_admin.revoke(caller_as(Holder), request)
        try:
            await self._parts.limit_admin.forget(key_subject(revoked.key_id))
        except Unavailable as error:  # the key is gone, which is what was asked for
            log.warning("limits of a revoked key stay", key_id=revoked.key_id, why=error.in_full)
        return _changed(policy_pb2.RevokeApiKeyResponse(), before=revoked.version)

    async def ListRoles(
        self, request: policy_pb2.ListRolesRequest, context: Context
    ) -> policy_pb2.ListRolesResponse:
        return await self._parts.role_admin.list(request)

    async def SetRole(
        self, request: policy_pb2.SetRoleRequest, context: Context
    ) -> policy_pb2.SetRoleResponse:
        note_change(**_asked(request))
        made = await self._parts.role_admin.set(caller_as(Holder), request)
        return _changed(made, before=made.role.version - 1)

    async def DeleteRole(
        self, request: policy_pb2.DeleteRoleRequest, context: Context
    ) -> policy_pb2.DeleteRoleResponse:
        note_change(**_asked(request))
        deleted = await self._parts.role_admin.delete(caller_as(Holder), request)
        return _changed(policy_pb2.DeleteRoleResponse(), before=deleted.version)

    async def ListRateLimits(
        self, request: policy_pb2.ListRateLimitsRequest, context: Context
    ) -> policy_pb2.ListRateLimitsResponse:
        return await self._parts.limit_admin.list(request)

    async def GetRateLimit(
        self, request: policy_pb2.GetRateLimitRequest, context: Context
    ) -> policy_pb2.GetRateLimitResponse:
        return await self._parts.limit_admin.get(request)

    async def SetRateLimit(
        self, request: policy_pb2.SetRateLimitRequest, context: Context
    ) -> policy_pb2.SetRateLimitResponse:
        note_change(**_asked(request))
        made = await self._parts.limit_admin.set(caller_as(Holder), request)
        return _changed(made, before=made.rate_limit.version - 1)

    async def DeleteRateLimit(
        self, request: policy_pb2.DeleteRateLimitRequest, context: Context
    ) -> policy_pb2.DeleteRateLimitResponse:
        note_change(**_asked(request))
        deleted = await self._parts.limit_admin.delete(caller_as(Holder), request)
        return _changed(policy_pb2.DeleteRateLimitResponse(), before=deleted.version)

    async def GetUsage(
        self, request: policy_pb2.GetUsageRequest, context: Context
    ) -> policy_pb2.GetUsageResponse:
        tenant = keys.parse_tenant(request.tenant)
        used = await self._parts.usage.usage(tenant)
        return policy_pb2.GetUsageResponse(
            tenant=tenant,
            requests=used.get("requests", 0),
            prompt_tokens=used.get("prompt_tokens", 0),
            cached_prompt_tokens=used.get("cached_prompt_tokens", 0),
            completion_tokens=used.get("completion_tokens", 0),
            cached_completion_tokens=used.get("cached_completion_tokens", 0),
        )

    async def GetStreamGuards(
        self, request: guardrails_pb2.GetStreamGuardsRequest, context: Context
    ) -> guardrails_pb2.GetStreamGuardsResponse:
        keys.parse_tenant(request.tenant)
        if request.model:
            check_model_name(request.model)
        return await self._parts.prompts.for_streams(request)

    async def ListGuardrails(
        self, request: guardrails_pb2.ListGuardrailsRequest, context: Context
    ) -> guardrails_pb2.ListGuardrailsResponse:
        return await self._parts.guardrail_admin.list(request)

    async def GetGuardrails(
        self, request: guardrails_pb2.GetGuardrailsRequest, context: Context
    ) -> guardrails_pb2.GetGuardrailsResponse:
        return await self._parts.guardrail_admin.get(request)

    async def SetGuardrails(
        self, request: guardrails_pb2.SetGuardrailsRequest, context: Context
    ) -> guardrails_pb2.SetGuardrailsResponse:
        note_change(**_asked(request))
        made, versions = await self._parts.guardrail_admin.set(caller_as(Holder), request)
        return _changed(made, before=versions.before)

    async def DeleteGuardrails(
        self, request: guardrails_pb2.DeleteGuardrailsRequest, context: Context
    ) -> guardrails_pb2.DeleteGuardrailsResponse:
        note_change(**_asked(request))
        before = await self._parts.guardrail_admin.delete(caller_as(Holder), request)
        return _changed(guardrails_pb2.DeleteGuardrailsResponse(), before=before)

    async def CheckGuardrails(
        self, request: guardrails_pb2.CheckGuardrailsRequest, context: Context
    ) -> guardrails_pb2.CheckGuardrailsResponse:
        note_for_audit(of_tenant=request.tenant, of_model=request.model)
        return await self._parts.guardrail_admin.check(request)

    async def ExportPolicy(
        self, request: policy_pb2.ExportPolicyRequest, context: Context
    ) -> policy_pb2.ExportPolicyResponse:
        note_for_audit(with_hashes=request.with_hashes)
        return await self._parts.transfer_admin.export(caller_as(Holder), request)

    async def ImportPolicy(
        self, request: policy_pb2.ImportPolicyRequest, context: Context
    ) -> policy_pb2.ImportPolicyResponse:
        n_changes = 0

        def on_change(change: policy_pb2.PolicyChange) -> None:
            nonlocal n_changes
            n_changes += 1
            note_for_audit(n_changes=n_changes)
            self._write_change(change)

        note_for_audit(dry_run=request.dry_run, ignore_versions=request.ignore_versions, n_changes=0)
        return await self._parts.transfer_admin.import_(caller_as(Holder), request, on_change)

    def _write_change(self, change: policy_pb2.PolicyChange) -> None:
        """The audit line of one of the changes of a call."""
        context = current_call().context
        record = context.record
        self._parts.trail.write(
            CHANGE,
            method="ImportPolicy",
            tenant=record.tenant,
            key_id=record.key_id,
            request_id=context.request_id,
            trace_id=trace_id_of(context.traceparent),
            decision=ALLOWED,
            reason="",
            outcome="done",
            kind=change.kind,
            name=change.name,
            action=change.action,
            fields=list(change.fields),
        )

    async def admit_call(self, scope: str, context: CallContext) -> Holder | Service:
        """Let a call of policy's own pass, by its context alone: as an `Admit` of the interceptor."""
        if scope == SERVICE:
            self._parts.service_keys.check(context.service_key, certificate=context.certificate)
            return Service()
        try:
            holder = await self._admit(context.require_credential(), Scope(scope), context.method)
        except InferFluxError as refusal:
            note_holder(context.record, refusal)
            raise
        context.record.about |= holder.identity
        return holder

    async def _admit(self, credential: str, scope: Scope, method: str) -> Holder:
        """Find out who calls, and decide."""
        holder = await self._identify(credential)
        with _naming(holder.key):
            if self._parts.decisions is None:
                authorize(holder, scope)
            else:
                facts = facts_of_call(holder, scope, method)
                await self._parts.decisions.admit(facts, partial(authorize, holder, scope))
        if not holder.identity:
            self._parts.last_used.note(holder.key_id)
        return holder

    async def _identify(self, credential: str) -> Holder:
        """The holder of the token or key. What could be neither asks no store."""
        if self._parts.tokens.takes(credential):
            token = await self._parts.tokens.holder_of(credential)
            return identify_token(token, roles=await self._roles(token.record))
        could_be = is_well_formed(credential)
        key = await self._parts.keys.find(keys.digest_of(credential)) if could_be else None
        roles = await self._roles(key) if key is not None else ()
        with _naming(key):
            return identify(credential, key, roles=roles, now_unix_ms=int(self._clock() * 1000))

    async def _roles(self, key: ApiKeyRecord) -> Sequence[Role]:
        """Those of its roles that there are."""
        return await self._parts.keys.find_roles(key.roles) if key.roles else ()

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


@contextmanager
def _naming(key: ApiKeyRecord | None) -> Iterator[None]:
    """Have refusals say whose credential it was, for the audit line of who asks policy."""
    try:
        yield
    except InferFluxError as error:
        if key is None:
            raise
        refusal = copy(error)  # several calls may end with one
        named = {grpc_metadata.TENANT: key.tenant, grpc_metadata.KEY_ID: key.key_id}
        refusal.headers = {**error.headers, **named}
        raise refusal from None


def _asked(request: Message) -> Mapping[str, object]:
    return asked(request) or {}


def _changed(answer: _Answer, *, before: int) -> _Answer:
    """The answer to a change that was made, whose audit line says what came of it.

    Args:
        before: the version before the change; 0: there was nothing.
    """
    note_change(version_before=before, **became(answer))
    return answer
