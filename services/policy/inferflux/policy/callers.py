"""Identification of callers, and whether one may do as it asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from inferflux.common.calls import grpc_metadata
from inferflux.common.calls.calls import CallContext, note_holder
from inferflux.common.calls.service_key import SERVICE, ServiceKeys
from inferflux.common.contract.callers.api_key import is_well_formed
from inferflux.common.contract.callers.scopes import Scope
from inferflux.common.contract.errors import InferFluxError

from .decide import keys
from .decide.admission import Holder, authorize, identify, identify_token
from .decide.decisions.facts import facts_of_call

if TYPE_CHECKING:
    from .decide.decisions.chain import Decisions
    from .decide.key_store import KeyStore
    from .decide.keys import ApiKeyRecord
    from .decide.oidc.token_admission import TokenAdmission
    from .decide.roles import Role
    from .last_used import LastUsed


@dataclass(frozen=True, slots=True)
class Service:
    """A service that proved itself. It has no tenant: calls of one connection share their places."""

    tenant: str = ""
    key_id: str = ""


class Callers:
    """Holders of keys and tokens, and services."""

    def __init__(
        self,
        store: KeyStore,
        tokens: TokenAdmission,
        service_keys: ServiceKeys,
        last_used: LastUsed,
        decisions: Decisions | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = store
        self._tokens = tokens
        self._service_keys = service_keys
        self._last_used = last_used
        self._decisions = decisions
        self._clock = clock

    async def admit_call(self, scope: str, context: CallContext) -> Holder | Service:
        """Let a call of policy's own pass, by its context alone: as an `Admit` of the interceptor."""
        if scope == SERVICE:
            self._service_keys.check(context.service_key, certificate=context.certificate)
            return Service()
        try:
            holder = await self.admit(context.require_credential(), Scope(scope), context.method)
        except InferFluxError as refusal:
            note_holder(context.record, refusal)
            raise
        context.record.about |= holder.identity
        return holder

    async def admit(self, credential: str, scope: Scope, method: str) -> Holder:
        """Find out who calls, and decide."""
        holder = await self._identify(credential)
        with naming(holder.key):
            if self._decisions is None:
                authorize(holder, scope)
            else:
                facts = facts_of_call(holder, scope, method)
                await self._decisions.admit(facts, partial(authorize, holder, scope))
        if not holder.identity:
            self._last_used.note(holder.key_id)
        return holder

    async def _identify(self, credential: str) -> Holder:
        """The holder of the token or key. What could be neither asks no store."""
        if self._tokens.takes(credential):
            token = await self._tokens.holder_of(credential)
            return identify_token(token, roles=await self._roles(token.record))
        could_be = is_well_formed(credential)
        # Asked before: what is found afterwards is as new, or newer.
        due_in_s = await self._keys.due_in_s() if could_be else 0.0
        key = await self._keys.find(keys.digest_of(credential)) if could_be else None
        roles = await self._roles(key) if key is not None else ()
        now_unix_ms = int(self._clock() * 1000)
        with naming(key):
            return identify(credential, key, roles=roles, now_unix_ms=now_unix_ms, due_in_s=due_in_s)

    async def _roles(self, key: ApiKeyRecord) -> Sequence[Role]:
        """The roles of a key that there are."""
        return await self._keys.find_roles(key.roles) if key.roles else ()


@contextmanager
def naming(key: ApiKeyRecord | None) -> Iterator[None]:
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
