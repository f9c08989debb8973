"""Roles: named sets of scopes, and what a key may do by its own scopes and its roles. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferflux.common.contract.callers.scopes import Scope, expanded
from inferflux.common.contract.checks import check_count
from inferflux.common.contract.errors import InvalidArgument, PermissionDenied
from inferflux.common.contract.models.model_names import EVERY, covers, intersection

from .keys import ApiKeyRecord

MAX_ROLES_OF_A_KEY = 32
MAX_DESCRIPTION_LENGTH = 256

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class Role:
    """A named set of scopes.

    Attributes:
        models: patterns of the models for which it gives `inference`; empty: every model.
        version: rises with each change; 0 for one that every InferFlux has.
    """

    name: str
    scopes: tuple[str, ...]
    models: tuple[str, ...] = ()
    description: str = ""
    version: int = 1

    @property
    def is_builtin(self) -> bool:
        return self.name in BUILTIN

    def to_json(self) -> str:
        fields = {"scopes": self.scopes, "models": self.models, "description": self.description}
        return json.dumps(fields | {"version": self.version})

    @classmethod
    def from_json(cls, name: str, text: str | bytes) -> Role:
        fields: dict[str, Any] = json.loads(text)
        return cls(
            name, tuple(fields["scopes"]), tuple(fields["models"]), fields["description"], fields["version"]
        )


BUILTIN: Mapping[str, Role] = {
    role.name: role
    for role in (
        Role("user", (Scope.INFERENCE, Scope.MODELS), description="uses models", version=0),
        Role(
            "viewer",
            (Scope.MODELS, Scope.STATUS, Scope.POLICY_READ),
            description="sees models, the cluster and policy; changes nothing",
            version=0,
        ),
        Role(
            "operator",
            (Scope.MODELS, Scope.MODELS_LOAD, Scope.CLUSTER),
            description="runs the cluster",
            version=0,
        ),
        Role(
            "policy-admin",
            (Scope.POLICY,),
            description="manages keys, roles, limits and guardrails",
            version=0,
        ),
        Role("admin", (Scope.INFERENCE, Scope.MODELS, Scope.ADMIN), description="does everything", version=0),
    )
}
"""Roles that every InferFlux has. They cannot be changed."""


@dataclass(frozen=True, slots=True)
class Access:
    """Scopes and models of a key.

    Attributes:
        scopes: those it has and those that they include.
        models: patterns of the models for which it has `inference`; empty where it lacks that scope.
    """

    scopes: frozenset[Scope]
    models: tuple[str, ...]

    def within(self, scopes: frozenset[Scope]) -> Access:
        """The same with no scopes but these."""
        kept = self.scopes & scopes
        return Access(kept, self.models if Scope.INFERENCE in kept else ())


def access_of(key: ApiKeyRecord, roles: Iterable[Role]) -> Access:
    """The access that a key has by itself and by its roles.

    Args:
        roles: those of the key that there are.
    """
    grants = [(key.scopes, (EVERY,)), *((role.scopes, role.models or (EVERY,)) for role in roles)]
    scopes = expanded(name for names, _ in grants for name in names)
    given = dict.fromkeys(
        pattern for names, patterns in grants if Scope.INFERENCE in names for pattern in patterns
    )
    models = intersection(tuple(given), key.models or (EVERY,)) if given else ()
    return Access(scopes if models else scopes - {Scope.INFERENCE}, models)


def check_may_manage(actor: Access, *others: Access) -> None:
    """Check that a holder who is no administrator gives, changes and takes away only what it has itself.

    Raises:
        PermissionDenied: it would reach further than its own scopes and models.
    """
    if Scope.ADMIN in actor.scopes:
        return
    for other in others:
        if beyond := sorted(other.scopes - actor.scopes):
            raise _beyond_own(f"lacks {', '.join(beyond)}")
        if Scope.INFERENCE in other.scopes and not covers(actor.models, other.models):
            raise _beyond_own(f"may only use {', '.join(actor.models)}")


def check_may_give_priority(actor: Access, *, own: int, given: int) -> None:
    """Raises:
    PermissionDenied: the ceiling that is given is above the giver's own. Administrators may give any.
    """
    if Scope.ADMIN not in actor.scopes and given > own:
        raise _beyond_own(f"has max_priority {own}, and this is {given}")


def check_may_give_models(actor: Access, *, own: Sequence[str], given: Sequence[str]) -> None:
    """Check models that a key lists against those of its maker, whatever its scopes.

    Args:
        own: patterns of the models that the giver's key is held to; empty: it is not.
        given: those of the key that is given, in the same way.

    Raises:
        PermissionDenied: a model is given that the giver's key may not see. Administrators may give any.
    """
    if Scope.ADMIN not in actor.scopes and own and not covers(own, given or (EVERY,)):
        raise _beyond_own(f"may only use {', '.join(own)}")


def check_may_give_pools(actor: Access, *, own: Collection[str], given: Collection[str]) -> None:
    """Raises:
    PermissionDenied: a pool is given that the giver may not use. Administrators may give any.
    """
    if Scope.ADMIN not in actor.scopes and own and not (given and set(given) <= set(own)):
        raise _beyond_own(f"may only use the worker pools {', '.join(own)}")


def _beyond_own(why: str) -> PermissionDenied:
    return PermissionDenied(f"this needs `admin`: your key {why}", reason="BEYOND_OWN_SCOPES")


def parse_role_name(text: str, *, field: str) -> str:
    if _NAME.fullmatch(text) is None:
        message = "a role's name is 1-63 of a-z 0-9 _ -, and starts with a letter or a digit"
        raise InvalidArgument(message, field=field)
    return text


def parse_role_names(texts: Iterable[str], *, field: str = "roles") -> tuple[str, ...]:
    """The names, once each."""
    names = tuple(dict.fromkeys(parse_role_name(t, field=f"{field}[{i}]") for i, t in enumerate(texts)))
    check_count(names, MAX_ROLES_OF_A_KEY, field)
    return names


def parse_description(text: str, *, field: str) -> str:
    if len(text) > MAX_DESCRIPTION_LENGTH or not (text.isprintable() or not text):
        message = f"a description is at most {MAX_DESCRIPTION_LENGTH} printable characters"
        raise InvalidArgument(message, field=field)
    return text
