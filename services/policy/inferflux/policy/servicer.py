"""PolicyService as gRPC sees it: check the fields, ask the store, decide, answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inferflux.common import logs
from inferflux.common.api_key import is_well_formed
from inferflux.common.calls import CallContext
from inferflux.common.errors import NotFound
from inferflux.common.grpc_interceptor import caller_as, note_for_audit
from inferflux.v1 import policy_pb2, policy_pb2_grpc

from . import keys
from .admission import Ask, decide
from .keys import ApiKeyRecord, Scope
from .usage import SettledRequest, parse_model, parse_request_id

if TYPE_CHECKING:
    import grpc

    from .metrics import PolicyMetrics
    from .store import PolicyStore

    Context = grpc.aio.ServicerContext[Any, Any]

log = logs.get()


class PolicyServicer(policy_pb2_grpc.PolicyServiceServicer):
    """Who may do what. Errors leave as InferFluxError; the server's interceptor gives them their status."""

    def __init__(
        self,
        store: PolicyStore,
        metrics: PolicyMetrics,
        *,
        settled_memory_s: int,
        default_max_priority: int,
        default_cache_scope: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._settled_memory_s = settled_memory_s
        self._default_max_priority = default_max_priority
        self._default_cache_scope = default_cache_scope
        self._clock = clock

    async def Admit(self, request: policy_pb2.AdmitRequest, context: Context) -> policy_pb2.AdmitResponse:
        with self._metrics.admission():
            ask = Ask(keys.parse_scope(request.scope), parse_model(request.model), request.priority)
            parse_request_id(request.request_id)
            key = await self._admit(request.credential, ask)
        log.debug("admits a request", tenant=key.tenant, key_id=key.key_id, scope=request.scope)
        return policy_pb2.AdmitResponse(
            tenant=key.tenant,
            key_id=key.key_id,
            scopes=key.scopes,
            max_priority=key.priority_ceiling(self._default_max_priority),
            cache_scope=key.shared_scope(self._default_cache_scope),
            skip_answer_cache=key.skips_answer_cache,
        )

    async def Settle(self, request: policy_pb2.SettleRequest, context: Context) -> policy_pb2.SettleResponse:
        settled = SettledRequest.parse(request)
        added = await self._store.settle(settled, remember_s=self._settled_memory_s)
        self._metrics.count_settled(added)
        log.debug("settles a request", tenant=settled.tenant, tokens=added["completion_tokens"])
        return policy_pb2.SettleResponse()

    async def CreateApiKey(
        self, request: policy_pb2.CreateApiKeyRequest, context: Context
    ) -> policy_pb2.CreateApiKeyResponse:
        admin = caller_as(ApiKeyRecord)
        note_for_audit(of_tenant=request.tenant, name=request.name, scopes=list(request.scopes))
        secret = keys.generate()
        record = ApiKeyRecord(
            digest=keys.digest_of(secret),
            tenant=keys.parse_tenant(request.tenant),
            name=keys.parse_name(request.name),
            scopes=keys.parse_scopes(request.scopes),
            created_unix_ms=int(self._clock() * 1000),
            max_priority=(
                keys.parse_max_priority(request.max_priority) if request.HasField("max_priority") else None
            ),
            cache_scope=keys.parse_cache_scope(request.cache_scope),
            skips_answer_cache=request.skip_answer_cache,
        )
        await self._store.add(record)
        note_for_audit(changed_key_id=record.key_id)
        log.info("API key created", key_id=record.key_id, tenant=record.tenant, by=admin.key_id)
        return policy_pb2.CreateApiKeyResponse(api_key=self._message(record), secret=secret)

    async def ListApiKeys(
        self, request: policy_pb2.ListApiKeysRequest, context: Context
    ) -> policy_pb2.ListApiKeysResponse:
        tenant = keys.parse_tenant(request.tenant) if request.tenant else ""
        records = await self._store.all_keys(tenant=tenant)
        return policy_pb2.ListApiKeysResponse(api_keys=[self._message(r) for r in records])

    async def RevokeApiKey(
        self, request: policy_pb2.RevokeApiKeyRequest, context: Context
    ) -> policy_pb2.RevokeApiKeyResponse:
        admin = caller_as(ApiKeyRecord)
        key_id = keys.parse_key_id(request.key_id)
        note_for_audit(changed_key_id=key_id)
        if not await self._store.revoke(key_id):
            raise NotFound(f"there is no key {key_id}", reason="UNKNOWN_KEY_ID")
        log.info("API key revoked", key_id=key_id, by=admin.key_id)
        return policy_pb2.RevokeApiKeyResponse()

    async def admit_call(self, scope: str, context: CallContext) -> ApiKeyRecord:
        """Let a call of policy's own pass, by its context alone: as an `Admit` of the interceptor."""
        return await self._admit(context.require_credential(), Ask(Scope(scope)))

    async def _admit(self, credential: str, ask: Ask) -> ApiKeyRecord:
        """Find the key and decide. What could not be a key is refused without asking the store."""
        could_be = is_well_formed(credential)
        key = await self._store.find(keys.digest_of(credential)) if could_be else None
        return decide(credential, key, ask)

    def _message(self, record: ApiKeyRecord) -> policy_pb2.ApiKey:
        message = policy_pb2.ApiKey(
            key_id=record.key_id,
            tenant=record.tenant,
            name=record.name,
            scopes=record.scopes,
            max_priority=record.priority_ceiling(self._default_max_priority),
            cache_scope=record.cache_scope or self._default_cache_scope,
            skip_answer_cache=record.skips_answer_cache,
        )
        message.created_at.FromMilliseconds(record.created_unix_ms)
        return message
