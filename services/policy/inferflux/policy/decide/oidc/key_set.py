"""The keys of an issuer, as its JWKS document has them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

MAX_KEYS = 100
_RSA_BITS = (2048, 8192)
# What is read of a key, by its type: its public part alone.
_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y")}
_ALGORITHMS = {"RSA": "RS256", "EC": "ES256"}


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A public key, and the one algorithm that it is used with."""

    kid: str
    algorithm: str
    public: RSAPublicKey | EllipticCurvePublicKey


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys by their ids and algorithms; those without an id have ""."""

    keys: Mapping[tuple[str, str], VerifyingKey] = field(default_factory=dict)

    def find(self, kid: str, algorithm: str) -> VerifyingKey | None:
        """The key of this id. A token that names none has the key of its algorithm, if there is but one."""
        if kid:
            return self.keys.get((kid, algorithm))
        fitting = [key for key in self.keys.values() if key.algorithm == algorithm]
        return fitting[0] if len(fitting) == 1 else None


def parse_key_set(document: Any) -> KeySet:
    """Keys that cannot be used are left out: other types and curves, other uses, short ones.

    Raises:
        ValueError: it is no JWKS document.
    """
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("not a JWKS document")
    found: dict[tuple[str, str], VerifyingKey] = {}
    for entry in entries[:MAX_KEYS]:
        key = _parse_key(entry) if isinstance(entry, dict) else None
        if key is not None:
            found.setdefault((key.kid, key.algorithm), key)
    return KeySet(found)


def _parse_key(entry: Mapping[str, Any]) -> VerifyingKey | None:
    kind, kid = entry.get("kty"), entry.get("kid", "")
    if not isinstance(kind, str) or kind not in _MEMBERS or not isinstance(kid, str):
        return None
    algorithm = _ALGORITHMS[kind]
    if entry.get("alg", algorithm) != algorithm or entry.get("use", "sig") != "sig":
        return None
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    members = {name: entry.get(name) for name in _MEMBERS[kind]}
    if not all(isinstance(value, str) for value in members.values()):
        return None
    try:
        public = jwt.PyJWK({"kty": kind, **members}, algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    return VerifyingKey(kid, algorithm, public) if _is_strong(public) else None


def _is_strong(public: object) -> bool:
    if isinstance(public, RSAPublicKey):
        return _RSA_BITS[0] <= public.key_size <= _RSA_BITS[1]
    return isinstance(public, EllipticCurvePublicKey) and isinstance(public.curve, SECP256R1)
