"""API keys: how they are made, recognised, stored and checked. No I/O, no clock.

A key is `ifx_` and 43 URL-safe characters: 256 bits from the system's random source. It is stored only as
its SHA-256. A plain, fast hash is right here, where it would be wrong for a password: slow hashes and salts
make guessing expensive when the secret comes from a small set, and 2**256 keys cannot be guessed at any
speed. It also lets a key be found by its hash, in one lookup.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from inferflux.common.api_key import PREFIX
from inferflux.common.cache_scope import check_cache_scope
from inferflux.common.checks import check_range
from inferflux.common.errors import InvalidArgument
from inferflux.common.priority import HIGHEST, LOWEST

MAX_NAME_LENGTH = 128

# The cache scope of a key whose requests share cached prefixes within their own tenant alone.
OWN_TENANT = "tenant"

_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_KEY_ID = re.compile(r"key_[0-9a-f]{16}")


class Scope(StrEnum):
    """What a key may be used for. None of them implies another."""

    INFERENCE = "inference"
    MODELS = "models"
    ADMIN = "admin"


ALL_SCOPES = tuple(Scope)


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """What is known of a key. The key itself is not.

    Attributes:
        max_priority: the most urgent priority of its requests; None leaves the ceiling to the settings.
        cache_scope: `OWN_TENANT`, or the name of a scope that tenants share; "" leaves it to the settings.
        skips_answer_cache: whether its requests leave the answer cache aside.
    """

    digest: str
    tenant: str
    name: str
    scopes: tuple[Scope, ...]
    created_unix_ms: int
    max_priority: int | None = None
    cache_scope: str = ""
    skips_answer_cache: bool = False

    @property
    def key_id(self) -> str:
        """The key's public name. Taken from its digest, so that writing a key twice makes one key."""
        return key_id_of(self.digest)

    def fields(self) -> dict[str, str]:
        """The record as the fields of a Redis hash; `from_fields` reads it back."""
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
        return fields

    @classmethod
    def from_fields(cls, digest: str, fields: Mapping[bytes, bytes]) -> ApiKeyRecord:
        """Read a Redis hash. A scope this version does not know grants nothing, and is left out. Keys of
        earlier versions have no ceiling and no cache scope of their own."""
        ceiling = fields.get(b"max_priority")
        return cls(
            digest=digest,
            tenant=fields[b"tenant"].decode(),
            name=fields[b"name"].decode(),
            scopes=tuple(s for s in Scope if s in fields[b"scopes"].decode().split()),
            created_unix_ms=int(fields[b"created_at"]),
            max_priority=None if ceiling is None else int(ceiling),
            cache_scope=fields.get(b"cache_scope", b"").decode(),
            skips_answer_cache=b"skip_answer_cache" in fields,
        )

    def shared_scope(self, default: str) -> str:
        """The name of the cache scope that its requests share with other tenants; "" when they share nothing.

        Args:
            default: for a key without a cache scope of its own.
        """
        scope = self.cache_scope or default
        return "" if scope == OWN_TENANT else scope

    def priority_ceiling(self, default: int) -> int:
        """The most urgent priority of its requests.

        Args:
            default: for a key without a ceiling of its own. Administrators are not held to it.
        """
        if self.max_priority is not None:
            return self.max_priority
        return HIGHEST if Scope.ADMIN in self.scopes else default


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


def parse_tenant(text: str, *, field: str = "tenant") -> str:
    if _TENANT.fullmatch(text) is None:
        raise InvalidArgument(
            "a tenant is 1-63 of a-z 0-9 _ -, and starts with a letter or a digit", field=field
        )
    return text


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
        known = ", ".join(ALL_SCOPES)
        raise InvalidArgument(f"unknown scope {text[:64]!r}: use one of {known}", field=field) from None


def parse_scopes(texts: Iterable[str], *, field: str = "scopes") -> tuple[Scope, ...]:
    """The scopes named, once each, in the order of `Scope`; at least one."""
    asked = {parse_scope(text, field=f"{field}[{i}]") for i, text in enumerate(texts)}
    if not asked:
        raise InvalidArgument("a key needs at least one scope", field=field)
    return tuple(scope for scope in Scope if scope in asked)
