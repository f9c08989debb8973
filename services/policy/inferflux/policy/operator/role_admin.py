"""Roles, as administrators list, set and delete them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inferflux.common.contract.callers.scopes import expanded
from inferflux.common.contract.errors import Aborted, InvalidArgument, NotFound
from inferflux.common.contract.models.model_names import EVERY, parse_patterns
from inferflux.common.contract.pages import check_page_size, page_after
from inferflux.common.process import logs
from inferflux.policy.decide import keys
from inferflux.policy.decide.admission import Holder
from inferflux.policy.decide.roles import (
    BUILTIN,
    Access,
    Role,
    check_may_manage,
    parse_description,
    parse_role_name,
)
from inferflux.v1 import policy_pb2

if TYPE_CHECKING:
    from inferflux.policy.decide.key_store import KeyStore

_BUILTIN_ORDER = {name: place for place, name in enumerate(BUILTIN)}

log = logs.get()


class RoleAdmin:
    """Roles, as administrators see them."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store

    async def list(self, request: policy_pb2.ListRolesRequest) -> policy_pb2.ListRolesResponse:
        """Roles of one's own by name, after those that every InferFlux has.

        Raises:
            InvalidArgument: a field is wrong.
        """
        check_page_size(request.page_size)
        token = request.page_token
        after = _place_of(parse_role_name(token, field="page_token")) if token else None
        roles = sorted(await self._store.all_roles(), key=_place)
        page, goes_on = page_after(roles, _place, after, request.page_size)
        return policy_pb2.ListRolesResponse(
            roles=[message_of(role) for role in page], next_page_token=page[-1].name if goes_on else ""
        )

    async def set(self, actor: Holder, request: policy_pb2.SetRoleRequest) -> policy_pb2.SetRoleResponse:
        """Raises:
        InvalidArgument: a field is wrong, or every InferFlux has this role.
        PermissionDenied: it reaches further than who changes it, or would.
        Aborted: it was changed meanwhile.
        """
        given = request.role
        role = parse_role(given)
        old = next(iter(await self._store.find_roles([role.name])), None)
        version = old.version if old else 0
        if given.version and given.version != version:
            raise _changed(role.name)
        self.check(actor, role, old)
        return policy_pb2.SetRoleResponse(role=message_of(await self.put(actor, role, version=version)))

    def check(self, actor: Holder, role: Role, old: Role | None) -> None:
        """Raises:
        PermissionDenied: the role reaches further than who changes it, or did before.
        """
        check_may_manage(actor.access, _access(role), *([_access(old)] if old else []))

    async def put(self, actor: Holder, role: Role, *, version: int) -> Role:
        """Write a role that was checked, and return it with its new version.

        Args:
            version: of the stored one; 0: there is none.

        Raises:
            Aborted: it was changed meanwhile.
        """
        made = replace(role, version=version + 1)
        if not await self._store.put_role(made):
            raise _changed(role.name)
        log.info("role set", role=role.name, by=actor.key_id)
        return made

    async def delete(self, actor: Holder, request: policy_pb2.DeleteRoleRequest) -> Role:
        """Returns the role as it was.

        Raises:
            InvalidArgument: every InferFlux has this role.
            NotFound: there is none of this name.
            PermissionDenied: it reaches further than who takes it away.
            Aborted: it was changed meanwhile.
        """
        name = _own_name(request.name, field="name")
        old = next(iter(await self._store.find_roles([name])), None)
        if old is None:
            raise NotFound(f"there is no role {name}", reason="UNKNOWN_ROLE")
        check_may_manage(actor.access, _access(old))
        is_asked_for = request.version in (0, old.version)
        if not (is_asked_for and await self._store.delete_role(name, version=old.version)):
            raise _changed(name)
        log.info("role deleted", role=name, by=actor.key_id)
        return old


def parse_role(given: policy_pb2.Role, *, field: str = "role") -> Role:
    """The role of a message, with the message's version.

    Raises:
        InvalidArgument: a field is wrong, or every InferFlux has this role.
    """
    name = _own_name(given.name, field=f"{field}.name")
    scopes = keys.parse_scopes(given.scopes, field=f"{field}.scopes")
    if not scopes:
        raise InvalidArgument("a role needs at least one scope", field=f"{field}.scopes")
    return Role(
        name,
        scopes,
        models=parse_patterns(given.models, field=f"{field}.models"),
        description=parse_description(given.description, field=f"{field}.description"),
        version=given.version,
    )


def _place(role: Role) -> tuple[int, str]:
    return _place_of(role.name)


def _place_of(name: str) -> tuple[int, str]:
    return _BUILTIN_ORDER.get(name, len(_BUILTIN_ORDER)), name


def _own_name(text: str, *, field: str) -> str:
    name = parse_role_name(text, field=field)
    if name in BUILTIN:
        raise InvalidArgument(f"the role {name} is one that every InferFlux has", field=field)
    return name


def _access(role: Role) -> Access:
    return Access(expanded(role.scopes), role.models or (EVERY,))


def _changed(name: str) -> Aborted:
    return Aborted(f"role {name} was changed meanwhile: read it again", reason="VERSION_MISMATCH")


def message_of(role: Role) -> policy_pb2.Role:
    return policy_pb2.Role(
        name=role.name,
        scopes=role.scopes,
        models=role.models,
        description=role.description,
        is_builtin=role.is_builtin,
        version=role.version,
    )
