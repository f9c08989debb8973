"""The one place where it is decided whether a call may go on. No I/O: what it needs is passed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inferflux.common.contract.callers.scopes import Scope
from inferflux.common.contract.errors import PermissionDenied, Unauthenticated

from .keys import ApiKeyRecord, digest_of
from .oidc.claims import TokenHolder
from .roles import Access, Role, access_of


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a key or of a token that was admitted, and what it may do.

    Attributes:
        identity: of a token: its `issuer` and `subject`, as audit lines have them.
        same_for_ms: how long it stays the same as far as this process would know; 0 where that is unknown.
    """

    key: ApiKeyRecord
    access: Access
    identity: Mapping[str, str] = field(default_factory=dict)
    same_for_ms: int = 0

    @property
    def tenant(self) -> str:
        return self.key.tenant

    @property
    def key_id(self) -> str:
        return self.key.key_id


def identify(
    credential: str,
    key: ApiKeyRecord | None,
    *,
    roles: Sequence[Role] = (),
    now_unix_ms: int,
    due_in_s: float = 0.0,
) -> Holder:
    """The caller of a request.

    Args:
        key: the record of `credential`; None when there is no such key.
        roles: those of the key that there are.
        due_in_s: until what others have changed is read again, in seconds.

    Raises:
        Unauthenticated: there is no credential, or it is unknown, revoked or expired.
    """
    if not credential:
        raise Unauthenticated("an API key is needed", reason="NO_CREDENTIAL")
    if key is None:
        raise Unauthenticated("this API key is unknown or was revoked", reason="UNKNOWN_API_KEY")
    if key.is_expired(now_unix_ms):
        raise Unauthenticated(f"key {key.key_id} has expired", reason="API_KEY_EXPIRED")
    same_for_ms = min(due_in_s * 1000, key.left_ms(digest_of(credential), now_unix_ms))
    return Holder(key, access_of(key, roles), same_for_ms=int(same_for_ms))


def identify_token(token: TokenHolder, *, roles: Sequence[Role] = ()) -> Holder:
    """Identify the holder of a token that was verified.

    Args:
        roles: those of the token that there are.
    """
    return Holder(token.record, access_of(token.record, roles).within(token.ceiling), token.identity)


def authorize(holder: Holder, scope: Scope) -> None:
    """Policy's own decision: let the holder of a key do what needs a scope.

    Gateways check the model, which is not known before the body is read.

    Raises:
        PermissionDenied: the key lacks the scope.
    """
    if scope not in holder.access.scopes:
        raise PermissionDenied(f"key {holder.key_id} lacks the scope {scope.value!r}", reason="MISSING_SCOPE")
