"""Keys of issuers, and tokens that they, or attackers, sign."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def encoded(data: bytes) -> str:
    """In URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def part(value: Any) -> str:
    """A header or claims, as a token has them."""
    return encoded(json.dumps(value).encode())


@dataclass(frozen=True)
class SigningKey:
    """A key of an issuer.

    Attributes:
        algorithm: RS256 or ES256.
    """

    kid: str
    algorithm: str
    private: PrivateKey = field(repr=False)

    @classmethod
    def rsa(cls, kid: str = "rsa-1", *, bits: int = 2048) -> SigningKey:
        return cls(kid, "RS256", rsa.generate_private_key(65537, bits))

    @classmethod
    def ec(cls, kid: str = "ec-1") -> SigningKey:
        return cls(kid, "ES256", ec.generate_private_key(ec.SECP256R1()))

    def jwk(self, **changes: Any) -> dict[str, Any]:
        """As a JWKS document has it. A change to None removes a member."""
        maker: Any = jwt.algorithms.RSAAlgorithm if self.algorithm == "RS256" else jwt.algorithms.ECAlgorithm
        members = dict(maker.to_jwk(self.private.public_key(), as_dict=True))
        members.pop("key_ops", None)
        members |= {"kid": self.kid, "alg": self.algorithm, "use": "sig"} | changes
        return {name: value for name, value in members.items() if value is not None}

    def public_pem(self) -> bytes:
        return self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def sign(self, claims: dict[str, Any], **header: Any) -> str:
        """A token. A header member of None is left out."""
        headers = {"kid": self.kid} | header
        return jwt.encode(
            claims, self.private, self.algorithm, {k: v for k, v in headers.items() if v is not None}
        )


def claims_of(issuer: str, **changes: Any) -> dict[str, Any]:
    """Claims that are good now. A change to None removes one."""
    now = int(time.time())
    claims = {"iss": issuer, "aud": "inferflux", "sub": "alice", "iat": now, "exp": now + 300} | changes
    return {name: value for name, value in claims.items() if value is not None}
