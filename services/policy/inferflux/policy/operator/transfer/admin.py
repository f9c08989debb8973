"""Export and import: reads what is stored, checks everything, then makes one change after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from inferflux.common.contract.callers.policy_methods import MAX_DOCUMENT_BYTES
from inferflux.common.contract.callers.scopes import Scope
from inferflux.common.contract.errors import InferFluxError, PermissionDenied, ResourceExhausted
from inferflux.common.process import logs
from inferflux.policy.decide.admission import Holder
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.decide.limits.rules import RateLimit
from inferflux.policy.decide.roles import Role, access_of
from inferflux.v1 import policy_pb2

from .document import GuardrailSet, PolicyState, parse_document, state_of, to_document
from .plan import Change, n_items, plan, roles_after

if TYPE_CHECKING:
    from inferflux.policy.operator.guardrail_admin import GuardrailAdmin
    from inferflux.policy.operator.key_admin import KeyAdmin
    from inferflux.policy.operator.limit_admin import LimitAdmin
    from inferflux.policy.operator.role_admin import RoleAdmin
    from inferflux.policy.storage.interface import Storage

# Sets of guardrails that are read at a time: each has at most 1 MiB.
_SETS_AT_ONCE = 4

log = logs.get()

OnChange = Callable[[policy_pb2.PolicyChange], None]


class TransferAdmin:
    """Everything that is set, as one document.

    Args:
        now_ms: the time, in ms since 1970.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        key_admin: KeyAdmin,
        role_admin: RoleAdmin,
        limit_admin: LimitAdmin,
        guardrail_admin: GuardrailAdmin,
        now_ms: Callable[[], int],
    ) -> None:
        self._keys = storage.keys
        self._limits = storage.rate_limits
        self._guardrails = storage.guardrails
        self._key_admin = key_admin
        self._role_admin = role_admin
        self._limit_admin = limit_admin
        self._guardrail_admin = guardrail_admin
        self._now_ms = now_ms

    async def export(
        self, actor: Holder, request: policy_pb2.ExportPolicyRequest
    ) -> policy_pb2.ExportPolicyResponse:
        """Raises:
        PermissionDenied: hashes are asked for without the scope `admin`.
        ResourceExhausted: it is more than a message can have.
        """
        if request.with_hashes and Scope.ADMIN not in actor.access.scopes:
            raise PermissionDenied("hashes of secrets need the scope admin", reason="MISSING_SCOPE")
        state = await self._stored(most_bytes=MAX_DOCUMENT_BYTES)
        document = to_document(state, with_hashes=request.with_hashes, now_ms=self._now_ms())
        if document.ByteSize() > MAX_DOCUMENT_BYTES:
            raise _too_large()
        log.info("policy exported", by=actor.key_id, items=n_items(state), with_hashes=request.with_hashes)
        return policy_pb2.ExportPolicyResponse(document=document)

    async def import_(
        self, actor: Holder, request: policy_pb2.ImportPolicyRequest, on_change: OnChange
    ) -> policy_pb2.ImportPolicyResponse:
        """Make the stored items as the document has them.

        Args:
            on_change: called after each change that was made.

        Raises:
            InvalidArgument: a field is wrong. Then nothing is changed, nor is after the next two.
            PermissionDenied: a role or a key reaches further than who imports it, or did before.
            Aborted: an item has another version than in the document.
            InferFluxError: a change could not be made. Those before it stay.
        """
        now_ms = self._now_ms()
        wanted = await asyncio.to_thread(parse_document, request.document, now_ms=now_ms)
        stored = await self._stored()
        changes = plan(wanted, stored, ignores_versions=request.ignore_versions)
        self._check(actor, changes, stored.roles, roles_after(wanted, stored))
        if not request.dry_run:
            await self._make(actor, changes, on_change)
        return policy_pb2.ImportPolicyResponse(
            changes=[change.message() for change in changes], unchanged=n_items(wanted) - len(changes)
        )

    async def _stored(self, *, most_bytes: int | None = None) -> PolicyState:
        """Read everything that is set now.

        Raises:
            ResourceExhausted: the guardrails alone have more than `most_bytes`.
        """
        sets = (await self._guardrails.index()).sets
        names, found, size = sorted(sets), [], 0
        for start in range(0, len(names), _SETS_AT_ONCE):
            some = names[start : start + _SETS_AT_ONCE]
            for name, rules in zip(some, await self._guardrails.rules(some), strict=True):
                if rules is not None:
                    found.append(GuardrailSet(name, rules, sets[name].version))
                    size += rules.ByteSize()
            if most_bytes is not None and size > most_bytes:
                raise _too_large()
        return state_of(
            await self._keys.all_roles(), await self._limits.rules(), found, await self._keys.all_keys()
        )

    def _check(
        self, actor: Holder, changes: list[Change], before: Mapping[str, Role], after: Mapping[str, Role]
    ) -> None:
        """Raises:
        PermissionDenied: the actor may not make one of the changes.
        """
        for change in changes:
            if isinstance(change.new, Role):
                self._role_admin.check(actor, change.new, before.get(change.name))
            elif isinstance(change.new, ApiKeyRecord):
                for key, roles in ((change.old, {**after, **before}), (change.new, after)):
                    if isinstance(key, ApiKeyRecord):
                        had = [roles[name] for name in key.roles if name in roles]
                        self._key_admin.check(actor, key, access_of(key, had))

    async def _make(self, actor: Holder, changes: list[Change], on_change: OnChange) -> None:
        for n_made, change in enumerate(changes):
            try:
                await self._put(actor, change)
            except InferFluxError as error:
                left = f"{n_made} of {len(changes)} changes are made, {change.kind} {change.name} is not"
                error.message = f"{left}: {error.message}"
                raise
            on_change(change.message())

    async def _put(self, actor: Holder, change: Change) -> None:
        new = change.new
        if isinstance(new, Role):
            await self._role_admin.put(actor, new, version=change.version)
        elif isinstance(new, RateLimit):
            await self._limit_admin.put(actor, RateLimit(new.subject, new.limits, change.version))
        elif isinstance(new, GuardrailSet):
            given, parsed = new.rules, new.parsed
            await self._guardrail_admin.put(actor, new.name, given, parsed, version=change.version)
        elif change.old is None:
            await self._key_admin.add(actor, new)
        else:
            await self._key_admin.put(actor, new)


def _too_large() -> ResourceExhausted:
    message = f"all that is set has more than {MAX_DOCUMENT_BYTES} bytes: it cannot be exported at once"
    return ResourceExhausted(message, reason="DOCUMENT_TOO_LARGE", retry_delay_s=None)
