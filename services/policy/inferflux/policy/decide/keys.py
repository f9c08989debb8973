"""API keys: how they are made, recognised, stored and checked. No I/O, no clock.

A key is `ifx_` and 43 URL-safe characters: 256 bits from the system's random source. It is stored only as
its SHA-256. A plain, fast hash is right here, where it would be wrong for a password: slow hashes and salts
make guessing expensive when the secret comes from a small set, and 2**256 keys cannot be guessed at any
speed. It also lets a key be found by its hash, in one lookup.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from inferflux.common.contract.callers import tenants
from inferflux.common.contract.callers.api_key import PREFIX
from inferflux.common.contract.callers.cache_scope import check_cache_scope
from inferflux.common.contract.callers.scopes import Scope
from inferflux.common.contract.checks import check_range
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.priority import HIGHEST, LOWEST

MAX_NAME_LENGTH = 128

# The cache scope of a key whose requests share cached prefixes within their own tenant alone.
OWN_TENANT = "tenant"

_KEY_ID = re.compile(r"key_[0-9a-f]{16}")
# Of a key, or of the subject of a token.
_HOLDER_ID = re.compile(r"key_[0-9a-f]{16}|sub_[0-9a-f]{32}")


ALL_SCOPES = (Scope.INFERENCE, Scope.MODELS, Scope.ADMIN)
"""Scopes that include all others: the first key has them."""


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """Everything that is known of a key, but for the key itself.

    Attributes:
        max_priority: the most urgent priority of its requests; None leaves the ceiling to the settings.
        cache_scope: `OWN_TENANT`, or the name of a scope that tenants share; "" leaves it to the settings.
        skips_answer_cache: whether its requests leave the answer cache aside.
        scopes: as they are stored; one of a later version grants nothing here, and is kept.
        roles: names.
        expires_unix_ms: from then on it is refused; None: never.
        models: patterns of the models it may use; empty: every model.
        worker_pools: pools of the workers that its requests may run on; empty: every worker.
        is_deterministic: whether its requests are that leave it open.
        version: rises with each change.
        previous_digest: of the secret before the last rotation, valid until `previous_until_unix_ms`.
        own_key_id: of a key that was rotated: it keeps its name; "" for one named after its digest.
    """

    digest: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    created_unix_ms: int
    max_priority: int | None = None
    cache_scope: str = ""
    skips_answer_cache: bool = False
    roles: tuple[str, ...] = ()
    expires_unix_ms: int | None = None
    models: tuple[str, ...] = ()
    version: int = 1
    previous_digest: str = ""
    previous_until_unix_ms: int = 0
    own_key_id: str = ""
    worker_pools: tuple[str, ...] = ()
    is_deterministic: bool = False

    @property
    def key_id(self) -> str:
        """The key's public name. Taken from its first digest, so that writing a key twice makes one key."""
        return self.own_key_id or key_id_of(self.digest)

    def fields(self) -> dict[str, str]:
        """The record as texts by name; `from_fields` reads it back."""
        fields = {
            "key_id": self.key_id,
            "tenant": self.tenant,
            "name": self.name,
            "scopes": " ".join(self.scopes),
            "created_at": str(self.created_unix_ms),
        }
        if self.max_priority is not None:
            fields["max_priority"] = str(self.max_priority)
        if self.cache_scope:
            fields["cache_scope"] = self.cache_scope
        if self.skips_answer_cache:
            fields["skip_answer_cache"] = "1"
        if self.roles:
            fields["roles"] = " ".join(self.roles)
        if self.expires_unix_ms is not None:
            fields["expires_at"] = str(self.expires_unix_ms)
        if self.models:
            fields["models"] = json.dumps(self.models)
        if self.worker_pools:
            fields["worker_pools"] = " ".join(self.worker_pools)
        if self.is_deterministic:
            fields["deterministic"] = "1"
        if self.version != 1:
            fields["version"] = str(self.version)
        if self.previous_digest:
            fields["previous_digest"] = self.previous_digest
            fields["previous_until"] = str(self.previous_until_unix_ms)
        return fields

    @classmethod
    def from_fields(cls, digest: str, fields: Mapping[str, str]) -> ApiKeyRecord:
        """Read what `fields` made. Keys of earlier versions lack most fields."""
        ceiling, expires = fields.get("max_priority"), fields.get("expires_at")
        key_id = fields.get("key_id", "")
        return cls(
            digest=digest,
            tenant=fields["tenant"],
            name=fields["name"],
            scopes=tuple(fields["scopes"].split()),
            created_unix_ms=int(fields["created_at"]),
            max_priority=None if ceiling is None else int(ceiling),
            cache_scope=fields.get("cache_scope", ""),
            skips_answer_cache="skip_answer_cache" in fields,
            roles=tuple(fields.get("roles", "").split()),
            expires_unix_ms=None if expires is None else int(expires),
            models=tuple(json.loads(fields.get("models", "[]"))),
            version=int(fields.get("version", "1")),
            previous_digest=fields.get("previous_digest", ""),
            previous_until_unix_ms=int(fields.get("previous_until", "0")),
            own_key_id="" if key_id == key_id_of(digest) else key_id,
            worker_pools=tuple(fields.get("worker_pools", "").split()),
            is_deterministic="deterministic" in fields,
        )

    def shared_scope(self, default: str) -> str:
        """The name of the cache scope that its requests share with other tenants; "" when they share nothing.

        Args:
            default: for a key without a cache scope of its own.
        """
        scope = self.cache_scope or default
        return "" if scope == OWN_TENANT else scope

    def priority_ceiling(self, default: int, *, is_admin: bool) -> int:
        """The most urgent priority of its requests.

        Args:
            default: for a key without a ceiling of its own. Administrators are not held to it.
        """
        if self.max_priority is not None:
            return self.max_priority
        return HIGHEST if is_admin else default

    def is_expired(self, now_unix_ms: int) -> bool:
        return self.expires_unix_ms is not None and now_unix_ms >= self.expires_unix_ms

    def left_ms(self, digest: str, now_unix_ms: int) -> float:
        """How long a secret of the key is valid; infinity for one without an end.

        Args:
            digest: of the secret: the present one or the one before.
        """
        until = math.inf if self.expires_unix_ms is None else float(self.expires_unix_ms)
        if digest != self.digest:
            until = min(until, self.previous_until_unix_ms)
        return max(0.0, until - now_unix_ms)

    def rotated(self, digest: str, *, previous_until_unix_ms: int) -> ApiKeyRecord:
        """The key with a new secret.

        Args:
            previous_until_unix_ms: until when the secret of now stays valid; 0: it does not.
        """
        return replace(
            self,
            digest=digest,
            own_key_id=self.key_id,
            version=self.version + 1,
            previous_digest=self.digest if previous_until_unix_ms else "",
            previous_until_unix_ms=previous_until_unix_ms,
        )


