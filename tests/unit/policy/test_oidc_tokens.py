"""Whether a key of the issuer signed a token: what PyJWT is asked, and what attackers send."""

from __future__ import annotations

import hashlib
import hmac
import json
from contextlib import suppress
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from harness.oidc_keys import SigningKey, claims_of, encoded, part
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.contract.callers.credentials import (
    MAX_TOKEN_LENGTH,
    could_be_credential,
    could_be_token,
)
from inferflux.policy.decide.oidc.key_set import KeySet, VerifyingKey, parse_key_set
from inferflux.policy.decide.oidc.tokens import TokenRefused, read, verify
from inferflux.policy.decide.oidc.verified import Verified, VerifiedTokens

URL = "https://idp.example.com"
RSA, EC, STRANGER = SigningKey.rsa(), SigningKey.ec(), SigningKey.rsa("rsa-1")
KEYS = parse_key_set({"keys": [RSA.jwk(), EC.jwk()]})


def key_of(signing: SigningKey, keys: KeySet = KEYS) -> VerifyingKey:
    found = keys.find(signing.kid, signing.algorithm)
    assert found is not None
    return found


def refused_read(text: str) -> str:
    with pytest.raises(TokenRefused) as caught:
        read(text)
    return caught.value.why


def refused_verify(text: str, signing: SigningKey) -> str:
    with pytest.raises(TokenRefused) as caught:
        verify(text, key_of(signing))
    return caught.value.why


@pytest.mark.parametrize("signing", [RSA, EC], ids=["RS256", "ES256"])
def test_a_token_that_the_issuer_signed_has_its_claims(signing: SigningKey) -> None:
    claims = claims_of(URL)
    text = signing.sign(claims)
    token = read(text)
    assert (token.issuer, token.kid, token.algorithm) == (URL, signing.kid, signing.algorithm)
    assert verify(text, key_of(signing)) == claims


def test_claims_are_not_checked_here() -> None:
    claims = claims_of(URL, exp=1, aud=None, nbf=2**40)
    assert verify(RSA.sign(claims), key_of(RSA)) == claims


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", ""])
def test_an_unsigned_token_is_refused(algorithm: str) -> None:
    header = part({"alg": algorithm, "kid": "rsa-1", "typ": "JWT"})
    for signature in ("", encoded(b"x"), RSA.sign(claims_of(URL)).rpartition(".")[2]):
        text = f"{header}.{part(claims_of(URL))}.{signature}"
        assert refused_verify(text, RSA) == "algorithm"


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_token_signed_with_the_public_key_as_a_secret_is_refused(algorithm: str) -> None:
    """It would be valid for a library that lets the token choose how the key is used."""
    pem = RSA.public_pem()
    for secret in (pem, pem.strip(), json.dumps(RSA.jwk()).encode()):
        signed = f"{part({'alg': algorithm, 'kid': 'rsa-1'})}.{part(claims_of(URL))}"
        digest = getattr(hashlib, f"sha{algorithm[2:]}")
        text = f"{signed}.{encoded(hmac.new(secret, signed.encode(), digest).digest())}"
        assert refused_verify(text, RSA) == "algorithm"


@pytest.mark.parametrize("algorithm", ["RS384", "RS512", "PS256", "PS512"])
def test_other_algorithms_of_the_same_key_are_refused(algorithm: str) -> None:
    text = jwt.encode(claims_of(URL), RSA.private, algorithm, {"kid": "rsa-1"})
    assert refused_verify(text, RSA) == "algorithm"


def test_another_key_with_the_same_id_is_refused() -> None:
    assert refused_verify(STRANGER.sign(claims_of(URL)), RSA) == "signature"


def test_keys_that_a_token_brings_along_are_not_looked_at() -> None:
    brought: dict[str, Any] = {
        "jwk": STRANGER.jwk(),
        "jku": "http://169.254.169.254/keys",
        "x5u": "file:///etc/passwd",
        "x5c": ["AAAA"],
    }
    assert refused_verify(STRANGER.sign(claims_of(URL), **brought), RSA) == "signature"
    assert verify(RSA.sign(claims_of(URL), **brought), key_of(RSA))["sub"] == "alice"


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_token_that_was_changed_is_refused(index: int) -> None:
    parts = RSA.sign(claims_of(URL)).split(".")
    changed = {
        0: part({"alg": "RS256", "kid": "rsa-1", "typ": "JWT", "x": 1}),
        1: part(claims_of(URL, sub="root")),
        2: encoded(b"\0" * 256),
    }
    parts[index] = changed[index]
    assert refused_verify(".".join(parts), RSA) == "signature"


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"typ": "logout+jwt"}, "type"),
        ({"typ": "dpop+jwt"}, "type"),
        ({"typ": 7}, "type"),
        ({"crit": ["exp"]}, "malformed"),
        ({"crit": []}, "malformed"),
    ],
)
def test_tokens_for_something_else_are_refused(header: dict[str, Any], why: str) -> None:
    signed = f"{part({'alg': 'RS256', 'kid': 'rsa-1'} | header)}.{part(claims_of(URL))}"
    assert refused_read(f"{signed}.{encoded(b'x')}") == why


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", "application/at+jwt", None])
def test_id_tokens_and_access_tokens_are_read(typ: str | None) -> None:
    assert read(RSA.sign(claims_of(URL), typ=typ)).issuer == URL


