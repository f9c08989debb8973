"""Methods of PolicyService that administrators call, each with its line of the audit trail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from inferflux.common.calls.audit.calls import ALLOWED, CHANGE
from inferflux.common.calls.audit.policy_changes import asked, became
from inferflux.common.calls.grpc_interceptor import caller_as, current_call, note_change, note_for_audit
from inferflux.common.contract.errors import Unavailable
from inferflux.common.process import logs
from inferflux.common.tracing import trace_id_of
from inferflux.v1 import guardrails_pb2, policy_pb2

from .decide import keys
from .decide.admission import Holder
from .decide.limits.rules import key_subject
from .operator.guardrail_admin import GuardrailAdmin
from .operator.key_admin import KeyAdmin
from .operator.limit_admin import LimitAdmin
from .operator.role_admin import RoleAdmin
from .operator.transfer.admin import TransferAdmin

if TYPE_CHECKING:
    import grpc

    from inferflux.common.calls.audit.writer import AuditTrail

    from .decide.guardrails.prompts import PromptGuard
    from .decide.guardrails.sets import GuardrailSets
    from .last_used import LastUsed
    from .storage.interface import Storage
    from .storage.limiter import Limiter
    from .storage.usage_store import UsageStore

    Context = grpc.aio.ServicerContext[Any, Any]

_Answer = TypeVar("_Answer", bound=Message)

log = logs.get()


@dataclass(frozen=True, slots=True)
class AdminMethods:
    """Methods named as in `ADMIN_METHODS`. Errors leave as InferFluxErrors."""

    key_admin: KeyAdmin
    role_admin: RoleAdmin
    limit_admin: LimitAdmin
    guardrail_admin: GuardrailAdmin
    transfer_admin: TransferAdmin
    usage: UsageStore
    last_used: LastUsed
    trail: AuditTrail

    @classmethod
    def over(
        cls,
        storage: Storage,
        limiter: Limiter,
        sets: GuardrailSets,
        prompts: PromptGuard,
        usage: UsageStore,
        last_used: LastUsed,
        trail: AuditTrail,
        *,
        default_max_priority: int,
        default_cache_scope: str,
        now_ms: Callable[[], int],
    ) -> AdminMethods:
        """Methods that change what a storage has.

        Args:
            default_max_priority: ceiling of keys that have none of their own.
            default_cache_scope: of keys that have none of their own.
            now_ms: the time, in ms since 1970.
        """
        key_admin = KeyAdmin(
            storage.keys,
            default_max_priority=default_max_priority,
            default_cache_scope=default_cache_scope,
            now_ms=now_ms,
        )
        role_admin, limit_admin = RoleAdmin(storage.keys), LimitAdmin(storage.rate_limits, limiter)
        guardrail_admin = GuardrailAdmin(storage.guardrails, sets, prompts, now_ms=now_ms)
        transfer_admin = TransferAdmin(
            storage,
            key_admin=key_admin,
            role_admin=role_admin,
            limit_admin=limit_admin,
            guardrail_admin=guardrail_admin,
            now_ms=now_ms,
        )
        return cls(
            key_admin, role_admin, limit_admin, guardrail_admin, transfer_admin, usage, last_used, trail
        )

    async def CreateApiKey(
        self, request: policy_pb2.CreateApiKeyRequest, context: Context
    ) -> policy_pb2.CreateApiKeyResponse:
        note_change(**_asked(request))
        made = await self.key_admin.create(caller_as(Holder), request)
        return _changed(made, before=0)

    async def ListApiKeys(
        self, request: policy_pb2.ListApiKeysRequest, context: Context
    ) -> policy_pb2.ListApiKeysResponse:
        await self.last_used.write()
        return await self.key_admin.list(request)

    async def UpdateApiKey(
        self, request: policy_pb2.UpdateApiKeyRequest, context: Context
    ) -> policy_pb2.UpdateApiKeyResponse:
        note_change(**_asked(request))
        made = await self.key_admin.update(caller_as(Holder), request)
        return _changed(made, before=made.api_key.version - 1)

    async def RotateApiKey(
        self, request: policy_pb2.RotateApiKeyRequest, context: Context
    ) -> policy_pb2.RotateApiKeyResponse:
        note_change(**_asked(request))
        made = await self.key_admin.rotate(caller_as(Holder), request)
        return _changed(made, before=made.api_key.version - 1)

    async def RevokeApiKey(
        self, request: policy_pb2.RevokeApiKeyRequest, context: Context
    ) -> policy_pb2.RevokeApiKeyResponse:
        note_change(**_asked(request))
        revoked = await self.key_admin.revoke(caller_as(Holder), request)
        try:
            await self.limit_admin.forget(key_subject(revoked.key_id))
        except Unavailable as error:  # the key is gone, which is what was asked for
            log.warning("limits of a revoked key stay", key_id=revoked.key_id, why=error.in_full)
        return _changed(policy_pb2.RevokeApiKeyResponse(), before=revoked.version)

    async def ListRoles(
        self, request: policy_pb2.ListRolesRequest, context: Context
    ) -> policy_pb2.ListRolesResponse:
        return await self.role_admin.list(request)

    async def SetRole(
        self, request: policy_pb2.SetRoleRequest, context: Context
    ) -> policy_pb2.SetRoleResponse:
        note_change(**_asked(request))
        made = await self.role_admin.set(caller_as(Holder), request)
        return _changed(made, before=made.role.version - 1)

    async def DeleteRole(
        self, request: policy_pb2.DeleteRoleRequest, context: Context
    ) -> policy_pb2.DeleteRoleResponse:
        note_change(**_asked(request))
        deleted = await self.role_admin.delete(caller_as(Holder), request)
        return _changed(policy_pb2.DeleteRoleResponse(), before=deleted.version)

    async def ListRateLimits(
        self, request: policy_pb2.ListRateLimitsRequest, context: Context
    ) -> policy_pb2.ListRateLimitsResponse:
        return await self.limit_admin.list(request)

    async def GetRateLimit(
        self, request: policy_pb2.GetRateLimitRequest, context: Context
    ) -> policy_pb2.GetRateLimitResponse:
        return await self.limit_admin.get(request)

    async def SetRateLimit(
        self, request: policy_pb2.SetRateLimitRequest, context: Context
    ) -> policy_pb2.SetRateLimitResponse:
        note_change(**_asked(request))
        made = await self.limit_admin.set(caller_as(Holder), request)
        return _changed(made, before=made.rate_limit.version - 1)

    async def DeleteRateLimit(
        self, request: policy_pb2.DeleteRateLimitRequest, context: Context
    ) -> policy_pb2.DeleteRateLimitResponse:
        note_change(**_asked(request))
        deleted = await self.limit_admin.delete(caller_as(Holder), request)
        return _changed(policy_pb2.DeleteRateLimitResponse(), before=deleted.version)

    async def GetUsage(
        self, request: policy_pb2.GetUsageRequest, context: Context
    ) -> policy_pb2.GetUsageResponse:
        tenant = keys.parse_tenant(request.tenant)
        used = await self.usage.usage(tenant)
        return policy_pb2.GetUsageResponse(
            tenant=tenant,
            requests=used.get("requests", 0),
            prompt_tokens=used.get("prompt_tokens", 0),
            cached_prompt_tokens=used.get("cached_prompt_tokens", 0),
            completion_tokens=used.get("completion_tokens", 0),
            cached_completion_tokens=used.get("cached_completion_tokens", 0),
        )

    async def ListGuardrails(
        self, request: guardrails_pb2.ListGuardrailsRequest, context: Context
    ) -> guardrails_pb2.ListGuardrailsResponse:
        return await self.guardrail_admin.list(request)

    async def GetGuardrails(
        self, request: guardrails_pb2.GetGuardrailsRequest, context: Context
    ) -> guardrails_pb2.GetGuardrailsResponse:
        return await self.guardrail_admin.get(request)

    async def SetGuardrails(
        self, request: guardrails_pb2.SetGuardrailsRequest, context: Context
    ) -> guardrails_pb2.SetGuardrailsResponse:
        note_change(**_asked(request))
        made, versions = await self.guardrail_admin.set(caller_as(Holder), request)
        return _changed(made, before=versions.before)

    async def DeleteGuardrails(
        self, request: guardrails_pb2.DeleteGuardrailsRequest, context: Context
    ) -> guardrails_pb2.DeleteGuardrailsResponse:
        note_change(**_asked(request))
        before = await self.guardrail_admin.delete(caller_as(Holder), request)
        return _changed(guardrails_pb2.DeleteGuardrailsResponse(), before=before)

    async def CheckGuardrails(
        self, request: guardrails_pb2.CheckGuardrailsRequest, context: Context
    ) -> guardrails_pb2.CheckGuardrailsResponse:
        note_for_audit(of_tenant=request.tenant, of_model=request.model)
        return await self.guardrail_admin.check(request)

    async def ExportPolicy(
        self, request: policy_pb2.ExportPolicyRequest, context: Context
    ) -> policy_pb2.ExportPolicyResponse:
        note_for_audit(with_hashes=request.with_hashes)
        return await self.transfer_admin.export(caller_as(Holder), request)

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
        return await self.transfer_admin.import_(caller_as(Holder), request, on_change)

    def _write_change(self, change: policy_pb2.PolicyChange) -> None:
        """The audit line of one of the changes of a call."""
        context = current_call().context
        record = context.record
        self.trail.write(
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


def _asked(request: Message) -> Mapping[str, object]:
    return asked(request) or {}


def _changed(answer: _Answer, *, before: int) -> _Answer:
    """The answer to a change that was made, whose audit line says what came of it.

    Args:
        before: the version before the change; 0: there was nothing.
    """
    note_change(version_before=before, **became(answer))
    return answer