def generate() -> str:
    """Draw a new API key."""
    return f"{PREFIX}{secrets.token_urlsafe(32)}"


def digest_of(secret: str) -> str:
    """The hex SHA-256 a key is stored and found by."""
    return hashlib.sha256(secret.encode()).hexdigest()


def key_id_of(digest: str) -> str:
    return f"key_{digest[:16]}"


def parse_key_id(text: str, *, field: str = "key_id") -> str:
    if _KEY_ID.fullmatch(text) is None:
        raise InvalidArgument("a key id is key_ and 16 hex digits", field=field)
    return text


def parse_holder_id(text: str, *, field: str = "key_id") -> str:
    """The id of a key, or what stands for it where a caller has a token."""
    if _HOLDER_ID.fullmatch(text) is None:
        message = "a key id is key_ and 16 hex digits, that of a token's subject sub_ and 32"
        raise InvalidArgument(message, field=field)
    return text


parse_tenant = tenants.parse_tenant


def parse_name(text: str, *, field: str = "name") -> str:
    if not 1 <= len(text) <= MAX_NAME_LENGTH or not text.isprintable():
        raise InvalidArgument(f"a name is 1-{MAX_NAME_LENGTH} printable characters", field=field)
    return text


def parse_max_priority(priority: int, *, field: str = "max_priority") -> int:
    check_range(priority, LOWEST, HIGHEST, field)
    return priority


def parse_cache_scope(text: str, *, field: str = "cache_scope") -> str:
    check_cache_scope(text, field)
    return text


def parse_scope(text: str, *, field: str = "scope") -> Scope:
    try:
        return Scope(text)
    except ValueError:
        known = ", ".join(Scope)
        raise InvalidArgument(f"unknown scope {text[:64]!r}: use one of {known}", field=field) from None


def parse_scopes(texts: Iterable[str], *, field: str = "scopes") -> tuple[Scope, ...]:
    """The scopes named, once each, in the order of `Scope`."""
    asked = {parse_scope(text, field=f"{field}[{i}]") for i, text in enumerate(texts)}
    return tuple(scope for scope in Scope if scope in asked)
