"""A token as it came, and whether a key of its issuer signed it. No I/O, no clock.

PyJWT reads tokens and checks signatures. Which algorithm is used is not the token's choice: it is that of the
key, one of the issuer's two at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt
from jwt.types import Options

from .key_set import VerifyingKey

# What tokens say they are: an ID token or an access token. Others, such as logout tokens, are not for us.
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
# Claims are checked in `claims.py`, with a time that is given.
_SIGNATURE_ALONE: Options = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}
_UNREADABLE = (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError)


class TokenRefused(Exception):
    """A token is not taken.

    Args:
        why: one word for metrics and debug lines. The caller is not told.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class Unverified:
    """The claims of a token about itself. Anyone can have written it.

    Attributes:
        kid: names the key; "" where it names none.
    """

    algorithm: str
    kid: str
    issuer: str


def read(text: str) -> Unverified:
    """Raises:
    TokenRefused: it is no token, or not for us.
    """
    try:
        parts = jwt.decode_complete(text, options={"verify_signature": False})
    except _UNREADABLE:
        raise TokenRefused("malformed") from None
    header, claims = parts["header"], parts["payload"]
    algorithm, kid, issuer = header.get("alg"), header.get("kid", ""), claims.get("iss")
    if not (isinstance(algorithm, str) and isinstance(kid, str) and isinstance(issuer, str)):
        raise TokenRefused("malformed")
    # Extensions that have to be understood; there are none that we do.
    if "crit" in header or "b64" in header:
        raise TokenRefused("malformed")
    if "typ" in header and str(header["typ"]).lower() not in _TYPES:
        raise TokenRefused("type")
    return Unverified(algorithm, kid, issuer)


def verify(text: str, key: VerifyingKey) -> Mapping[str, Any]:
    """The token's claims, as its issuer signed them. They are not checked yet.

    Raises:
        TokenRefused: the key did not sign it.
    """
    try:
        return jwt.decode(text, key.public, algorithms=[key.algorithm], options=_SIGNATURE_ALONE)
    except jwt.InvalidAlgorithmError:
        raise TokenRefused("algorithm") from None
    except _UNREADABLE:
        raise TokenRefused("signature") from None
