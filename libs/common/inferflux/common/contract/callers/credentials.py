"""Format of callers' credentials. No I/O."""

from __future__ import annotations

import hashlib
import json
import re

from .api_key import is_well_formed

MAX_TOKEN_LENGTH = 8192

# Header, claims and signature in URL-safe base64; an unsigned token lacks the last.
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


def could_be_token(credential: str) -> bool:
    """True if it has the form of a signed JSON Web Token."""
    return len(credential) <= MAX_TOKEN_LENGTH and _TOKEN.fullmatch(credential) is not None


def could_be_credential(credential: str) -> bool:
    """True if policy could admit it at all: an API key, or the token of an issuer."""
    return is_well_formed(credential) or could_be_token(credential)


def subject_id(issuer: str, subject: str) -> str:
    """Id of a token's subject, used as a key's id is: in limits, audit lines and logs."""
    return f"sub_{hashlib.sha256(json.dumps([issuer, subject]).encode()).hexdigest()[:32]}"
