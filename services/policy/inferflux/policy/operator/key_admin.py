"""Keys, as administrators make, list, change and revoke them: check, change the store, answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inferflux.common.contract.callers.scopes import Scope
from inferflux.common.contract.checks import check_range
from inferflux.common.contract.errors import Aborted, InvalidArgument, NotFound
from inferflux.common.contract.models.model_names import parse_patterns
from inferflux.common.contract.pages import check_page_size, page_after
from inferflux.common.contract.requests.worker_pools import parse_pools
from inferflux.common.process import logs
from inferflux.policy.decide import keys
from inferflux.policy.decide.admission import Holder
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.decide.roles import (
    Access,
    access_of,
    check_may_give_models,
    check_may_give_pools,
    check_may_give_priority,
    check_may_manage,
    parse_role_names,
)
from inferflux.v1 import policy_pb2

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from inferflux.policy.decide.key_store import KeyStore

MAX_OVERLAP_S = 90 * 86_400

# Each is lost to one change of the key.
_REVOKE_ATTEMPTS = 100

log = logs.get()


class KeyAdmin:
    """Keys, as administrators see them.

    Args:
        default_max_priority: the ceiling of keys without their own.
        default_cache_scope: the cache scope of keys without their own.
        now_ms: in ms since 1970.
    """

    def __init__(
        self,
        store: KeyStore,
        *,
        default_max_priority: int,
        default_cache_scope: str,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._default_max_priority = default_max_priority
        self._default_cache_scope = default_cache_scope
        self._now_ms = now_ms

    async def create(
        self, actor: Holder, request: policy_pb2.CreateApiKeyRequest
    ) -> policy_pb2.CreateApiKeyResponse:
        """Raises:
        InvalidArgument: a field is wrong.
        PermissionDenied: it would reach further than its maker.
        """
        secret = keys.generate()
        record = ApiKeyRecord(
            digest=keys.digest_of(secret),
            tenant=keys.parse_tenant(request.tenant),
            name=keys.parse_name(request.name),
            scopes=keys.parse_scopes(request.scopes),
            created_unix_ms=self._now_ms(),
            max_priority=(
                keys.parse_max_priority(request.max_priority) if request.HasField("max_priority") else None
            ),
            cache_scope=keys.parse_cache_scope(request.cache_scope),
            skips_answer_cache=request.skip_answer_cache,
            roles=parse_role_names(request.roles),
            expires_unix_ms=self._expiry(request.expires_at) if request.HasField("expires_at") else None,
            models=parse_patterns(request.models),
            worker_pools=parse_pools(request.worker_pools),
            is_deterministic=request.deterministic,
        )
        access = await self._checked(record)
        self.check(actor, record, access)
        await self.add(actor, record)
        return policy_pb2.CreateApiKeyResponse(api_key=self._message(record, access), secret=secret)

    async def list(self, request: policy_pb2.ListApiKeysRequest) -> policy_pb2.ListApiKeysResponse:
        """Raises:
        InvalidArgument: a field is wrong.
        """
        tenant = keys.parse_tenant(request.tenant) if request.tenant else ""
        check_page_size(request.page_size)
        everything = await self._store.all_keys(tenant=tenant)
        page, next_token = page_of(everything, request.page_token, request.page_size)
        last_used = await self._store.last_used()
        roles = {role.name: role for role in await self._store.all_roles()}
        messages = [
            self._message(
                record,
                access_of(record, [roles[name] for name in record.roles if name in roles]),
                last_used_ms=last_used.get(record.key_id, 0),
            )
            for record in page
        ]
        return policy_pb2.ListApiKeysResponse(api_keys=messages, next_page_token=next_token)

    async def update(
        self, actor: Holder, request: policy_pb2.UpdateApiKeyRequest
    ) -> policy_pb2.UpdateApiKeyResponse:
        """Raises:
        InvalidArgument: a field is wrong, or none is named.
        NotFound: there is no such key.
        PermissionDenied: it reaches further than who changes it, or would.
        Aborted: it was changed meanwhile.
        """
        given = request.api_key
        key_id = keys.parse_key_id(given.key_id, field="api_key.key_id")
        if not request.update_mask.paths:
            raise InvalidArgument("no field to change is named", field="update_mask")
        old = await self._found(key_id, version=given.version)
        new = replace(old, version=old.version + 1, **self._changes(given, list(request.update_mask.paths)))
        access = await self._checked(new, field="api_key.")
        self.check(actor, old, await self._access(old))
        self.check(actor, new, access)
        await self.put(actor, new)
        return policy_pb2.UpdateApiKeyResponse(api_key=self._message(new, access))

    async def rotate(
        self, actor: Holder, request: policy_pb2.RotateApiKeyRequest
    ) -> policy_pb2.RotateApiKeyResponse:
        """Raises:
        InvalidArgument: a field is wrong.
        NotFound: there is no such key.
        PermissionDenied: it reaches further than who rotates it.
        Aborted: it was changed meanwhile.
        """
        key_id = keys.parse_key_id(request.key_id)
        check_range(request.overlap_s, 0, MAX_OVERLAP_S, "overlap_s")
        old = await self._found(key_id, version=request.version)
        access = await self._access(old)
        self.check(actor, old, access)
        secret = keys.generate()
        until = self._now_ms() + request.overlap_s * 1000 if request.overlap_s else 0
        new = old.rotated(keys.digest_of(secret), previous_until_unix_ms=until)
        if not await self._store.rotate(new, old=old):
            raise _changed(key_id)
        log.info("API key rotated", key_id=key_id, tenant=new.tenant, by=actor.key_id)
        return policy_pb2.RotateApiKeyResponse(api_key=self._message(new, access), secret=secret)

    async def revoke(self, actor: Holder, request: policy_pb2.RevokeApiKeyRequest) -> ApiKeyRecord:
        """Returns the key as it was. Without a version, changes that come meanwhile do not keep it.

        Raises:
            InvalidArgument: the id is none.
            NotFound: there is no such key.
            PermissionDenied: it reaches further than who revokes it.
            Aborted: a version is named, and it was changed meanwhile.
        """
        key_id = keys.parse_key_id(request.key_id)
        for _ in range(_REVOKE_ATTEMPTS):
            record = await self._found(key_id, version=request.version)
            self.check(actor, record, await self._access(record))
            if await self._store.revoke(key_id, version=record.version):
                log.info("API key revoked", key_id=key_id, by=actor.key_id)
                return record
        raise _changed(key_id)

    async def add(self, actor: Holder, record: ApiKeyRecord) -> None:
        """Write a new key that was checked."""
        await self._store.add(record)
        log.info("API key created", key_id=record.key_id, tenant=record.tenant, by=actor.key_id)

    async def put(self, actor: Holder, record: ApiKeyRecord) -> None:
        """Write a changed key that was checked.

        Raises:
            Aborted: the stored one is not of the version before.
        """
        if not await self._store.replace(record):
            raise _changed(record.key_id)
        log.info("API key changed", key_id=record.key_id, tenant=record.tenant, by=actor.key_id)

    def check(self, actor: Holder, record: ApiKeyRecord, access: Access) -> None:
        """Raises:
        PermissionDenied: the key reaches further than the actor's own.
        """
        check_may_manage(actor.access, access)
        own, given = self._ceiling(actor.key, actor.access), self._ceiling(record, access)
        check_may_give_priority(actor.access, own=own, given=given)
        check_may_give_models(actor.access, own=actor.key.models, given=record.models)
        check_may_give_pools(actor.access, own=actor.key.worker_pools, given=record.worker_pools)

    def _ceiling(self, record: ApiKeyRecord, access: Access) -> int:
        return record.priority_ceiling(self._default_max_priority, is_admin=Scope.ADMIN in access.scopes)

    async def _found(self, key_id: str, *, version: int = 0) -> ApiKeyRecord:
        record = await self._store.find_by_id(key_id)
        if record is None:
            raise _unknown(key_id)
        if version and version != record.version:
            raise _changed(key_id)
        return record

    async def _access(self, record: ApiKeyRecord) -> Access:
        return access_of(record, await self._store.find_roles(record.roles))

    async def _checked(self, record: ApiKeyRecord, *, field: str = "") -> Access:
        """Scopes and models that a key would have.

        Raises:
            InvalidArgument: nothing at all, or it names a role that is not there.
        """
        if not record.scopes and not record.roles:
            raise InvalidArgument("a key needs at least one scope or role", field=f"{field}scopes")
        roles = await self._store.find_roles(record.roles)
        there = {role.name for role in roles}
        for i, name in enumerate(record.roles):
            if name not in there:
                raise InvalidArgument(f"there is no role {name}", field=f"{field}roles[{i}]")
        return access_of(record, roles)

    def _expiry(self, at: Timestamp, *, field: str = "expires_at") -> int:
        try:
            expires_ms: int = at.ToMilliseconds()
        except (ValueError, OverflowError):
            raise InvalidArgument(f"{field} is no time", field=field) from None
        if expires_ms <= self._now_ms():
            raise InvalidArgument(f"{field} is in the past", field=field)
        return expires_ms

    def _changes(self, given: policy_pb2.ApiKey, paths: Sequence[str]) -> dict[str, Any]:
        """The fields of a record that change."""
        read: dict[str, Callable[[], dict[str, Any]]] = {
            "name": lambda: {"name": keys.parse_name(given.name, field="api_key.name")},
            "scopes": lambda: {"scopes": keys.parse_scopes(given.scopes, field="api_key.scopes")},
            "roles": lambda: {"roles": parse_role_names(given.roles, field="api_key.roles")},
            "worker_pools": lambda: {
                "worker_pools": parse_pools(given.worker_pools, field="api_key.worker_pools")
            },
            "models": lambda: {"models": parse_patterns(given.models, field="api_key.models")},
            "expires_at": lambda: {
                "expires_unix_ms": self._expiry(given.expires_at, field="api_key.expires_at")
                if given.HasField("expires_at")
                else None
            },
            "max_priority": lambda: {
                "max_priority": keys.parse_max_priority(given.max_priority, field="api_key.max_priority")
                if given.HasField("max_priority")
                else None
            },
            "cache_scope": lambda: {
                "cache_scope": keys.parse_cache_scope(given.cache_scope, field="api_key.cache_scope")
            },
            "skip_answer_cache": lambda: {"skips_answer_cache": given.skip_answer_cache},
            "deterministic": lambda: {"is_deterministic": given.deterministic},
        }
        changes: dict[str, Any] = {}
        for i, path in enumerate(paths):
            if path not in read:
                known = ", ".join(read)
                message = f"{path[:64]!r} cannot be changed: name one of {known}"
                raise InvalidArgument(message, field=f"update_mask.paths[{i}]")
            changes |= read[path]()
        return changes

    def _message(self, record: ApiKeyRecord, access: Access, *, last_used_ms: int = 0) -> policy_pb2.ApiKey:
        message = policy_pb2.ApiKey(
            key_id=record.key_id,
            tenant=record.tenant,
            name=record.name,
            scopes=record.scopes,
            max_priority=self._ceiling(record, access),
            cache_scope=record.cache_scope or self._default_cache_scope,
            skip_answer_cache=record.skips_answer_cache,
            roles=record.roles,
            models=record.models,
            worker_pools=record.worker_pools,
            deterministic=record.is_deterministic,
            version=record.version,
        )
        message.created_at.FromMilliseconds(record.created_unix_ms)
        if record.expires_unix_ms is not None:
            message.expires_at.FromMilliseconds(record.expires_unix_ms)
        if last_used_ms:
            message.last_used_at.FromMilliseconds(last_used_ms)
        if record.previous_until_unix_ms > self._now_ms():
            message.previous_secret_until.FromMilliseconds(record.previous_until_unix_ms)
        return message


def page_of(records: Sequence[ApiKeyRecord], token: str, size: int) -> tuple[Sequence[ApiKeyRecord], str]:
    """A page of records that are in order, and the token of the next one, "" after the last.

    Args:
        token: of the page; "" for the first.
        size: of the page; 0: all that is left.

    Raises:
        InvalidArgument: the token is none.
    """
    page, goes_on = page_after(records, _place, _parse_token(token) if token else None, size)
    if not goes_on:
        return page, ""
    created_ms, key_id = _place(page[-1])
    return page, f"{created_ms}.{key_id}"


def _place(record: ApiKeyRecord) -> tuple[int, str]:
    return record.created_unix_ms, record.key_id


def _parse_token(token: str) -> tuple[int, str]:
    created_ms, _, key_id = token.partition(".")
    if not (created_ms.isascii() and created_ms.isdigit() and len(created_ms) < 20):
        raise InvalidArgument("this page_token was not given by ListApiKeys", field="page_token")
    return int(created_ms), keys.parse_key_id(key_id, field="page_token")


def _unknown(key_id: str) -> NotFound:
    return NotFound(f"there is no key {key_id}", reason="UNKNOWN_KEY_ID")


def _changed(key_id: str) -> Aborted:
    return Aborted(f"key {key_id} was changed meanwhile: read it again", reason="VERSION_MISMATCH")
