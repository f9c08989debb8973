"""Methods of PolicyService that administrators call, each with its line of the audit trail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
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
    from .decide.keys import ApiKeyRecord
    from .last_used import LastUsed
    from .storage.interface import Storage
    from .storage.limiter import Limiter
    from .storage.usage_store import UsageStore

    Context = grpc.aio.ServicerContext[Any, Any]

_Request = TypeVar("_Request", bound=Message)
_Made = TypeVar("_Made")

Method = Callable[[Any, "Context"], Awaitable[Message]]

log = logs.get()


def admin_methods(
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
) -> Mapping[str, Method]:
    """The methods of `ADMIN_METHODS` by name, over a storage. They raise InferFluxErrors.

    Args:
        default_max_priority: ceiling of keys that have none of their own.
        default_cache_scope: of keys that have none of their own.
        now_ms: the time, in ms since 1970.
    """
    api_keys = KeyAdmin(
        storage.keys,
        default_max_priority=default_max_priority,
        default_cache_scope=default_cache_scope,
        now_ms=now_ms,
    )
    roles, limits = RoleAdmin(storage.keys), LimitAdmin(storage.rate_limits, limiter)
    guardrails = GuardrailAdmin(storage.guardrails, sets, prompts, now_ms=now_ms)
    transfer = TransferAdmin(
        storage,
        key_admin=api_keys,
        role_admin=roles,
        limit_admin=limits,
        guardrail_admin=guardrails,
        now_ms=now_ms,
    )

    async def list_keys(request: policy_pb2.ListApiKeysRequest) -> Message:
        await last_used.write()
        return await api_keys.list(request)

    async def revoke_key(actor: Holder, request: policy_pb2.RevokeApiKeyRequest) -> ApiKeyRecord:
        revoked = await api_keys.revoke(actor, request)
        try:
            await limits.forget(key_subject(revoked.key_id))
        except Unavailable as error:  # the key is gone, which is what was asked for
            log.warning("limits of a revoked key stay", key_id=revoked.key_id, why=error.in_full)
        return revoked

    async def get_usage(request: policy_pb2.GetUsageRequest) -> Message:
        tenant = keys.parse_tenant(request.tenant)
        used = await usage.usage(tenant)
        return policy_pb2.GetUsageResponse(
            tenant=tenant,
            requests=used.get("requests", 0),
            prompt_tokens=used.get("prompt_tokens", 0),
            cached_prompt_tokens=used.get("cached_prompt_tokens", 0),
            completion_tokens=used.get("completion_tokens", 0),
            cached_completion_tokens=used.get("cached_completion_tokens", 0),
        )

    async def check_guardrails(request: guardrails_pb2.CheckGuardrailsRequest) -> Message:
        note_for_audit(of_tenant=request.tenant, of_model=request.model)
        return await guardrails.check(request)

    async def export_policy(request: policy_pb2.ExportPolicyRequest) -> Message:
        note_for_audit(with_hashes=request.with_hashes)
        return await transfer.export(caller_as(Holder), request)

    async def import_policy(request: policy_pb2.ImportPolicyRequest) -> Message:
        n_changes = 0

        def on_change(change: policy_pb2.PolicyChange) -> None:
            nonlocal n_changes
            n_changes += 1
            note_for_audit(n_changes=n_changes)
            _write_change(trail, change)

        note_for_audit(dry_run=request.dry_run, ignore_versions=request.ignore_versions, n_changes=0)
        return await transfer.import_(caller_as(Holder), request, on_change)

    no_key, no_role = policy_pb2.RevokeApiKeyResponse, policy_pb2.DeleteRoleResponse
    no_limits, no_guardrails = policy_pb2.DeleteRateLimitResponse, guardrails_pb2.DeleteGuardrailsResponse
    return {
        "CreateApiKey": _changes(api_keys.create, lambda made: (made, 0)),
        "ListApiKeys": _reads(list_keys),
        "UpdateApiKey": _changes(api_keys.update, lambda made: (made, made.api_key.version - 1)),
        "RotateApiKey": _changes(api_keys.rotate, lambda made: (made, made.api_key.version - 1)),
        "RevokeApiKey": _changes(revoke_key, lambda revoked: (no_key(), revoked.version)),
        "ListRoles": _reads(roles.list),
        "SetRole": _changes(roles.set, lambda made: (made, made.role.version - 1)),
        "DeleteRole": _changes(roles.delete, lambda deleted: (no_role(), deleted.version)),
        "ListRateLimits": _reads(limits.list),
        "GetRateLimit": _reads(limits.get),
        "SetRateLimit": _changes(limits.set, lambda made: (made, made.rate_limit.version - 1)),
        "DeleteRateLimit": _changes(limits.delete, lambda deleted: (no_limits(), deleted.version)),
        "GetUsage": _reads(get_usage),
        "ListGuardrails": _reads(guardrails.list),
        "GetGuardrails": _reads(guardrails.get),
        "SetGuardrails": _changes(guardrails.set, lambda made: (made[0], made[1].before)),
        "DeleteGuardrails": _changes(guardrails.delete, lambda before: (no_guardrails(), before)),
        "CheckGuardrails": _reads(check_guardrails),
        "ExportPolicy": _reads(export_policy),
        "ImportPolicy": _reads(import_policy),
    }


def _reads(answer: Callable[[_Request], Awaitable[Message]]) -> Method:
    async def call(request: _Request, _context: Context) -> Message:
        return await answer(request)

    return call


def _changes(
    change: Callable[[Holder, _Request], Awaitable[_Made]], told: Callable[[_Made], tuple[Message, int]]
) -> Method:
    """A method whose audit line says what was asked for, and what came of it.

    Args:
        told: gives the answer, and the version before the change; 0: there was nothing.
    """

    async def call(request: _Request, _context: Context) -> Message:
        note_change(**(asked(request) or {}))
        answer, before = told(await change(caller_as(Holder), request))
        note_change(version_before=before, **became(answer))
        return answer

    return call


def _write_change(trail: AuditTrail, change: policy_pb2.PolicyChange) -> None:
    """The audit line of one of the changes of a call."""
    context = current_call().context
    record = context.record
    trail.write(
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
