"""Claims of a verified token: whether it holds now, and who its holder is. No I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferflux.common.contract.callers.credentials import subject_id
from inferflux.common.contract.callers.scopes import Scope, expanded
from inferflux.common.contract.errors import InvalidArgument
from inferflux.policy.decide.keys import ApiKeyRecord, parse_tenant
from inferflux.policy.decide.roles import MAX_ROLES_OF_A_KEY

from .issuer import Issuer
from .tokens import TokenRefused

MAX_SUBJECT_LENGTH = 255


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """The holder of a token.

    Attributes:
        record: what it may do, in the form of a key. No store has it.
        ceiling: the scopes that it has at most, whatever its roles give.
    """

    issuer: str
    subject: str
    record: ApiKeyRecord
    ceiling: frozenset[Scope]

    @property
    def identity(self) -> Mapping[str, str]:
        """The identity of the holder, for audit lines."""
        return {"issuer": self.issuer, "subject": self.subject}


def holder_of(claims: Mapping[str, Any], issuer: Issuer, *, now_s: float) -> TokenHolder:
    """Find the holder of a token.

    Args:
        claims: of a token whose signature is the issuer's.
        now_s: since 1970.

    Raises:
        TokenRefused: it is not for us, not of now, or does not say of which tenant.
    """
    if claims.get("iss") != issuer.issuer:
        raise TokenRefused("issuer")
    if not set(_texts(claims.get("aud"))) & set(issuer.audiences):
        raise TokenRefused("audience")
    issued_s = _check_times(claims, issuer, now_s)
    subject = claims.get("sub")
    if not (isinstance(subject, str) and 1 <= len(subject) <= MAX_SUBJECT_LENGTH and subject.isprintable()):
        raise TokenRefused("subject")
    record = ApiKeyRecord(
        digest="",
        tenant=_tenant(claims, issuer),
        name=subject,
        scopes=_scopes(claims, issuer),
        created_unix_ms=int(issued_s * 1000),
        max_priority=issuer.max_priority,
        cache_scope=issuer.cache_scope,
        roles=_roles(claims, issuer),
        models=issuer.models,
        own_key_id=subject_id(issuer.issuer, subject),
        worker_pools=issuer.worker_pools,
        is_deterministic=issuer.deterministic,
    )
    return TokenHolder(issuer.issuer, subject, record, expanded(issuer.allowed_scopes))


def _check_times(claims: Mapping[str, Any], issuer: Issuer, now_s: float) -> float:
    """When it was issued, in seconds since 1970."""
    issued_s = _seconds(claims, "iat")
    if now_s >= _seconds(claims, "exp") + issuer.leeway_s:
        raise TokenRefused("expired")
    if "nbf" in claims and now_s < _seconds(claims, "nbf") - issuer.leeway_s:
        raise TokenRefused("not_yet")
    if now_s < issued_s - issuer.leeway_s:
        raise TokenRefused("not_yet")
    if now_s >= issued_s + issuer.max_age_s + issuer.leeway_s:
        raise TokenRefused("too_old")
    return issued_s


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused("times")
    if not 0 <= value < _NO_TIME or math.isnan(value):
        raise TokenRefused("times")
    return float(value)


# The year 9999: whatever is beyond it is no time.
_NO_TIME = 253_402_300_800


def _tenant(claims: Mapping[str, Any], issuer: Issuer) -> str:
    if issuer.tenant:
        return issuer.tenant
    values = _texts(_claim(claims, issuer.tenant_claim))
    if len(values) != 1:
        raise TokenRefused("tenant")
    tenant = issuer.tenants.get(values[0], "") if issuer.tenants else values[0]
    try:
        return parse_tenant(tenant)
    except InvalidArgument:
        raise TokenRefused("tenant") from None


def _roles(claims: Mapping[str, Any], issuer: Issuer) -> tuple[str, ...]:
    given = _texts(_claim(claims, issuer.roles_claim)) if issuer.roles_claim else ()
    names = [*issuer.default_roles, *(name for value in given for name in issuer.roles.get(value, ()))]
    return tuple(dict.fromkeys(names))[:MAX_ROLES_OF_A_KEY]


def _scopes(claims: Mapping[str, Any], issuer: Issuer) -> tuple[str, ...]:
    if not issuer.scopes_claim:
        return ()
    given = [word for text in _texts(_claim(claims, issuer.scopes_claim)) for word in text.split()]
    prefix = issuer.scope_prefix
    named = {word.removeprefix(prefix) for word in given if word.startswith(prefix)}
    return tuple(scope for scope in Scope if scope in named)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name; where there is none of the whole name, dots lead into objects."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _texts(value: Any) -> tuple[str, ...]:
    """A text or a list of texts, as claims have both; nothing of anything else."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    return ()