@pytest.mark.parametrize(
    "text",
    [
        "a.b.c",
        "..",
        "e30.e30.",
        f"{part([])}.{part({})}.x",
        f"{part({'alg': 'RS256', 'kid': 7})}.{part({'iss': URL})}.xx",
        f"{part({'alg': 'RS256', 'kid': None})}.{part({'iss': URL})}.xx",
        f"{part({'alg': 7})}.{part({'iss': URL})}.xx",
        f"{part({'alg': 'RS256'})}.{part({'iss': 7})}.xx",
        f"{part({'alg': 'RS256'})}.{part([1])}.xx",
        f"{part({'alg': 'RS256'})}.{encoded(b'{')}.xx",
        f"{encoded(b'[' * 3000)}.{part({})}.xx",
        f"{part({'alg': 'RS256'})}.{encoded(b'[' * 3000)}.xx",
        f"{part({'alg': 'RS256'})}.{encoded(b'9' * 4400)}.xx",
        f"{encoded(bytes(range(256)))}.{encoded(bytes(range(256)))}.xx",
    ],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    assert refused_read(text) == "malformed"


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_and_nothing_else(
    header: bytes, claims: bytes, signature: bytes
) -> None:
    text = f"{encoded(header)}.{encoded(claims)}.{encoded(signature)}"
    with suppress(TokenRefused):
        read(text)
    with pytest.raises(TokenRefused):
        verify(text, key_of(RSA))


@pytest.mark.parametrize(
    "kid",
    ["../../../../etc/passwd", "rsa-1\0", "' OR 1=1 --", "http://169.254.169.254/", "RSA-1", "a" * 4000],
)
def test_a_key_id_is_looked_up_and_leads_nowhere_else(kid: str) -> None:
    token = read(RSA.sign(claims_of(URL), kid=kid))
    assert KEYS.find(token.kid, token.algorithm) is None


def test_a_token_that_names_no_key_has_the_only_one_of_its_algorithm() -> None:
    assert KEYS.find("", "RS256") == key_of(RSA)
    two = parse_key_set({"keys": [RSA.jwk(), STRANGER.jwk(kid="rsa-2")]})
    assert two.find("", "RS256") is None
    assert KEYS.find("", "HS256") is None


def test_a_key_is_for_its_own_algorithm() -> None:
    assert KEYS.find("rsa-1", "ES256") is None
    assert KEYS.find("rsa-1", "HS256") is None
    assert KEYS.find("ec-1", "RS256") is None


WEAK = SigningKey.rsa("weak", bits=1024)


@pytest.mark.parametrize(
    "entry",
    [
        {"kty": "oct", "k": encoded(b"secret" * 8), "kid": "k", "alg": "HS256"},
        WEAK.jwk(),
        RSA.jwk(alg="RS512"),
        RSA.jwk(alg="HS256"),
        RSA.jwk(alg=7),
        RSA.jwk(use="enc"),
        RSA.jwk(key_ops=["encrypt"]),
        RSA.jwk(key_ops="verify"),
        RSA.jwk(kid=7),
        RSA.jwk(n=None),
        RSA.jwk(n=7),
        RSA.jwk(n=""),
        RSA.jwk(n="!!"),
        RSA.jwk(e="AA"),
        RSA.jwk(e=encoded(b"\2")),
        EC.jwk(crv="P-384"),
        EC.jwk(crv="secp256k1"),
        EC.jwk(x=encoded(b"\0" * 32)),
        EC.jwk(y=None),
        {"kty": "OKP", "crv": "Ed25519", "x": encoded(b"\0" * 32), "kid": "k"},
        {"kty": ["RSA"]},
        {},
        7,
        None,
        [],
    ],
)
def test_a_key_that_cannot_be_used_is_left_out_and_the_others_stay(entry: Any) -> None:
    assert list(parse_key_set({"keys": [entry, EC.jwk(kid="other")]}).keys) == [("other", "ES256")]


def test_the_private_part_of_a_key_that_an_issuer_shows_is_not_read() -> None:
    assert isinstance(RSA.private, RSAPrivateKey)
    leaked = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA.private)) | {
        "kid": "rsa-1",
        "key_ops": ["verify"],
    }
    (key,) = parse_key_set({"keys": [leaked]}).keys.values()
    assert not hasattr(key.public, "private_numbers")
    assert verify(RSA.sign(claims_of(URL)), key)["sub"] == "alice"


@pytest.mark.parametrize("document", [None, [], {}, {"keys": {}}, {"keys": "x"}, "keys", 7])
def test_what_is_no_key_set_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="JWKS"):
        parse_key_set(document)


def test_an_issuer_may_have_no_keys() -> None:
    assert parse_key_set({"keys": []}).keys == {}


def test_what_could_be_a_token_is_told_from_keys_and_from_what_is_neither() -> None:
    token = RSA.sign(claims_of(URL))
    assert could_be_token(token)
    assert could_be_credential(token)
    assert could_be_credential("ifx_" + "a" * 43)
    assert not could_be_token("ifx_" + "a" * 43)
    for text in ("", "a.b", "a.b.c.d", "a.b.c\n", "a. b.c", "ä.b.c", "a.b.c=", ".b.c", "hunter2"):
        assert not could_be_credential(text), text
    assert could_be_token("a.b." + "c" * (MAX_TOKEN_LENGTH - 4))
    assert not could_be_token("a.b." + "c" * (MAX_TOKEN_LENGTH - 3))


def test_tokens_are_remembered_by_their_hashes_and_the_latest_stay() -> None:
    known = VerifiedTokens(most=2)
    texts = [RSA.sign(claims_of(URL, sub=name)) for name in "abc"]
    for text in texts[:2]:
        known.add(text, Verified(read(text), key_of(RSA), verify(text, key_of(RSA))))
    first = known.find(texts[0])
    assert first is not None
    assert first.claims["sub"] == "a"
    known.add(texts[2], Verified(read(texts[2]), key_of(RSA), {}))
    assert known.find(texts[1]) is None
    assert known.find(texts[0]) == first
    assert known.find(texts[0][:-1]) is None
    assert all(text not in repr(vars(known)) for text in texts)
