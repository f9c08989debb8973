"""The one place where it is decided whether a call may go on. No I/O: what it needs is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from inferflux.common.errors import PermissionDenied, Unauthenticated

from .keys import ApiKeyRecord, Scope


@dataclass(frozen=True, slots=True)
class Ask:
    """What a caller wants to do."""

    scope: Scope
    model: str = ""
    priority: int = 0


def decide(credential: str, key: ApiKeyRecord | None, ask: Ask) -> ApiKeyRecord:
    """Let the call pass, as the holder of the returned key, or raise what it is told.

    `key` is the record of `credential`, None when there is no such key.

    Raises:
        Unauthenticated: there is no credential, or it is unknown or revoked.
        PermissionDenied: the key lacks the scope.
    """
    if not credential:
        raise Unauthenticated("an API key is needed", reason="NO_CREDENTIAL")
    if key is None:
        raise Unauthenticated("this API key is unknown or was revoked", reason="UNKNOWN_API_KEY")
    if ask.scope not in key.scopes:
        raise PermissionDenied(
            f"key {key.key_id} lacks the scope {ask.scope.value!r}", reason="MISSING_SCOPE"
        )
    return key
