"""Changes that an import would make: a document beside what is stored. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from inferflux.common.contract.errors import Aborted, InvalidArgument
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.decide.limits.rules import NAMES, RateLimit
from inferflux.policy.decide.roles import BUILTIN, Role
from inferflux.v1 import policy_pb2

from .document import GuardrailSet, PolicyState

Item: TypeAlias = Role | RateLimit | GuardrailSet | ApiKeyRecord

_OF_KEYS = {
    "name": "name",
    "scopes": "scopes",
    "roles": "roles",
    "models": "models",
    "worker_pools": "worker_pools",
    "max_priority": "max_priority",
    "cache_scope": "cache_scope",
    "skips_answer_cache": "skip_answer_cache",
    "is_deterministic": "deterministic",
    "expires_unix_ms": "expires_at",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One item that is made or changed.

    Attributes:
        old: as it is stored; None: it is not.
        new: as it is to be. Of a key that changes, the whole record, with its next version.
        fields: that differ, as the document names them.
    """

    kind: str
    name: str
    old: Item | None
    new: Item
    fields: Sequence[str] = ()

    @property
    def version(self) -> int:
        """The version of the stored item; 0: there is none."""
        return 0 if self.old is None else self.old.version

    def message(self) -> policy_pb2.PolicyChange:
        action = "create" if self.old is None else "update"
        return policy_pb2.PolicyChange(kind=self.kind, name=self.name, action=action, fields=self.fields)


def plan(wanted: PolicyState, stored: PolicyState, *, ignores_versions: bool) -> list[Change]:
    """The changes, in the order in which they are made: roles before the keys that have them.

    Raises:
        InvalidArgument: a key cannot be as the document has it.
        Aborted: an item differs, and was changed since the document had it.
    """
    _check_keys(wanted, stored)
    changes = [
        *_changes("role", wanted.roles, stored.roles),
        *_changes("rate_limit", wanted.rate_limits, stored.rate_limits),
        *_changes("guardrails", wanted.guardrails, stored.guardrails),
        *_changes("api_key", wanted.keys, stored.keys),
    ]
    for change in changes:
        had = _version_in(wanted, change)
        if change.old is not None and had not in (0, change.version) and not ignores_versions:
            message = (
                f"{change.kind} {change.name} has version {change.version}, and the document has {had}: "
                "export again, or have versions ignored"
            )
            raise Aborted(message, reason="VERSION_MISMATCH")
    return changes


def roles_after(wanted: PolicyState, stored: PolicyState) -> Mapping[str, Role]:
    """All roles that there are when the import is done."""
    return {**BUILTIN, **stored.roles, **wanted.roles}


def n_items(state: PolicyState) -> int:
    return len(state.roles) + len(state.rate_limits) + len(state.guardrails) + len(state.keys)


def _changes(kind: str, wanted: Mapping[str, Item], stored: Mapping[str, Item]) -> Iterator[Change]:
    for name, item in wanted.items():
        old = stored.get(name)
        if old is None:
            yield Change(kind, name, None, _made(item))
        elif fields := list(_differing(old, item)):
            yield Change(kind, name, old, _changed(old, item), fields)


def _made(item: Item) -> Item:
    return replace(item, version=1) if isinstance(item, ApiKeyRecord) else item


def _changed(old: Item, new: Item) -> Item:
    """A key keeps its secrets and when it was made."""
    if not isinstance(old, ApiKeyRecord) or not isinstance(new, ApiKeyRecord):
        return new
    return replace(old, version=old.version + 1, **{name: getattr(new, name) for name in _OF_KEYS})


def _differing(old: Item, new: Item) -> Iterator[str]:
    if isinstance(old, ApiKeyRecord):
        names: Mapping[str, str] = _OF_KEYS
    elif isinstance(old, Role):
        names = {name: name for name in ("scopes", "models", "description")}
    elif isinstance(old, GuardrailSet):
        names = {"rules": "rules"}
    elif isinstance(new, RateLimit):
        yield from (name for name in NAMES if old.limits.get(name) != new.limits.get(name))
        return
    for name, named in names.items():
        if getattr(old, name) != getattr(new, name):
            yield named


def _version_in(wanted: PolicyState, change: Change) -> int:
    """The version that the document has of an item."""
    of: Mapping[str, Mapping[str, Item]] = {
        "role": wanted.roles,
        "rate_limit": wanted.rate_limits,
        "guardrails": wanted.guardrails,
        "api_key": wanted.keys,
    }
    return of[change.kind][change.name].version


def _check_keys(wanted: PolicyState, stored: PolicyState) -> None:
    """Raises:
    InvalidArgument: a key has a role that there is none of, or another tenant than before, or is not
        there and has no hash, or has the hash of another key.
    """
    roles = roles_after(wanted, stored)
    owners = {key.digest: key_id for key_id, key in stored.keys.items()}
    owners |= {key.previous_digest: key_id for key_id, key in stored.keys.items() if key.previous_digest}
    for i, (key_id, key) in enumerate(wanted.keys.items()):
        at, old = f"document.api_keys[{i}]", stored.keys.get(key_id)
        for j, name in enumerate(key.roles):
            if name not in roles:
                raise InvalidArgument(f"there is no role {name}", field=f"{at}.roles[{j}]")
        # A key whose only role is gone has none, and can be exported so.
        if old is not None and (old.scopes or old.roles) and not (key.scopes or key.roles):
            raise InvalidArgument("a key needs at least one scope or role", field=f"{at}.scopes")
        if old is not None and old.tenant != key.tenant:
            raise InvalidArgument(f"{key_id} is of the tenant {old.tenant}", field=f"{at}.tenant")
        if old is None and not key.digest:
            message = f"{key_id} is not here, and the document has no hash of its secret to make it from"
            raise InvalidArgument(message, field=f"{at}.secret_sha256")
        if key.digest and owners.setdefault(key.digest, key_id) != key_id:
            raise InvalidArgument("another key has this secret", field=f"{at}.secret_sha256")
